"""A hundred thousand clients, and a million, fit on a laptop; the loop itself costs little."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def measured(script="many_clients.py", *options):
    command = [sys.executable, BENCHMARKS / script, *(options or ("--rounds", "7"))]
    shown = subprocess.run(
        [*command, "--processes", "1"], check=True, capture_output=True, text=True
    ).stdout
    found = re.findall(r"^(.*?)  +([\d.]+)$", shown, flags=re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_a_hundred_thousand_clients_fit_into_memory():
    assert measured()["peak memory of a process, GB"] < 2


@pytest.mark.slow
def test_a_hundred_thousand_clients_cost_the_loop_little():
    # The least, because other processes may take the processor away.
    assert measured()["loop's own overhead, least, ms"] < 50


def test_what_a_hundred_thousand_clients_last_sent_takes_no_memory():
    size = ["--rounds", "8", "--per-round", "20", "--samples", "4"]
    command = [sys.executable, BENCHMARKS / "memory_rows.py", *size]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [*_, peak, stored] = shown.splitlines()[-1].split()
    assert "flamma-plus" in shown.splitlines()[-1]
    assert float(peak) < 2
    assert float(stored) > 0.02  # 160 rows of 61,706 weights in float16, and the records


@pytest.mark.slow
def test_a_million_clients_run_resume_and_report():
    found = measured("million_clients.py", "--rounds", "10")
    assert found["rounds"] == 10
    assert found["sum of the processes' peaks, GB"] < 4
    assert found["besides training, median of rounds, s"] < 1
    assert found["run directory without report, MB"] < 200
    assert found["report, MB"] < 7
