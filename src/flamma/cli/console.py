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
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from flamma.experiments.progress_bar import CLEAR_LINE, LiveLine, Verbosity
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
_QUIET_SECONDS = 2.0
"""Seconds that pass before anything is shown of a short piece of work."""


def verbosity(options: argparse.Namespace) -> Verbosity:
    """Return what ``-q`` and ``-v`` ask for."""
    if getattr(options, "quiet", False):
        return Verbosity.QUIET
    return Verbosity.VERBOSE if getattr(options, "verbose", False) else Verbosity.NORMAL


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
            self.write(f"{CLEAR_LINE if self.live else ''}run directory {self.folder}\n")
        left = self.left(number, self.rounds - number)
        whole = _round_line(record, self.rounds)
        head, *others = whole.split("  ")
        name = "" if record.evaluation is None else record.evaluation.score_kind.name
        score = "".join(f"  {part}" for part in others if name and part.startswith(f"{name} "))
        shorter = (f"{head}{score}{left}", f"{head}{left}", head)
        self.show(f"{whole}{left}", *shorter, force=number == self.rounds)

    def notice(self, text: str) -> None:
        """Say a sentence on a line of its own, above the one that is kept up to date."""
        self.write(f"{CLEAR_LINE if self.live else ''}flamma: {text}\n")


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
