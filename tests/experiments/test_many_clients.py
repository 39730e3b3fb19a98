"""A hundred thousand clients fit on a laptop, and the loop itself costs little."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "many_clients.py"


def test_a_hundred_thousand_clients():
    command = [sys.executable, SCRIPT, "--rounds", "7", "--processes", "1"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    measured = dict(re.findall(r"^(.*?)  +([\d.]+)$", shown, flags=re.MULTILINE))
    assert float(measured["peak memory of a process, GB"]) < 2
    # The least, because other tests run beside this one and take the processor away.
    assert float(measured["loop's own overhead, least, ms"]) < 50
