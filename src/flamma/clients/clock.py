"""A virtual clock: what a client's work takes in simulated seconds, and who is late.

A client takes epochs x samples x its seconds per sample to train, and bytes / bandwidth to receive
and to send weights. Nothing waits for this time: it is computed, so it is the same on every
machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple

from flamma.clients.faults import SIMULATED_LATE
from flamma.clients.speeds import SPEEDS
from flamma.errors import ConfigError
from flamma.registry import Choice
from flamma.types import Floats, Ints, LocalTask, Terms

FORWARD_SHARE = 1 / 3
"""What a sample takes that is only evaluated: there is no backward pass, about twice as long."""


@dataclass(frozen=True)
class ClockConfig:
    """How fast clients are in virtual time, and by when they must have answered.

    Parameters
    ----------
    speeds : name or table
        How many seconds each client takes for a sample, a name of ``flamma list``; a table gives
        its options too. Without it there is no clock.
    bandwidth : float
        Bytes of weights per second between the server and a client, each way; they take no time
        if left out.
    deadline : float
        Virtual seconds after which a client is late and its update is not used, as one of
        ``faults.stragglers``; clients have all the time they need if left out.
    target_accuracy : float
        The mean accuracy, in percent, that the time to accuracy is measured to.
    target_variance : float
        The variance of the clients' accuracies that the time to fairness is measured to; it counts
        from the target accuracy on, since a model that is bad for all clients has little.
    """

    speeds: Annotated[Choice | None, SPEEDS] = None
    bandwidth: float | None = None
    deadline: float | None = None
    target_accuracy: float | None = None
    target_variance: float | None = None

    def __post_init__(self) -> None:
        if self.speeds is None and self.as_table():
            raise ConfigError(
                "clock.speeds is missing, without which there is no clock: set it to constant, "
                "lognormal, list, csv or measured."
            )
        for name in ("bandwidth", "deadline", "target_variance"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"clock.{name} must be above 0, not {value:g}.")
        if self.target_variance is not None and self.target_accuracy is None:
            raise ConfigError(
                "clock.target_variance counts from a target accuracy on: set "
                "clock.target_accuracy too."
            )

    @property
    def is_on(self) -> bool:
        """Whether there is a virtual clock."""
        return self.speeds is not None

    @property
    def targets(self) -> dict[str, float]:
        """What metrics are to reach, by the names of the metrics."""
        wanted = {"accuracy": self.target_accuracy, "accuracy_variance": self.target_variance}
        return {name: value for name, value in wanted.items() if value is not None}

    def as_table(self) -> dict[str, Any]:
        """Return the keys that are set, as a configuration writes them."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: value.as_value() if isinstance(value, Choice) else value
            for name, value in values.items()
            if value is not None
        }


class Traffic(NamedTuple):
    """The bytes of weights that one client receives, and those that it sends back."""

    down: int
    up: int


@dataclass(frozen=True, eq=False)
class VirtualClock:
    """What clients' work takes in virtual seconds.

    Attributes
    ----------
    speeds : ndarray
        Each client's seconds per sample.
    samples : ndarray
        The training samples that each client has.
    batch_size : int
        Of every client.
    tasks_of : callable
        Returns what a client does for its terms, what it trains for itself included.
    bandwidth : float
        Bytes per second.
    deadline : float
        Seconds after which a client is late.
    """

    speeds: Floats
    samples: Ints
    batch_size: int
    tasks_of: Callable[[Terms], Sequence[LocalTask]]
    bandwidth: float = math.inf
    deadline: float = math.inf

    def seconds(self, terms: Terms, traffic: Traffic) -> float:
        """Return what a client takes for its terms, however late that makes it."""
        tasks = self.tasks_of(terms)
        trained = sum(map(self._samples, tasks))
        sends = any(not task.evaluates and not task.abstains for task in tasks)
        sent = traffic.down + (traffic.up if sends else 0)
        return float(self.speeds[terms.client]) * trained + sent / self.bandwidth

    def waited(self, terms: Terms, traffic: Traffic) -> float:
        """Return how long the server waits for a client: no longer than until the deadline."""
        return min(self.seconds(terms, traffic), self.deadline)

    def late(self, terms: Sequence[Terms], traffic: Traffic) -> dict[int, str]:
        """Return which clients miss the deadline, and that as the reason why they give nothing."""
        if math.isinf(self.deadline):
            return {}
        return {t.client: SIMULATED_LATE for t in terms if self.seconds(t, traffic) > self.deadline}

    def round_seconds(
        self, terms: Sequence[Terms], struck: Mapping[int, str], traffic: Traffic
    ) -> float:
        """Return how long a round takes: until the slowest client has answered, or the deadline.

        A client that simulated faults have ``struck`` is waited for if it is late and there is a
        deadline.
        """
        waits = [self.waited(t, traffic) for t in terms if t.client not in struck]
        if math.isfinite(self.deadline) and SIMULATED_LATE in struck.values():
            waits.append(self.deadline)
        return max(waits, default=0.0)

    def _samples(self, task: LocalTask) -> float:
        """Return how many samples a task goes through, one that only evaluates at its share."""
        own = task.data.samples_of(int(self.samples[task.owner]))
        if task.evaluates:
            return own * FORWARD_SHARE
        if task.iterations is None:
            return float(task.epochs * own)
        return float(task.iterations * min(self.batch_size, own))
