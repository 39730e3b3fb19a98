"""The server's memory of what every client last sent, shared by the strategies that have one.

A client received the model r_i and sent w_i back. MIFA (Gu et al., "Fast federated learning in the
presence of arbitrary device unavailability", NeurIPS 2021) and FedVARP (Jhunjhunwala et al., UAI
2022) repeat its update w_i - r_i until a new one comes. With few clients a round that overshoots,
since an update answers a model that is gone. One may as well let w_i itself pull, the less the
nearer the global model has come to it. Here it is w_i - κ r_i - (1 - κ) w: the update at a
*persistence* κ of 1, the pull of its model at 0, and it may fade with every round of age.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import psutil

from flamma.aggregators import AGGREGATORS
from flamma.errors import StrategyError
from flamma.numerics import power, total
from flamma.strategies.base import State, Strategy, data_shares, model_of
from flamma.types import Floats, Ints, Params, Report

ROW_COPIES = 6
"""How many times the rows are in memory while a round is aggregated: what is kept, the next
round's, those heard from, the same in double precision (which counts twice), and a checkpoint."""


@dataclass(frozen=True, eq=False)
class Remembering(State):
    """A state with what every client last sent and the round of it (-1: never heard from).

    ``kept`` has a row per client: w_i - κ r_i.
    """

    trainable_size: int
    kept: Params
    heard: Ints


class Recalled(NamedTuple):
    """The weights that all that is remembered leads to, and the memory with this round's."""

    params: Params
    kept: Params
    heard: Ints


def check_memory(memory: float, persistence: float) -> None:
    """Refuse options that no memory can have."""
    for name, value in (("memory", memory), ("persistence", persistence)):
        if not 0 <= value <= 1:
            raise StrategyError(f"{name} must lie in [0, 1], not {value:g}.")


def empty_memory(clients: int, size: int) -> tuple[Params, Ints]:
    """Return the rows and rounds of a server that has not heard from any client.

    Raises
    ------
    StrategyError
        If this machine has no room for what later rounds will need.
    """
    needed = clients * size * np.float32().nbytes * ROW_COPIES
    free = int(psutil.virtual_memory().available)
    if needed > free:
        raise StrategyError(
            f"remembering {clients:,} clients with {size:,} weights each takes up to "
            f"{needed / 1e9:,.1f} GB, but {free / 1e9:,.1f} GB are free: use fewer clients, a "
            f"smaller model, or a strategy without a memory, such as flamma or fedavg."
        )
    return np.zeros((clients, size), dtype=np.float32), np.full(clients, -1)


def recall(
    strategy: Strategy[Any],
    state: Remembering,
    accepted: Sequence[Report],
    number: int,
    *,
    fading: float,
    persistence: float,
    weights: Floats | None = None,
) -> Recalled:
    """Return w + Σ q_i m^(age_i) (w_i - κ r_i - (1 - κ) w) over all clients heard from.

    q is in proportion to the weights, by default the data sizes. What is not trained, such as a
    running variance, is the mean of this round's reports: an old difference could take it below
    zero.
    """
    kept, heard = state.kept.copy(), state.heard.copy()
    for report in accepted:
        kept[report.client] = model_of(report) - np.float32(persistence) * state.params
        heard[report.client] = number
    known = np.flatnonzero(heard >= 0)
    weighing = state.samples[known] if weights is None else weights[known]
    faded = weighing / total(weighing) * power(fading, number - heard[known])
    stays = np.float64(1 - total(faded) * (1 - persistence))
    combine = AGGREGATORS.bind(strategy.aggregator)
    params = (stays * state.params + combine(kept[known], faded)).astype(np.float32)
    carried = slice(state.trainable_size, None)
    params[carried] = strategy.average(accepted, data_shares(accepted))[carried]
    return Recalled(params, kept, heard)
