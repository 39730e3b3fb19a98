"""The server's memory of every client's last update, shared by the strategies that have one.

The memory is that of MIFA (Gu et al., "Fast federated learning in the presence of arbitrary
device unavailability", NeurIPS 2021) and FedVARP (Jhunjhunwala et al., UAI 2022), which do not
let an update fade; here it may, with every round of age.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flamma.strategies.base import State, data_shares, weighted_mean
from flamma.types import Floats, Ints, Params, Report


@dataclass(frozen=True, eq=False)
class Remembering(State):
    """A state with every client's last update and the round it is of (-1: never heard from)."""

    trainable_size: int
    updates: Params
    heard: Ints


class Recalled(NamedTuple):
    """The weights that all remembered updates lead to, and the memory with this round's."""

    params: Params
    updates: Params
    heard: Ints


def empty_memory(clients: int, size: int) -> tuple[Params, Ints]:
    """Return the updates and rounds of a server that has not heard from anybody."""
    return np.zeros((clients, size), dtype=np.float32), np.full(clients, -1)


def recall(state: Remembering, accepted: Sequence[Report], number: int, fading: float) -> Recalled:
    """Return w + Σ p_i m^(age_i) u_i over all clients heard from, p by data size.

    What is not trained, such as a running variance, is the mean of this round's reports: an old
    difference could take it below zero.
    """
    updates, heard = state.updates.copy(), state.heard.copy()
    for report in accepted:
        assert report.params is not None
        updates[report.client] = report.params - state.params
        heard[report.client] = number
    known = np.flatnonzero(heard >= 0)
    shares = state.samples[known] / np.sum(state.samples[known])
    faded: Floats = fading ** (number - heard[known]).astype(np.float64)
    move = (shares * faded) @ updates[known].astype(np.float64)
    params = (state.params + move).astype(np.float32)
    carried = slice(state.trainable_size, None)
    params[carried] = weighted_mean(accepted, data_shares(accepted))[carried]
    return Recalled(params, updates, heard)
