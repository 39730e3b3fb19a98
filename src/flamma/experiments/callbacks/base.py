"""What a callback is, and how one ends a run early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from flamma.errors import RunError
from flamma.records import RoundRecord
from flamma.types import Params

if TYPE_CHECKING:
    from flamma.experiments.config import Config
    from flamma.experiments.run import Run

OnRound = Callable[[RoundRecord], None]
"""Called with the record of every finished round."""


class StopRun(RunError):  # noqa: N818 - a signal, as StopIteration is
    """Raised by a callback that wants the run to end after the round it was told of.

    The message is the reason; it is written down with the run. The run is then finished: its
    weights are those of that round.
    """


@dataclass(frozen=True, eq=False)
class RunStart:
    """What a callback is told before the first round that it will hear of.

    Attributes
    ----------
    config : Config
        What is run.
    path : Path
        The run directory.
    history : tuple of RoundRecord
        The rounds that are done already, where a run goes on; they are not told again.
    weights : callable or None
        Returns the weights after the round that was told last, as a flat vector that is not to be
        changed. None where the rounds happen in another process.
    """

    config: Config
    path: Path
    history: tuple[RoundRecord, ...] = ()
    weights: Callable[[], Params] | None = None


class Callback:
    """What hears of a run; derive from it and define what you need.

    Attributes
    ----------
    name : str
        Its name among :data:`~flamma.experiments.callbacks.CALLBACKS`, if it has one. Those that
        have are written down with the run, and run where its rounds happen.
    essential : bool
        Whether an error of it ends the run. Otherwise a warning tells of the error, and the run
        goes on without the callback.
    """

    name: ClassVar[str] = ""
    essential: ClassVar[bool] = True

    def on_start(self, start: RunStart) -> None:
        """Hear what is run, before the first round.

        An object may serve several runs, one after the other: what it remembers begins here.
        """

    def on_round(self, record: RoundRecord) -> None:
        """Hear of a finished round, once; raise :class:`StopRun` to make it the last one."""

    def on_notice(self, text: str) -> None:
        """Hear, in a sentence, what a run waits for or does by itself; the round goes on."""

    def on_end(self, run: Run) -> None:
        """Hear of the end: of the last round, of a stop, or of an error (``run.finished``)."""


class RoundFunction(Callback):
    """A function that is called with every finished round's record."""

    def __init__(self, function: OnRound) -> None:
        self._function = function

    def on_round(self, record: RoundRecord) -> None:
        """Call the function."""
        self._function(record)


class Notices(Callback):
    """A function that is called with every sentence on what a run waits for."""

    def __init__(self, function: Callable[[str], None]) -> None:
        self._function = function

    def on_notice(self, text: str) -> None:
        """Call the function."""
        self._function(text)
