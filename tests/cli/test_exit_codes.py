"""Exit codes and messages: one printable line, and no error is taken for an impatient reader."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from flamma.cli import main
from flamma.cli.info import run_list


@pytest.fixture
def failing(monkeypatch):
    """Make ``flamma list`` raise something."""

    def install(error):
        def run(options):
            raise error

        monkeypatch.setattr("flamma.cli.info.run_list", run)

    return install


def test_a_broken_pipe_inside_the_run_is_an_error(failing, capsys):
    failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert main(["list"]) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "Broken pipe" in shown


def test_a_broken_pipe_inside_the_run_is_an_error_also_with_output_before_it(monkeypatch, capsys):
    def run(options):
        run_list(options)
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("flamma.cli.info.run_list", run)
    assert main(["list"]) == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_is_no_error(unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        listing = subprocess.run(
            [sys.executable, "-m", "flamma", "list", "--options"],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    finally:
        os.close(writing)
    assert (listing.returncode, listing.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 9000), 2, "xxx"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left"),
        (MemoryError(), 1, "memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_the_machine_refuses_is_one_sentence(failing, capsys, error, code, said):
    failing(error)
    assert main(["list"]) == code
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert len(shown) < 3000
    assert said in shown


def test_messages_have_no_terminal_escapes(capsys, tmp_path):
    assert main(["show", str(tmp_path / "\x1b[2J\nx")]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "\x1b" not in shown
    with pytest.raises(SystemExit):
        main(["run", "--rounds", "\x1b[2J\n"])
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "\x1b" not in shown


@pytest.mark.parametrize("rounds", ["0", "100001", "9" * 400])
def test_a_path_has_a_bounded_number_of_rounds(rounds, capsys):
    arguments = ["game", "path", "--contributions", "0.5", "--costs", "0.1", "--rounds", rounds]
    assert main(arguments) == 2
    assert "--rounds must be from 1 to 100,000" in capsys.readouterr().err


@pytest.mark.parametrize(
    "setting", ["rounds", "seed", "training.batch_size", "training.learning_rate", "costs.value"]
)
def test_numbers_of_400_digits_are_refused_in_one_short_line(setting, capsys, tmp_path):
    assert main(["run", "--set", f"{setting}={'9' * 400}", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"flamma: {setting} must be a ")
    assert said.count("\n") == 1
    assert len(said) < 400
    assert not list(tmp_path.iterdir())


HUGE = str(10**11)
SYNTHETIC = ("data.dataset=synthetic", "model.name=logistic")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([*SYNTHETIC, f"data.clients={HUGE}"], "at most 50,000,000 samples: use few"),
        ([*SYNTHETIC, f"data.train_samples={HUGE}"], "at most 50,000,000 samples"),
        ([*SYNTHETIC, f"data.validation_samples={HUGE}"], "at most 50,000,000"),
        ([f"data.clients={HUGE}"], f"{HUGE} clients need at least 200000000000 samples"),
        ([f"per_round={HUGE}"], "but there are only 10 clients: lower per_round"),
        ([f"data.clients={HUGE}", f"per_round={HUGE}"], f"{HUGE} clients need at least"),
        ([f"data.train_samples={HUGE}"], "digits has 1442 training samples, but"),
        ([f"engine.processes={HUGE}"], "must lie between 1 and 1,024"),
        (["model.name=mlp", f"model.hidden=[{HUGE}]"], "more than 1,073,741,824 weights: make it"),
        (["model.name=mlp", f"model.hidden=[{HUGE}, {HUGE}]"], "more than 1,073,741,824 weights"),
        (["model.name=resnet18", "model.width=1e18"], "more than 1,073,741,824 weights"),
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(settings, said, capsys, tmp_path):
    chosen = [word for setting in settings for word in ("--set", setting)]
    assert main(["run", *chosen, "--out", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert said in shown


@pytest.mark.parametrize("option", ["--clients", "--train-samples"])
def test_data_of_an_absurd_size_are_not_shown(option, capsys):
    assert main(["data", "show", "synthetic", option, HUGE]) == 2
    assert "at most 50,000,000 samples: use fewer" in capsys.readouterr().err
