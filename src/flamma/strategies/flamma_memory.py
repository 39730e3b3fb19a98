"""FLamma-memory: the game of FLamma, with a step by what every client last sent.

Partial participation makes the model swing towards whoever was selected last. Keeping every
client's last answer and stepping by all of them, the older the less, removes most of that. As the
decay sets in, clients that the model serves badly weigh more. It was FLamma-plus up to version 0.2:
good where few of few clients take part, slow where clients are many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic

from flamma.strategies.base import Answers
from flamma.strategies.levelling import L, LevellingState, LevellingStrategy, told_losses
from flamma.strategies.memory import check_memory, recall
from flamma.types import Params, Population


@dataclass(frozen=True)
class MemoryStrategy(LevellingStrategy[L], Generic[L]):
    """The step is Σ q_i m^(age_i) (w_i - κ r_i - (1 - κ) w) over all clients heard from.

    r_i is the model that client i last received, w_i what it made of it, and q_i its weight.

    Parameters
    ----------
    memory : float
        m, the factor by which what a client sent fades with each round of age; 1 does not fade.
    persistence : float
        κ, how much of an old update w_i - r_i is repeated though the model has moved on. With 0
        (and a memory of 1) the new model is the mean of what all clients last sent: slower and
        steadier, for large steps and clients that have little in common.
    """

    memory: float = 0.9
    persistence: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_memory(self.memory, self.persistence)

    def first_memory(self, params: Params, population: Population) -> LevellingState:
        """Return the state of a server that has not heard from any client."""
        return LevellingState(
            **self.first_knowledge(params, population, size=params.size, fading=self.memory)
        )

    def step(self, state: L, answers: Answers) -> L:
        """Remember what was sent this round and step by all that is remembered."""
        offer, accepted = answers.offer, answers.accepted
        losses = told_losses(state.losses, accepted)
        recalled = recall(
            self,
            state,
            accepted,
            offer.round,
            answers.reference,
            fading=self.memory,
            persistence=self.persistence,
            weights=state.samples * self.loss_factors(losses, offer.decay_factor),
        )
        params = self.damped(state.params, recalled.params, offer)
        return replace(
            state, params=params, kept=recalled.kept, heard=recalled.heard, losses=losses
        )


@dataclass(frozen=True)
class FlammaMemory(MemoryStrategy[LevellingState]):
    """FLamma with a memory."""

    name: ClassVar[str] = "flamma-memory"
    label: ClassVar[str] = "FLamma-memory"
    summary: ClassVar[str] = "FLamma that steps by every client's last answer"
    family: ClassVar[str] = "flamma"

    def init(self, params: Params, population: Population) -> LevellingState:
        """Start without having heard from any client."""
        return self.first_memory(params, population)
