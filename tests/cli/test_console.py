"""The progress line stays one line on a terminal of any width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from flamma.cli.console import ManyRunsDisplay
from flamma.experiments.jobs import Progress
from flamma.experiments.progress_bar import Verbosity

SHOW_ROUNDS = """
import time
from pathlib import Path
from flamma.cli.console import ManyRunsDisplay, RoundDisplay
from flamma.experiments.jobs import Progress
from flamma.records import Evaluation, OfferRecord, Outcomes, RoundRecord
scores = Evaluation({"accuracy": 71.25, "accuracy_variance": 605.2})
with RoundDisplay(3, Path("runs")) as display:
    for number in (1, 2, 3):
        outcome = Outcomes((), {}, (4, 5), 9)
        display(RoundRecord(number, (1, 2), OfferRecord(0.5), outcome, evaluation=scores))
        time.sleep(0.12)
with ManyRunsDisplay() as display:
    display(Progress(5, 100, 1, 20, "digits, shards, a strategy with a long name, seed 0"))
    time.sleep(0.12)
    display(Progress(50, 100, 10, 20, "digits, shards, a strategy with a long name, seed 1"))
"""


def on_terminal(script, columns, environment):
    """Return what a script writes to a terminal of so many columns as its standard error."""
    own, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # as with `flamma run > file`: the terminal is still narrow
        stderr=theirs,
        env=kept | environment,
    ):
        os.close(theirs)
        written = b""
        while True:
            try:
                written += os.read(own, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
    os.close(own)
    return written.decode()


@pytest.mark.parametrize(
    ("columns", "environment", "width"),
    [(40, {}, 40), (20, {}, 20), (200, {"COLUMNS": "40"}, 40), (200, {}, 200), (4, {}, 4)],
)
def test_no_line_is_as_wide_as_the_terminal(columns, environment, width):
    written = on_terminal(SHOW_ROUNDS, columns, environment)
    lines = [text for text in re.findall(r"\r([^\r\n]*?)\x1b\[K", written) if text]
    assert len(lines) >= 5
    assert all(len(text) < width for text in lines)
    rounds = [text for text in lines if text.startswith("round 3")]
    if width == 200:
        assert rounds[0].startswith("round 3/3  γ 0.500  epochs 4.5  accuracy 71.2%  variance")
        assert "left" in rounds[0]
        assert "seed 1" in lines[-1]
    elif width == 40:
        assert rounds == ["round 3/3  accuracy 71.2%  0 s left"]
        assert re.fullmatch(r"10 of 20 runs, 50%(  \d+ s left)?", lines[-1])
    elif width == 20:
        assert rounds == ["round 3/3  0 s left"]


def test_verbosity_decides_what_is_said(capsys):
    for verbosity in Verbosity:
        with ManyRunsDisplay(verbosity) as display:
            for done in range(4):
                display(Progress(done, 4, 0, 2, f"round {done}"))
        told = capsys.readouterr().err.splitlines()
        lines = {Verbosity.QUIET: 0, Verbosity.NORMAL: 1, Verbosity.VERBOSE: 4}
        assert len(told) == lines[verbosity]
