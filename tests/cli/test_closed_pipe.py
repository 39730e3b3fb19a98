"""A reader that leaves early costs nothing but what it would have read."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
