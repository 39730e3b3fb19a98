"""Ctrl-C ends with 130 and the very command that goes on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

import pytest

from flamma.cli import main

SMALL = [
    *("--clients", "4", "--rounds", "150", "--model", "logistic"),
    *("--train-samples", "80", "--set", "data.validation_samples=20"),
]


def test_the_command_that_an_interrupted_run_prints_finishes_it(tmp_path, capsys):
    out = tmp_path / "my run"
    command = [sys.executable, "-m", "flamma", "run", *SMALL, "--out", str(out)]
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
