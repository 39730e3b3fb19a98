"""What a site does at most for one order of the server, whatever the order says."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flamma.errors import DataError
from flamma.types import LocalTask

MOST_EPOCHS_OF_ORDER = 1000.0
"""The epochs that a site does at most for an order if its file says nothing."""


class OverLimitError(DataError):
    """An order is more than the site does; the message says what was asked for."""


@dataclass(frozen=True)
class SiteLimits:
    """The table ``[limits]`` of a ``site.toml``, for one order each.

    Parameters
    ----------
    epochs : float
        The most epochs over the site's data, those for a model of its own included; mini-batches
        of a warm-up count as the part of an epoch that they are.
    seconds : float
        The longest that training may take; 0 for no limit.
    bytes : int
        The most bytes that the weights of an order may take; 0 for no limit.

    Raises
    ------
    DataError
        If a limit cannot work.
    """

    epochs: float = MOST_EPOCHS_OF_ORDER
    seconds: float = 0.0
    bytes: int = 0

    def __post_init__(self) -> None:
        if not self.epochs > 0:
            raise DataError(f"limits.epochs must be above 0, not {self.epochs:g}.")
        for name in ("seconds", "bytes"):
            if not getattr(self, name) >= 0:
                raise DataError(f"limits.{name} must be at least 0, not {getattr(self, name)}.")

    def check_epochs(self, epochs: float) -> None:
        """Refuse an order of more epochs.

        Raises
        ------
        OverLimitError
            With both numbers.
        """
        if epochs > self.epochs:
            raise OverLimitError(
                f"the order is for {epochs:g} epochs, and this site does at most {self.epochs:g}"
            )

    def check_bytes(self, size: int) -> None:
        """Refuse an order of more bytes.

        Raises
        ------
        OverLimitError
            With both numbers.
        """
        if 0 < self.bytes < size:
            raise OverLimitError(
                f"the order has weights of {size:,} bytes, and this site takes at most "
                f"{self.bytes:,}"
            )

    def time_limit(self, other: float | None) -> float | None:
        """Return the shorter of this limit and another one; None if there is neither.

        Examples
        --------
        >>> SiteLimits(seconds=60.0).time_limit(None), SiteLimits(seconds=60.0).time_limit(20.0)
        (60.0, 20.0)
        """
        limits = [limit for limit in (self.seconds, other) if limit]
        return min(limits) if limits else None


UNLIMITED = SiteLimits(epochs=math.inf)
"""The limits of a simulated client."""


def epochs_of(task: LocalTask, samples: int, batch_size: int) -> float:
    """Return the epochs of a task over so many samples; mini-batches are a part of one.

    Examples
    --------
    >>> epochs_of(LocalTask(0, round=0, epochs=0, learning_rate=0.1, iterations=5), 100, 10)
    0.5
    """
    if task.iterations is None:
        return task.epochs
    return task.iterations / max(1, math.ceil(samples / batch_size))
