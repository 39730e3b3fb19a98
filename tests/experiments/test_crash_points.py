"""A run that is killed at any write or sync, and resumed, ends as if nothing had happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "crash_points.py"


def crashes(*options):
    done = subprocess.run(
        [sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every run ended the same" in done.stdout


def test_killed_at_every_seventh_write_or_sync():
    crashes("--rounds", "2", "--every", "7")


def test_killed_where_clients_keep_something():
    crashes("--rounds", "2", "--every", "13", "--keeps")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], ["--keeps"]], ids=["rows", "keeps"])
def test_killed_at_every_write_and_sync(kind):
    crashes("--rounds", "3", *kind)
