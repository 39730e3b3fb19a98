"""FLamma-plus: the game of FLamma, with a memory of every client's last update.

Partial participation makes the model swing towards whoever was selected last. Keeping every
client's last update and stepping by all of them, the older the less, removes most of that; the
fading is another decay factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal

from flamma.errors import StrategyError
from flamma.strategies.base import Offer
from flamma.strategies.flamma import Flamma, FlammaState
from flamma.strategies.memory import Remembering, empty_memory, recall
from flamma.types import Params, Population, Report


@dataclass(frozen=True, eq=False)
class MemoryState(FlammaState, Remembering):
    """What FLamma knows of every client, and its last update."""


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
        updates, heard = empty_memory(population.clients, params.size)
        return MemoryState(**known, updates=updates, heard=heard)

    def step(self, state: FlammaState, offer: Offer, accepted: Sequence[Report]) -> MemoryState:
        """Remember this round's updates and step by all that is remembered."""
        assert isinstance(state, MemoryState)
        recalled = recall(state, accepted, offer.round, self.memory)
        params = self.damped(state.params, recalled.params, offer)
        return replace(state, params=params, updates=recalled.updates, heard=recalled.heard)
