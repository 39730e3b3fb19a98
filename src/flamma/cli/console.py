"""Standard output and standard error that may lose their reader without ending the work."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar, cast
from unicodedata import east_asian_width

from flamma.io import JsonTable

if TYPE_CHECKING:
    from flamma.experiments.jobs import Progress
    from flamma.records import RoundRecord


class _ReaderMayLeave:
    """A stream that goes on into nothing once its reader, such as ``head``, has seen enough."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, or nothing if nobody reads any more."""
        with self._reader_may_leave():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        with self._reader_may_leave():
            self._stream.flush()

    @contextlib.contextmanager
    def _reader_may_leave(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            try:
                # What is still in the buffer goes there too, also when Python flushes at its exit.
                os.dup2(null, self._stream.fileno())
            finally:
                os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """Let a closed pipe end neither the work nor, with its traceback, the patience of a user."""
    out = cast(TextIO, _ReaderMayLeave(sys.stdout))
    error = cast(TextIO, _ReaderMayLeave(sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            yield
        finally:
            out.flush()


def print_json(record: JsonTable, indent: int | None = 2) -> None:
    """Print a record as JSON."""
    print(json.dumps(record, indent=indent, allow_nan=False))


# What Ctrl-C tells: the command that goes on with the work.


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a command that can be gone on with; the text says how."""


@contextlib.contextmanager
def resume_hint(how: str | Callable[[], str]) -> Iterator[None]:
    """Say after Ctrl-C how to go on with what happens inside; a function is asked at that time."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(how if isinstance(how, str) else how()) from None


def same_command(options: argparse.Namespace) -> str:
    """Return the sentence that says that the same command goes on, with that command."""
    return f"the same command goes on: {_command(*getattr(options, 'arguments', ()))}"


def resuming(folder: Path, options: argparse.Namespace) -> Callable[[], str]:
    """Return a function that says how to go on with a run: anew if it has not begun."""

    def how() -> str:
        from flamma.experiments.folder import RunFolder

        if not RunFolder(folder).exists:
            again = _command(*getattr(options, "arguments", ()))
            return f"nothing was written yet; the same command starts again: {again}"
        data = getattr(options, "data_dir", None)
        where = () if data is None else ("--data-dir", str(data))
        return f"go on with: {_command('resume', str(folder), *where)}"

    return how


def _command(*words: str) -> str:
    """Return a command as one types it.

    Examples
    --------
    >>> _command("resume", "runs/my first")
    "flamma resume 'runs/my first'"
    """
    return shlex.join(["flamma", *words])


# Progress: one live line on a terminal, plain lines elsewhere.

_Item = TypeVar("_Item")
_CLEAR = "\r\x1b[K"
_QUIET_SECONDS = 2.0
"""Seconds that pass before anything is shown of a short piece of work."""

_USUAL_COLUMNS, _WIDEST_TERMINAL = 80, 100_000
"""The width of a terminal that does not tell it, and the largest that is believed."""


class Verbosity(IntEnum):
    """How much is said of work while it goes on."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


def verbosity(options: argparse.Namespace) -> Verbosity:
    """Return what ``-q`` and ``-v`` ask for."""
    if getattr(options, "quiet", False):
        return Verbosity.QUIET
    return Verbosity.VERBOSE if getattr(options, "verbose", False) else Verbosity.NORMAL


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
            self.write(_CLEAR if kind is None else "\n")


class RoundDisplay(LiveLine):
    """Shows every finished round of a run: γ, epochs, accuracy, variance, time left."""

    def __init__(self, rounds: int, folder: Path, verbosity: Verbosity = Verbosity.NORMAL) -> None:
        super().__init__(verbosity=verbosity)
        self.rounds = rounds
        self.folder = folder
        if self.live:
            self.show("preparing")

    def __call__(self, record: RoundRecord) -> None:
        """Show one finished round."""
        number = record.round
        if self.first is None:  # so that a user who interrupts it knows what to resume
            self.write(f"{_CLEAR if self.live else ''}run directory {self.folder}\n")
        left = self.left(number, self.rounds - number)
        whole = _round_line(record, self.rounds)
        head, *others = whole.split("  ")
        name = "" if record.evaluation is None else record.evaluation.score_kind.name
        score = "".join(f"  {part}" for part in others if name and part.startswith(f"{name} "))
        shorter = (f"{head}{score}{left}", f"{head}{left}", head)
        self.show(f"{whole}{left}", *shorter, force=number == self.rounds)

    def notice(self, text: str) -> None:
        """Say a sentence on a line of its own, above the one that is kept up to date."""
        self.write(f"{_CLEAR if self.live else ''}flamma: {text}\n")


class ManyRunsDisplay(LiveLine):
    """Shows how far many runs are, and the time left."""

    def __init__(self, verbosity: Verbosity = Verbosity.NORMAL) -> None:
        super().__init__(10.0, verbosity)

    def __call__(self, progress: Progress) -> None:
        """Show how far they are."""
        left = self.left(progress.rounds_done, progress.rounds - progress.rounds_done)
        runs = f"{progress.runs_done} of {progress.runs} runs"
        share = f"{100 * progress.rounds_done / progress.rounds:.0f}%"
        self.show(
            f"{runs}, {share} of the rounds{left}  ({progress.latest})",
            f"{runs}, {share} of the rounds{left}",
            f"{runs}, {share}{left}",
            f"{share}{left}",
            share,
            force=progress.runs_done == progress.runs,
        )


def _terminal_width(stream: TextIO) -> int:
    """Return how many columns the terminal of a stream has, ``COLUMNS`` if that is set."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and 0 < int(told) < _WIDEST_TERMINAL:
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):
        return _USUAL_COLUMNS


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


def _columns(text: str) -> int:
    """Return how many columns a terminal needs for a text; some characters are twice as wide."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def progress(
    items: Sequence[_Item], doing: str, verbosity: Verbosity = Verbosity.NORMAL
) -> Iterator[_Item]:
    """Yield the items; after two seconds show how many are done and the time left."""
    with LiveLine(10.0, verbosity) as line:
        for done, item in enumerate(items):
            if time.monotonic() - line.started > _QUIET_SECONDS:
                left = line.left(done, len(items) - done)
                amount = f"{done} of {len(items)}"
                line.show(f"{doing}: {amount}{left}", f"{amount}{left}", amount)
            yield item


def _round_line(record: RoundRecord, rounds: int) -> str:
    """Return one line on a finished round.

    Examples
    --------
    >>> from flamma.records import Evaluation, OfferRecord, Outcomes, RoundRecord
    >>> outcome = Outcomes((), {}, (4, 5), epochs_total=9)
    >>> scores = Evaluation({"accuracy": 71.25, "accuracy_variance": 605.2})
    >>> record = RoundRecord(3, (1, 2), OfferRecord(0.5), outcome, evaluation=scores)
    >>> _round_line(record, 10)
    'round  3/10  γ 0.500  epochs 4.5  accuracy 71.2%  variance 605.2'
    """
    epochs = record.outcome.local_epochs
    mean = sum(epochs) / len(epochs) if epochs else 0.0
    parts = [
        f"round {record.round:>{len(str(rounds))}}/{rounds}",
        f"γ {record.offer.decay_factor:.3f}",
        f"epochs {mean:.1f}",
    ]
    score, variance = record.metric("accuracy"), record.metric("accuracy_variance")
    if record.evaluation is not None and score is not None:
        kind = record.evaluation.score_kind
        parts.append(f"{kind.name} {kind.text(score)}")
        if variance is not None:
            parts.append(f"variance {variance:.{'3g' if kind.lower_is_better else '1f'}}")
    if record.evaluation is not None and record.evaluation.sample is not None:
        parts.append(f"of {record.evaluation.sample:,} sampled clients")
    if record.evaluation is not None and record.evaluation.personal:
        parts.append("own models")
    if record.survey is not None:
        parts.append(f"{record.survey.asked:,} surveyed")
    if record.outcome.failed:
        parts.append(f"{len(record.outcome.failed)} failed")
    if record.outcome.abstained:
        parts.append(f"{len(record.outcome.abstained)} abstained")
    if record.evaluation is not None and record.evaluation.unscored:
        parts.append(f"{len(record.evaluation.unscored)} unscored")
    return "  ".join(parts)


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
