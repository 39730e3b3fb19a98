"""The server's memory of what every client last sent, shared by the strategies that have one.

Of *updates*, the memory is that of MIFA (Gu et al., "Fast federated learning in the presence of
arbitrary device unavailability", NeurIPS 2021) and FedVARP (Jhunjhunwala et al., UAI 2022): the
server repeats every client's last update until a new one comes. With few clients a round that
overshoots, since an update answers a model that is gone. Of *models*, it is the mean of the models
that clients last sent: the nearer the global model has come to one of them, the less it still
pulls. Either may fade with every round of age.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from flamma.errors import StrategyError
from flamma.strategies.base import State, data_shares, weighted_mean
from flamma.types import Floats, Ints, Params, Report

Remembered = Literal["models", "updates"]


@dataclass(frozen=True, eq=False)
class Remembering(State):
    """A state with what every client last sent and the round of it (-1: never heard from).

    ``kept`` has a row per client: its model, or how it differed from the one it was sent.
    """

    trainable_size: int
    kept: Params
    heard: Ints


class Recalled(NamedTuple):
    """The weights that all that is remembered leads to, and the memory with this round's."""

    params: Params
    kept: Params
    heard: Ints


def check_fading(fading: float) -> None:
    """Refuse a factor by which nothing can fade."""
    if not 0 <= fading <= 1:
        raise StrategyError(f"memory must lie in [0, 1], not {fading:g}.")


def empty_memory(clients: int, size: int) -> tuple[Params, Ints]:
    """Return the rows and rounds of a server that has not heard from anybody."""
    return np.zeros((clients, size), dtype=np.float32), np.full(clients, -1)


def recall(
    state: Remembering,
    accepted: Sequence[Report],
    number: int,
    *,
    fading: float,
    remember: Remembered,
    weights: Floats | None = None,
) -> Recalled:
    """Return where the clients heard from lead to, the older their word the less.

    With q_i in proportion to the weights (by default the data sizes), it is w + Σ q_i m^(age_i) u_i
    of updates u, and Σ q_i m^(age_i) w_i / Σ q_i m^(age_i) of models w_i. What is not trained, such
    as a running variance, is the mean of this round's reports: an old difference could take it
    below zero.
    """
    kept, heard = state.kept.copy(), state.heard.copy()
    for report in accepted:
        assert report.params is not None
        sent = report.params
        kept[report.client] = sent if remember == "models" else sent - state.params
        heard[report.client] = number
    known = np.flatnonzero(heard >= 0)
    weighing = state.samples[known] if weights is None else weights[known]
    faded = weighing / np.sum(weighing) * fading ** (number - heard[known]).astype(np.float64)
    if remember == "models":
        params = (faded / np.sum(faded)) @ kept[known].astype(np.float64)
    else:
        params = state.params + faded @ kept[known].astype(np.float64)
    params = params.astype(np.float32)
    carried = slice(state.trainable_size, None)
    params[carried] = weighted_mean(accepted, data_shares(accepted))[carried]
    return Recalled(params, kept, heard)
