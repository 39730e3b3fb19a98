"""What goes wrong with clients: some are away, some are late, some fail.

A client's luck depends on the seed, the round and its own number, never on who else is there or
selected. It is one uniform number held against the probability, so a client that is away at a
low dropout is away at every higher one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import ConfigError
from flamma.seeding import stream
from flamma.types import Floats, Ints

Flags = NDArray[np.bool_]

SIMULATED_LATE = "late (simulated)"
"""Why a client gives no answer that was too late by simulated faults or the virtual clock."""


@dataclass(frozen=True)
class Faults:
    """How likely each mishap is, for every client and in every round alike.

    Each probability lies in [0, 1).

    Parameters
    ----------
    dropout : float
        The probability that a client is away and cannot be selected.
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
    flamma.errors.ConfigError: dropout must be a probability in [0, 1), not 1.0.
    """

    dropout: float = 0.0
    stragglers: float = 0.0
    failures: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or math.isnan(value) or not 0 <= value < 1:
                raise ConfigError(f"{field.name} must be a probability in [0, 1), not {value!r}.")

    def available(self, seed: int, round: int, clients: int) -> Flags:  # noqa: A002
        """Return which of all clients can be selected this round; at least one always can.

        If no client would be left, the one that came nearest stays.
        """
        luck = _luck(seed, "availability", round, clients)
        present: Flags = luck >= self.dropout
        if clients > 0 and not present.any():
            present[np.argmax(luck)] = True
        return present

    def late(self, seed: int, round: int, clients_selected: ArrayLike) -> Flags:  # noqa: A002
        """Return which of the selected clients, given by number, are too late."""
        return _struck(seed, "stragglers", round, clients_selected, self.stragglers)

    def fails(self, seed: int, round: int, clients_selected: ArrayLike) -> Flags:  # noqa: A002
        """Return which of the selected clients, given by number, fail."""
        return _struck(seed, "failures", round, clients_selected, self.failures)

    def strike(self, seed: int, round: int, selected: Sequence[int]) -> dict[int, str]:  # noqa: A002
        """Return which of the selected clients give no answer, and why."""
        who: Ints = np.array(selected, dtype=np.int64)
        late, fails = self.late(seed, round, who), self.fails(seed, round, who)
        return {
            int(client): SIMULATED_LATE if is_late else "failed (simulated)"
            for client, is_late, is_broken in zip(who, late, fails, strict=True)
            if is_late or is_broken
        }


def _struck(seed: int, purpose: str, number: int, clients: ArrayLike, share: float) -> Flags:
    who: Ints = np.asarray(clients, dtype=np.int64).reshape(-1)
    if who.size and who.min() < 0:
        raise ValueError(f"clients are numbered from 0, but {who.min()} was selected.")
    if share == 0 or who.size == 0:
        return np.zeros(who.size, dtype=np.bool_)
    struck: Flags = _luck(seed, purpose, number, int(who.max()) + 1)[who] < share
    return struck


def _luck(seed: int, purpose: str, number: int, clients: int) -> Floats:
    """Return one uniform number in [0, 1) per client.

    A stream gives the same first numbers however many are drawn, so client i's is the same
    whatever the length.
    """
    return stream(seed, purpose, number).random(clients)
