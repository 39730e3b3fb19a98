"""Progress: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from flamma.experiments.jobs import Progress
    from flamma.records import RoundRecord

Item = TypeVar("Item")
CLEAR = "\r\x1b[K"
QUIET_SECONDS = 2.0
"""Seconds that pass before anything is shown of a short piece of work."""


class LiveLine:
    """A line on standard error that is kept up to date; a context manager that clears it.

    Elsewhere than on a terminal every text is a line of its own, at most one in ``pause``
    seconds.
    """

    def __init__(self, pause: float = 0.0) -> None:
        self.stream = sys.stderr
        self.live = self.stream.isatty()
        self.pause = 0.1 if self.live else pause
        self.started = time.monotonic()
        self.last = -float("inf")
        self.first: tuple[float, int] | None = None

    def show(self, text: str, force: bool = False) -> None:
        """Show a text, unless the last one was shown just now."""
        now = time.monotonic()
        if not force and now - self.last < self.pause:
            return
        self.last = now
        self.stream.write(f"\r{text}\x1b[K" if self.live else f"{text}\n")
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
            self.stream.write(CLEAR if kind is None else "\n")
            self.stream.flush()


class RoundDisplay(LiveLine):
    """Shows every finished round of a run: γ, epochs, accuracy, variance, time left."""

    def __init__(self, rounds: int, folder: Path) -> None:
        super().__init__()
        self.rounds = rounds
        self.folder = folder
        if self.live:
            self.show("preparing")

    def __call__(self, record: RoundRecord) -> None:
        """Show one finished round."""
        number = record.round
        if self.first is None:  # so that a user who interrupts it knows what to resume
            self.stream.write(f"{CLEAR if self.live else ''}run directory {self.folder}\n")
        left = self.left(number, self.rounds - number)
        self.show(f"{round_line(record, self.rounds)}{left}", force=number == self.rounds)


class ManyRunsDisplay(LiveLine):
    """Shows how far many runs are, and the time left."""

    def __init__(self) -> None:
        super().__init__(pause=10.0)

    def __call__(self, progress: Progress) -> None:
        """Show how far they are."""
        left = self.left(progress.rounds_done, progress.rounds - progress.rounds_done)
        self.show(
            f"{progress.runs_done} of {progress.runs} runs, "
            f"{100 * progress.rounds_done / progress.rounds:.0f}% of the rounds{left}  "
            f"({progress.latest})",
            force=progress.runs_done == progress.runs,
        )


def progress(items: Sequence[Item], doing: str) -> Iterator[Item]:
    """Yield the items; after two seconds show how many are done and the time left."""
    with LiveLine(pause=10.0) as line:
        for done, item in enumerate(items):
            if time.monotonic() - line.started > QUIET_SECONDS:
                left = line.left(done, len(items) - done)
                line.show(f"{doing}: {done} of {len(items)}{left}")
            yield item


def round_line(record: RoundRecord, rounds: int) -> str:
    """Return one line on a finished round.

    Examples
    --------
    >>> from flamma.records import Evaluation, RoundRecord
    >>> evaluation = Evaluation({"accuracy": 71.25, "accuracy_variance": 605.2})
    >>> round_line(RoundRecord(3, (1, 2), (), {}, 0.5, (4, 5), None, 9, evaluation), 10)
    'round  3/10  γ 0.500  epochs 4.5  accuracy 71.2%  variance 605.2'
    """
    from flamma.experiments.summary import scored_by

    epochs = record.local_epochs
    mean = sum(epochs) / len(epochs) if epochs else 0.0
    parts = [
        f"round {record.round:>{len(str(rounds))}}/{rounds}",
        f"γ {record.decay_factor:.3f}",
        f"epochs {mean:.1f}",
    ]
    if record.evaluated:
        parts.append(f"{scored_by([record]) or 'accuracy'} {record.metric('accuracy'):.1f}%")
        parts.append(f"variance {record.metric('accuracy_variance'):.1f}")
    if record.evaluation is not None and record.evaluation.sample is not None:
        parts.append(f"of {record.evaluation.sample:,} sampled clients")
    if record.evaluation is not None and record.evaluation.personal:
        parts.append("own models")
    if record.survey is not None:
        parts.append(f"{record.survey.asked:,} surveyed")
    if record.failed:
        parts.append(f"{len(record.failed)} failed")
    if record.abstained:
        parts.append(f"{len(record.abstained)} abstained")
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
