"""A hundred thousand clients fit on a laptop, and the loop itself costs little."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "many_clients.py"


def measured():
    command = [sys.executable, SCRIPT, "--rounds", "7", "--processes", "1"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^(.*?)  +([\d.]+)$", shown, flags=re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_a_hundred_thousand_clients_fit_into_memory():
    assert measured()["peak memory of a process, GB"] < 2


@pytest.mark.slow
def test_a_hundred_thousand_clients_cost_the_loop_little():
    # The least, because other processes may take the processor away.
    assert measured()["loop's own overhead, least, ms"] < 50
