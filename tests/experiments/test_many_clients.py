"""A hundred thousand clients fit on a laptop, and the loop itself costs little."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def measured():
    command = [sys.executable, BENCHMARKS / "many_clients.py", "--rounds", "7", "--processes", "1"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
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
