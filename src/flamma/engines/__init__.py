"""Where clients run: one contract, kept by every engine."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from flamma.types import Layout, LocalTask, Params, Report, Scores


class Engine(Protocol):
    """What the round loop needs of the place where clients run.

    The result of a call depends on its arguments and the engine's seed only: not on what ran
    before, on how many processes there are, or on who finished first.
    """

    @property
    def layout(self) -> Layout:
        """What the flat vector of weights is made of."""
        ...

    @property
    def initial_params(self) -> Params:
        """The weights before the first round."""
        ...

    def train(self, params: Params, tasks: Sequence[LocalTask]) -> list[Report]:
        """Return a report for every task, in the order of the tasks.

        What goes wrong at a client is its report's ``failure``, never an exception.
        """
        ...

    def evaluate(self, params: Params) -> Scores:
        """Return how good the weights are for every client and on the common test set."""
        ...

    def validate(self, params: Params) -> tuple[float, float]:
        """Return the loss and the accuracy in percent on the server's own validation set."""
        ...

    def close(self) -> None:
        """Give back what the engine holds: processes, memory, connections."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
