"""Simulated faults and virtual time: clients that are unavailable, late or fail.

A client's faults depend on the seed, the round and its number, never on other clients. One uniform
draw is compared with the probability, so failures are nested across rates (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.clients.costs import SPEEDS
from flamma.errors import ConfigError, Key
from flamma.io import JsonTable
from flamma.registry import Between, CheckedOptions, Choice, above
from flamma.seeding import stream
from flamma.types import Floats, Ints, LocalWork, Terms

_Flags = NDArray[np.bool_]

_SIMULATED_LATE = "late (simulated)"
"""The failure of a client that is too late by simulated faults or the virtual clock."""


@dataclass(frozen=True)
class Faults(CheckedOptions, within="faults."):
    """Probabilities of faults, the same for every client and round.

    Each probability lies in [0, 1).

    Parameters
    ----------
    dropout : float
        The probability that a client is unavailable and cannot be selected.
    stragglers : float
        The probability that a selected client is too late.
    failures : float
        The probability that a selected client fails and returns nothing.

    Raises
    ------
    ConfigError
        If a probability lies outside.

    Examples
    --------
    >>> Faults(dropout=0.5).available(seed=0, round=1, clients=4).any()
    np.True_
    >>> Faults(dropout=1.0)
    Traceback (most recent call last):
    ...
    flamma.errors.ConfigError: faults.dropout must lie in [0, 1), not 1.
    """

    dropout: Annotated[float, Between(0, 1, without="high")] = 0.0
    stragglers: Annotated[float, Between(0, 1, without="high")] = 0.0
    failures: Annotated[float, Between(0, 1, without="high")] = 0.0

    def available(self, seed: int, round: int, clients: int) -> _Flags:
        """Return which of all clients can be selected this round; at least one always can.

        If no client would be left, the one with the largest draw stays.
        """
        luck = _luck(seed, "availability", round, clients)
        present: _Flags = luck >= self.dropout
        if clients > 0 and not present.any():
            present[np.argmax(luck)] = True
        return present

    def late(self, seed: int, round: int, clients_selected: ArrayLike) -> _Flags:
        """Return which of the selected clients, given by number, are too late."""
        return _fail(seed, "stragglers", round, clients_selected, self.stragglers)

    def fails(self, seed: int, round: int, clients_selected: ArrayLike) -> _Flags:
        """Return which of the selected clients, given by number, fail."""
        return _fail(seed, "failures", round, clients_selected, self.failures)

    def simulated_failures(self, seed: int, round: int, selected: Sequence[int]) -> dict[int, str]:
        """Return the selected clients that do not respond, with the reasons."""
        who: Ints = np.array(selected, dtype=np.int64)
        late, fails = self.late(seed, round, who), self.fails(seed, round, who)
        return {
            int(client): _SIMULATED_LATE if is_late else "failed (simulated)"
            for client, is_late, is_broken in zip(who, late, fails, strict=True)
            if is_late or is_broken
        }


def _fail(seed: int, purpose: str, number: int, clients: ArrayLike, share: float) -> _Flags:
    who: Ints = np.asarray(clients, dtype=np.int64).reshape(-1)
    if who.size and who.min() < 0:
        raise ValueError(f"clients are numbered from 0, but {who.min()} was selected.")
    if share == 0 or who.size == 0:
        return np.zeros(who.size, dtype=np.bool_)
    failed: _Flags = _luck(seed, purpose, number, int(who.max()) + 1)[who] < share
    return failed


def _luck(seed: int, purpose: str, number: int, clients: int) -> Floats:
    """Return one uniform number in [0, 1) per client.

    A stream gives the same first numbers however many are drawn, so client i's is the same
    whatever the length.
    """
    return stream(seed, purpose, number).random(clients)


# A virtual clock: the simulated seconds of a client's work, and late clients.
#
# A client takes epochs x samples x its seconds per sample to train, and bytes / bandwidth to
# receive and to send weights. Nothing waits for this time: it is computed, so it is the same on
# every machine.

_FORWARD_SHARE = 1 / 3
"""The work of a sample that is only evaluated: without the backward pass, about twice as long."""


@dataclass(frozen=True)
class ClockConfig(CheckedOptions, within="clock."):
    """The speed of clients in virtual time, and the deadline.

    Parameters
    ----------
    speeds : name or table
        The seconds of each client for a sample, a name of ``flamma list``; a table gives its
        options too. Without it there is no clock.
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
    bandwidth: Annotated[float | None, above(0)] = None
    deadline: Annotated[float | None, above(0)] = None
    target_accuracy: float | None = None
    target_variance: Annotated[float | None, above(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.speeds is None and self.as_table():
            raise ConfigError(
                Key("clock.speeds"),
                " is missing, without which there is no clock: set it to constant, lognormal, "
                "list, csv or measured.",
            )
        if self.target_variance is not None and self.target_accuracy is None:
            raise ConfigError(
                Key("clock.target_variance"),
                " counts from a target accuracy on: set ",
                Key("clock.target_accuracy"),
                " too.",
            )

    @property
    def is_on(self) -> bool:
        """Whether there is a virtual clock."""
        return self.speeds is not None

    @property
    def targets(self) -> dict[str, float]:
        """The targets of metrics, by name."""
        wanted = {"accuracy": self.target_accuracy, "accuracy_variance": self.target_variance}
        return {name: value for name, value in wanted.items() if value is not None}

    def as_table(self) -> JsonTable:
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
    """The virtual seconds of clients' work.

    Attributes
    ----------
    speeds : ndarray
        Each client's seconds per sample.
    samples : ndarray
        The training samples that each client has.
    batch_size : int
        Of every client.
    tasks_of : callable
        Returns the work of a client for its terms, including training of its local model.
    bandwidth : float
        Bytes per second.
    deadline : float
        Seconds after which a client is late.
    """

    speeds: Floats
    samples: Ints
    batch_size: int
    tasks_of: Callable[[Terms], Sequence[LocalWork]]
    bandwidth: float = math.inf
    deadline: float = math.inf

    def seconds(self, terms: Terms, traffic: Traffic) -> float:
        """Return the seconds of a client for its terms, regardless of the deadline."""
        tasks = self.tasks_of(terms)
        trained = sum(map(self._samples, tasks))
        sends = any(task.terms.train and not task.abstains for task in tasks)
        sent = traffic.down + (traffic.up if sends else 0)
        return float(self.speeds[terms.client]) * trained + sent / self.bandwidth

    def waited(self, terms: Terms, traffic: Traffic) -> float:
        """Return how long the server waits for a client: no longer than until the deadline."""
        return min(self.seconds(terms, traffic), self.deadline)

    def late(self, terms: Sequence[Terms], traffic: Traffic) -> dict[int, str]:
        """Return the clients that miss the deadline, with that as the reason."""
        if math.isinf(self.deadline):
            return {}
        return {
            t.client: _SIMULATED_LATE for t in terms if self.seconds(t, traffic) > self.deadline
        }

    def round_seconds(
        self, terms: Sequence[Terms], failures: Mapping[int, str], traffic: Traffic
    ) -> float:
        """Return how long a round takes: until the slowest client has answered, or the deadline.

        Of the simulated ``failures``, late clients are waited for if there is a deadline.
        """
        waits = [self.waited(t, traffic) for t in terms if t.client not in failures]
        if math.isfinite(self.deadline) and _SIMULATED_LATE in failures.values():
            waits.append(self.deadline)
        return max(waits, default=0.0)

    def _samples(self, task: LocalWork) -> float:
        """Return how many samples a task goes through, one that only evaluates at its share."""
        own = task.data.samples_of(int(self.samples[task.owner]))
        if not task.terms.train:
            return own * _FORWARD_SHARE
        if task.terms.batches is None:
            return float(task.epochs * own)
        return float(task.terms.batches * min(self.batch_size, own))
