"""The display of a run as it goes: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self, TextIO


class RoundDisplay:
    """Shows every finished round on standard error: γ, epochs, accuracy, variance, time left."""

    def __init__(self, rounds: int, stream: TextIO | None = None) -> None:
        self.rounds = rounds
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.started = time.monotonic()
        self.first: int | None = None
        if self.live:
            self._show("preparing")

    def __call__(self, record: dict[str, Any]) -> None:
        """Show one finished round."""
        number = record["round"]
        if self.first is None:
            self.first = number - 1
        pace = (time.monotonic() - self.started) / (number - self.first)
        self._show(
            f"{describe(record, self.rounds)}  {duration(pace * (self.rounds - number))} left"
        )

    def _show(self, text: str) -> None:
        self.stream.write(f"\r{text}\x1b[K" if self.live else f"{text}\n")
        self.stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.live:
            self.stream.write("\r\x1b[K" if error is None else "\n")
            self.stream.flush()


def describe(record: dict[str, Any], rounds: int) -> str:
    """Return one line on a finished round.

    Examples
    --------
    >>> record = {"round": 3, "decay_factor": 0.5, "selected": [1, 2], "local_epochs": [4, 5],
    ...     "failed": {}, "abstained": [], "accuracy": 71.25, "accuracy_variance": 605.2}
    >>> describe(record, 10)
    'round  3/10  γ 0.500  epochs 4.5  accuracy 71.2%  variance 605.2'
    """
    epochs = record["local_epochs"]
    mean = sum(epochs) / len(epochs) if epochs else 0.0
    parts = [
        f"round {record['round']:>{len(str(rounds))}}/{rounds}",
        f"γ {record['decay_factor']:.3f}",
        f"epochs {mean:.1f}",
    ]
    if record["accuracy"] is not None:
        parts.append(f"accuracy {record['accuracy']:.1f}%")
        parts.append(f"variance {record['accuracy_variance']:.1f}")
    if record["failed"]:
        parts.append(f"{len(record['failed'])} failed")
    if record["abstained"]:
        parts.append(f"{len(record['abstained'])} abstained")
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
