"""FLamma-memory: the game of FLamma, with a step by what every client last sent.

Partial participation makes the model swing towards whoever was selected last. Keeping every
client's last answer and stepping by all of them, the older the less, removes most of that. As the
decay sets in, clients that the model serves badly weigh more. It was FLamma-plus up to version 0.2:
good where few of few clients take part, slow where clients are many.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Generic

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import total, totals
from flamma.strategies.base import Answers
from flamma.strategies.flamma_plus import L, LevellingState, LevellingStrategy, told_losses
from flamma.strategies.memory import check_memory, recall
from flamma.types import Floats, Params, Population


@dataclass(frozen=True)
class _MemoryStrategy(LevellingStrategy[L], Generic[L]):
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
class FlammaMemory(_MemoryStrategy[LevellingState]):
    """FLamma with a memory."""

    name: ClassVar[str] = "flamma-memory"
    label: ClassVar[str] = "FLamma-memory"
    summary: ClassVar[str] = "FLamma that steps by every client's last answer"
    family: ClassVar[str] = "flamma"

    def init(self, params: Params, population: Population) -> LevellingState:
        """Start without having heard from any client."""
        return self.first_memory(params, population)


# FLamma-adaptive: FLamma-memory that finds out by itself when to decay.
#
# The paper names it as its limitation that no one decay factor fits every task. Here the price is
# not given but raised while the run goes: whenever the clients' losses have stopped coming closer
# together, or have risen on the whole, over about one pass over all clients. γ stays the
# equilibrium of the game at that price.

_MOST_TRACED_ROUNDS = 10_000_000
"""The most rounds of a run; each takes 16 bytes of the state."""


@dataclass(frozen=True, eq=False)
class _AdaptiveState(LevellingState):
    """What the server has heard of the clients' losses, and when γ leaves 1 by now.

    Attributes
    ----------
    trace : ndarray
        Mean and variance over clients of those losses, one row per round (NaN: not known).
    start : float
        The round at which γ leaves 1 at the present price; infinite before the first raise.
    raised : int
        The round of the last raise.
    """

    trace: Floats
    start: float
    raised: int


@dataclass(frozen=True)
class FlammaAdaptive(_MemoryStrategy[_AdaptiveState]):
    """The price is raised when fairness stalls.

    Parameters
    ----------
    tolerance : float
        The share by which the variance between clients must have fallen over a pass, or fairness
        has stalled.
    raise_by : float
        What the price is multiplied with at every raise after the first; the first one makes γ
        leave 1.
    """

    name: ClassVar[str] = "flamma-adaptive"
    label: ClassVar[str] = "FLamma-adaptive"
    summary: ClassVar[str] = "FLamma-memory that raises its price when fairness stalls"
    family: ClassVar[str] = "flamma"

    tolerance: float = 0.05
    raise_by: float = 1.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.tolerance < 1 or not self.raise_by > 1:
            raise StrategyError("tolerance must lie in [0, 1), and raise_by above 1.")
        if self.plan.rounds > _MOST_TRACED_ROUNDS:
            raise StrategyError(
                f"flamma-adaptive keeps a trace of all rounds, at most {_MOST_TRACED_ROUNDS:,}: "
                f"use fewer rounds or flamma-plus."
            )

    def init(self, params: Params, population: Population) -> _AdaptiveState:
        """Start without a price."""
        state = self.first_memory(params, population)
        known = {field.name: getattr(state, field.name) for field in fields(state)}
        return _AdaptiveState(
            **known,
            trace=np.full((self.plan.rounds + 1, 2), np.nan),
            start=float("inf"),
            raised=0,
        )

    @property
    def wants_losses(self) -> bool:
        """Whether clients must tell the loss of the model they receive: the price goes by it."""
        return True

    def starts(self, state: _AdaptiveState) -> float:
        """Return the share of the rounds at which γ leaves 1 by what is known now."""
        return min(1.0, state.start / self.plan.rounds)

    def combine(self, state: _AdaptiveState, answers: Answers) -> _AdaptiveState:
        """Aggregate, then look whether fairness has stalled."""
        after = super().combine(state, answers)
        trace, number, losses = after.trace.copy(), answers.offer.round, after.losses
        if not np.isnan(losses).any():
            middle = total(losses) / losses.size
            trace[number] = middle, total(np.square(losses - middle)) / losses.size
        after = replace(after, trace=trace)
        # About one pass over all clients, and the one before it.
        span = -(-losses.size // self.plan.per_round)
        if number - after.raised < span or not stalls(trace[: number + 1], span, self.tolerance):
            return after
        start = float(number) if after.start == float("inf") else after.start / self.raise_by
        return replace(after, start=start, raised=number)


def stalls(trace: Floats, span: int, tolerance: float) -> bool:
    """Return whether the variance has not fallen enough, or the mean has risen, over a span."""
    if len(trace) < 2 * span:
        return False
    before, now = totals(trace[-2 * span : -span].T) / span, totals(trace[-span:].T) / span
    if np.isnan(before).any():
        return False
    return bool(now[1] > (1 - tolerance) * before[1] or now[0] > before[0])
