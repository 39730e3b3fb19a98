"""FLamma-plus: the game of FLamma, with a memory of every client's last update.

Partial participation makes the model swing towards whoever was selected last. Keeping every
client's last update and stepping by all of them, the older the less, removes most of that. The
memory is that of MIFA (Gu et al., NeurIPS 2021) and FedVARP (Jhunjhunwala et al., UAI 2022); its
decay with age is another decay factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal

import numpy as np

from flamma.errors import StrategyError
from flamma.strategies.base import Offer, data_shares, weighted_mean
from flamma.strategies.flamma import Flamma, FlammaState
from flamma.types import Floats, Ints, Params, Population, Report


@dataclass(frozen=True, eq=False)
class MemoryState(FlammaState):
    """Every client's last update, and the round it is of (-1: never heard from)."""

    updates: Params
    heard: Ints


@dataclass(frozen=True)
class FlammaPlus(Flamma):
    """The step is Σ p_i m^(age_i) u_i over all clients heard from, p by data size.

    Parameters
    ----------
    memory : float
        m, the factor by which an update fades with each round of age. With 1 it does not fade.
    """

    name: ClassVar[str] = "flamma-plus"
    summary: ClassVar[str] = "FLamma with a fading memory of every client's last update"

    rotation: float | Literal["gamma"] = 0.5
    memory: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.memory <= 1:
            raise StrategyError(f"memory must lie in [0, 1], not {self.memory:g}.")

    def init(self, params: Params, population: Population) -> MemoryState:
        """Start without having heard from anybody."""
        state = super().init(params, population)
        known = {field.name: getattr(state, field.name) for field in fields(state)}
        n = population.clients
        updates = np.zeros((n, params.size), dtype=np.float32)
        return MemoryState(**known, updates=updates, heard=np.full(n, -1))

    def step(self, state: FlammaState, offer: Offer, accepted: Sequence[Report]) -> MemoryState:
        """Remember this round's updates and step by all that is remembered."""
        assert isinstance(state, MemoryState)
        updates, heard = state.updates.copy(), state.heard.copy()
        for report in accepted:
            assert report.params is not None
            updates[report.client] = report.params - state.params
            heard[report.client] = offer.round
        known = np.flatnonzero(heard >= 0)
        shares = state.samples[known] / np.sum(state.samples[known])
        fading: Floats = self.memory ** (offer.round - heard[known]).astype(np.float64)
        move = (shares * fading) @ updates[known].astype(np.float64)
        target = (state.params + move).astype(np.float32)
        # What is not trained, such as a running variance, must stay a mean of such: an old
        # difference could take it below zero.
        carried = slice(state.trainable_size, None)
        target[carried] = weighted_mean(accepted, data_shares(accepted))[carried]
        params = self.damped(state.params, target, offer)
        return replace(state, params=params, updates=updates, heard=heard)
