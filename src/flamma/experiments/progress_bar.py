"""A line of a terminal that is kept up to date, and a progress bar there or in a notebook."""

from __future__ import annotations

import html
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TextIO
from unicodedata import east_asian_width

if TYPE_CHECKING:
    from flamma.experiments.jobs import Progress
    from flamma.records import RoundRecord

_BAR_CELLS = 24


_USUAL_COLUMNS, _WIDEST_TERMINAL = 80, 100_000
"""The width of a terminal that does not tell it, and the largest that is believed."""

CLEAR_LINE = "\r\x1b[K"


class Verbosity(IntEnum):
    """How much is said of work while it goes on."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


class LiveLine:
    """A line on standard error that is kept up to date; a context manager that clears it.

    Elsewhere than on a terminal every text is a line of its own, at most one in ``pause``
    seconds. If verbose, every text is a line of its own everywhere, and none is left out.
    """

    def __init__(self, pause: float = 0.0, verbosity: Verbosity = Verbosity.NORMAL) -> None:
        self.stream = sys.stderr
        self.verbosity = verbosity
        self.live = verbosity == Verbosity.NORMAL and self.stream.isatty()
        self.pause = 0.1 if self.live else 0.0 if verbosity == Verbosity.VERBOSE else pause
        self.started = time.monotonic()
        self.last = -float("inf")
        self.first: tuple[float, int] | None = None

    def show(self, text: str, *shorter: str, force: bool = False) -> None:
        """Show a text, unless the last one was shown just now.

        On a terminal it is the first of these texts that fits into one line; the last is cut.
        """
        now = time.monotonic()
        if not force and now - self.last < self.pause:
            return
        self.last = now
        fitting = _fitted((text, *shorter), _terminal_width(self.stream)) if self.live else text
        self.write(f"\r{fitting}\x1b[K" if self.live else f"{text}\n")

    def write(self, text: str) -> None:
        """Write a text as it is, unless nothing is to be said."""
        if self.verbosity > Verbosity.QUIET:
            self.stream.write(text)
            self.stream.flush()

    def left(self, done: int, of: int) -> str:
        """Return the time left, at the pace since the first call."""
        now = time.monotonic()
        if self.first is None:
            self.first = (now, done)
        since, before = self.first
        return f"  {duration((now - since) / (done - before) * of)} left" if done > before else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.live and self.last > 0:
            self.write(CLEAR_LINE if kind is None else "\n")


def _terminal_width(stream: TextIO) -> int:
    """Return how many columns the terminal of a stream has, ``COLUMNS`` if that is set."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and 0 < int(told) < _WIDEST_TERMINAL:
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):
        return _USUAL_COLUMNS


def _columns(text: str) -> int:
    """Return how many columns a terminal needs for a text; some characters are twice as wide."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _fitted(texts: Sequence[str], columns: int) -> str:
    """Return the first text that is shorter than a line; if there is none, the last one cut.

    The last column stays free: a terminal may begin a new line once it is filled.

    Examples
    --------
    >>> _fitted(["round 3/10  accuracy 71.2%", "round 3/10"], 20)
    'round 3/10'
    >>> _fitted(["round 3/10"], 6), _fitted(["日本語"], 6)
    ('round', '日本')
    """
    for text in texts:
        if _columns(text) < columns:
            return text
    cut = texts[-1]
    while cut and _columns(cut) >= columns:
        cut = cut[:-1]
    return cut


def duration(seconds: float) -> str:
    """Return a time as people say it.

    Examples
    --------
    >>> duration(8.2), duration(95), duration(7300)
    ('8 s', '1 min 35 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell: Any = sys.modules.get("IPython")
    with suppress(Exception):
        return type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
    return False


def wants_bar(progress: bool | None) -> bool:
    """Return whether a bar is shown: as asked for, else in terminals and notebooks."""
    if progress is not None:
        return progress
    return in_notebook() or bool(sys.stderr and sys.stderr.isatty())


class ProgressBar:
    """Shows how much is done; a context manager that leaves a terminal as it was.

    Parameters
    ----------
    shown : bool
        Whether anything is shown at all.
    total : int
        How much there is to do.
    unit : str
        What is counted.
    """

    def __init__(self, shown: bool, total: int, unit: str) -> None:
        self.total = total
        self.unit = unit
        self.handle: Any = None
        self.line: LiveLine | None = None
        if not shown:
            return
        self.line = LiveLine()
        if in_notebook():
            display = import_module("IPython.display").display
            self.handle = display(NotebookHtml(self._html(0, "preparing")), display_id=True)

    def __enter__(self) -> Self:
        if self.line is not None and self.handle is None:
            self.line.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.handle is not None:
            self.handle.update(NotebookHtml(""))
        elif self.line is not None:
            self.line.__exit__(*error)

    def update(self, done: int, note: str = "") -> None:
        """Show that so much is done."""
        if self.line is None:
            return
        note = f"{note}{self.line.left(done, self.total - done)}"
        if self.handle is not None:
            self.handle.update(NotebookHtml(self._html(done, note)))
        else:
            full = round(_BAR_CELLS * done / max(1, self.total))
            bar = f"[{'#' * full}{'.' * (_BAR_CELLS - full)}]"
            text = f"{bar} {done}/{self.total} {self.unit}  {note}"
            width = shutil.get_terminal_size().columns - 1
            self.line.show(text[:width] if self.line.live else text, force=done == self.total)

    def on_round(self, record: RoundRecord) -> None:
        """Show a finished round of a run."""
        from flamma.types import ACCURACY_SCORE

        score = record.metric("accuracy")
        kind = ACCURACY_SCORE if record.evaluation is None else record.evaluation.score_kind
        self.update(record.round, "" if score is None else f"{kind.name} {kind.text(score)}")

    def on_progress(self, progress: Progress) -> None:
        """Show how far many runs are."""
        self.total = progress.rounds
        runs = f"{progress.runs_done} of {progress.runs} runs"
        self.update(progress.rounds_done, f"{runs} ({progress.latest})")

    def _html(self, done: int, note: str) -> str:
        return (
            f'<progress max="{self.total}" value="{done}"></progress> {done}/{self.total} '
            f"{self.unit} {html.escape(note)}"
        )


class NotebookHtml:
    """What a notebook shows as HTML; elsewhere it is its plain text."""

    def __init__(self, text: str, plain: str = "") -> None:
        self.text = text
        self.plain = plain

    def _repr_html_(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.plain
