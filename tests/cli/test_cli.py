"""Exit codes and messages: one printable line, and no error is taken for an impatient reader."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys

import pytest

from flamma.cli import main
from flamma.cli.info import _run_list
from flamma.experiments.settings import flag_of


@pytest.fixture
def failing(monkeypatch):
    """Make ``flamma list`` raise something."""

    def install(error):
        def run(options):
            raise error

        monkeypatch.setattr("flamma.cli.info._run_list", run)

    return install


def test_a_broken_pipe_inside_the_run_is_an_error(failing, capsys):
    failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert main(["list"]) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "Broken pipe" in shown


def test_a_broken_pipe_inside_the_run_is_an_error_also_with_output_before_it(monkeypatch, capsys):
    def run(options):
        _run_list(options)
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("flamma.cli.info._run_list", run)
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
    assert said.startswith(f"flamma: {flag_of(setting)} must be a ")
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
        (
            [f"per_round={HUGE}"],
            "but there are only 10 clients: lower --per-round or raise",
        ),
        ([f"data.clients={HUGE}", f"per_round={HUGE}"], f"{HUGE} clients need at least"),
        ([f"data.train_samples={HUGE}"], "digits has 1442 training samples, but"),
        ([f"engine.processes={HUGE}"], "must lie in [1, 1,024]"),
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


# A reader that leaves early costs nothing but what it would have read.

SMALL = [
    *("--clients", "4", "--per-round", "2", "--rounds", "2", "--model", "logistic"),
    *("--train-samples", "80", "--set", "data.validation_samples=20"),
]


def flamma(*arguments, **how):
    words = [sys.executable, "-m", "flamma", *map(str, arguments)]
    return subprocess.Popen(words, env=os.environ | {"PYTHONUNBUFFERED": "1"}, **how)


def test_head_does_not_cost_the_report_of_a_comparison(tmp_path):
    out = tmp_path / "out"
    options = ["--strategies", "fedavg", "--splits", "iid", "--seeds", "1", "--processes", "1"]
    command = ["compare", *SMALL, *options, "--out", out]
    with flamma(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as comparing:
        assert comparing.stdout.readline() == b"digits\n"
        comparing.stdout.close()
        told = comparing.stderr.read().decode()
    assert comparing.returncode == 0
    assert "Traceback" not in told
    assert "Broken" not in told
    assert {"table.json", "table.csv", "report.html"} <= {file.name for file in out.iterdir()}


@pytest.mark.parametrize("closed", ["stderr", "both"])
def test_a_run_whose_progress_nobody_reads_goes_on(tmp_path, closed):
    reading, writing = os.pipe()
    os.close(reading)
    out = tmp_path / "run"
    shown = writing if closed == "both" else subprocess.PIPE
    with flamma("run", *SMALL, "--out", out, stdout=shown, stderr=writing) as running:
        os.close(writing)
        printed = running.stdout.read().decode() if running.stdout else ""
    assert running.returncode == 0
    assert (out / "rounds.jsonl").read_text().count("\n") == 2
    assert (out / "report.html").exists()
    assert ("params_sha256" in printed) == (closed == "stderr")


# Ctrl-C ends with 130 and the very command that goes on.

SMALL_INTERRUPTS = [
    *("--clients", "4", "--rounds", "150", "--model", "logistic"),
    *("--train-samples", "80", "--set", "data.validation_samples=20"),
]


def test_the_command_that_an_interrupted_run_prints_finishes_it(tmp_path, capsys):
    out = tmp_path / "my run"
    command = [sys.executable, "-m", "flamma", "run", *SMALL_INTERRUPTS, "--out", str(out)]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Whoever runs the tests in the background may have them ignore an interrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:
        while not running.stderr.readline().startswith("round "):
            assert running.poll() is None
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to all processes of the job
        told = running.stderr.read()
    assert running.returncode == 130
    assert "Traceback" not in told
    sentence = told.splitlines()[-1]
    assert sentence == f"flamma: interrupted; go on with: flamma resume '{out}'"
    words = shlex.split(sentence.partition("go on with: ")[2])
    assert main([*words[1:], "-q"]) == 0
    assert "150 of 150 rounds" in capsys.readouterr().out


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("work", "arguments"),
    [
        ("experiments.comparison.compare_suite", ["compare", "--seeds", "1", "--out", "my out"]),
        ("experiments.audit.audit_source", ["audit", "--seeds", "1"]),
        ("experiments.tune.tune_config", ["tune", "--trials", "2"]),
        ("data.datasets.fetch_dataset", ["data", "fetch", "mnist"]),
    ],
)
def test_what_goes_on_by_itself_prints_the_same_command(work, arguments, capsys, monkeypatch):
    monkeypatch.setattr(f"flamma.{work}", interrupt)
    assert main(arguments) == 130
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == f"flamma: interrupted; the same command goes on: flamma {shlex.join(arguments)}"


def test_a_run_that_has_not_begun_is_started_again(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("flamma.experiments.run.run_config", interrupt)
    arguments = ["run", "--out", str(tmp_path / "run")]
    assert main(arguments) == 130
    told = capsys.readouterr().err
    assert f"nothing was written yet; the same command starts again: flamma {arguments[0]}" in told
