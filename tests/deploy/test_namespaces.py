"""The page on deploying, word for word, on network namespaces of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from documented import ROOT

SCRIPT = Path(__file__).parent / "namespaces.py"
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and ip")
def test_the_page_s_commands_make_a_federation_of_machines():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 rounds" in done.stdout
    told = [line.partition("$ ")[2] for line in done.stdout.splitlines() if "] $ " in line]
    for command in told:
        assert command.replace("site1", "site0").replace("site2", "site0") in PAGE
    assert len(told) == 7
