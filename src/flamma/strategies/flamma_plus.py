"""FLamma-plus: the game of FLamma, with a memory of what every client last sent.

Partial participation makes the model swing towards whoever was selected last. Keeping every
client's last answer and stepping by all of them, the older the less, removes most of that. As the
decay sets in, clients that the model serves badly weigh more.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import power, total
from flamma.strategies.base import Answers, Offer, loss_unit
from flamma.strategies.flamma import GameStrategy
from flamma.strategies.knowledge import FlammaState
from flamma.strategies.memory import Remembering, check_memory, empty_memory, recall
from flamma.strategies.rows import RowFormat
from flamma.types import Floats, Ints, Params, Population

SMALLEST_LOSS = 1e-3
"""Below it a loss weighs as this one does, so that no client's weight is 0."""


@dataclass(frozen=True, eq=False)
class MemoryState(FlammaState, Remembering):
    """What FLamma knows of every client, what it last sent, and how well it was served.

    ``losses`` has every client's loss of the model it last received; NaN before it has told one.
    """

    losses: Floats


M = TypeVar("M", bound=MemoryState)


@dataclass(frozen=True)
class MemoryStrategy(GameStrategy[M], Generic[M]):
    """The step is Σ q_i m^(age_i) (w_i - κ r_i - (1 - κ) w) over all clients heard from.

    r_i is the model that client i last received, and w_i what it made of it.

    Parameters
    ----------
    memory : float
        m, the factor by which what a client sent fades with each round of age; 1 does not fade.
    persistence : float
        κ, how much of an old update w_i - r_i is repeated though the model has moved on. With 0
        (and a memory of 1) the new model is the mean of what all clients last sent: slower and
        steadier, for large steps and clients that have little in common.
    levelling : float
        q_i is in proportion to data size times loss^(levelling (1 - γ)): by data size alone
        before the decay, and then the more for those served badly the smaller γ. 0 for never.
    rows : {"auto", "float32", "float16"}
        How what clients last sent is kept on disk; ``auto`` is float32 up to 256 MiB for all
        clients, else float16.
    """

    rotation: float | Literal["gamma"] = 0.1
    memory: float = 0.9
    persistence: float = 0.6
    levelling: float = 0.5
    rows: RowFormat = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_memory(self.memory, self.persistence)
        if not 0 <= self.levelling <= 10:
            raise StrategyError(f"levelling must lie in [0, 10], not {self.levelling:g}.")

    def first_memory(self, params: Params, population: Population) -> MemoryState:
        """Return the state of a server that has not heard from any client."""
        state = self.first_state(params, population)
        known = {field.name: getattr(state, field.name) for field in fields(state)}
        kept, heard = empty_memory(
            self,
            population.clients,
            params.size,
            fading=self.memory,
            kept_as=self.rows,
            warms_up=self.warmup_iterations > 0,
        )
        losses = np.full(population.clients, np.nan)
        return MemoryState(**known, kept=kept, heard=heard, losses=losses)

    def offer(self, state: M, available: Ints, rng: np.random.Generator) -> Offer:
        """Ask those selected for the loss of the received model, if it will weigh."""
        made = super().offer(state, available, rng)
        if not self.wants_losses or not made.round:
            return made
        return replace(made, terms=tuple(replace(t, wants_loss=True) for t in made.terms))

    @property
    def wants_losses(self) -> bool:
        """Whether clients must tell the loss of the model they receive."""
        return self.levelling > 0

    def step(self, state: M, answers: Answers) -> M:
        """Remember what was sent this round and step by all that is remembered."""
        offer, accepted = answers.offer, answers.accepted
        losses = state.losses.copy()
        for report in accepted:
            if np.isfinite(report.loss):
                losses[report.client] = report.loss
        recalled = recall(
            self,
            state,
            accepted,
            offer.round,
            answers.reference,
            fading=self.memory,
            persistence=self.persistence,
            weights=self.weights(state.samples, losses, offer.decay_factor),
        )
        params = self.damped(state.params, recalled.params, offer)
        return replace(
            state, params=params, kept=recalled.kept, heard=recalled.heard, losses=losses
        )

    def weights(self, samples: Ints, losses: Floats, decay_factor: float) -> Floats:
        """Return how much each client counts, up to a common factor."""
        return levelled(samples, losses, self.levelling * (1 - decay_factor))


@dataclass(frozen=True)
class FlammaPlus(MemoryStrategy[MemoryState]):
    """FLamma with a memory."""

    name: ClassVar[str] = "flamma-plus"
    label: ClassVar[str] = "FLamma-plus"
    summary: ClassVar[str] = "FLamma with a memory of every client's last answer"
    family: ClassVar[str] = "flamma"

    def init(self, params: Params, population: Population) -> MemoryState:
        """Start without having heard from any client."""
        return self.first_memory(params, population)


def levelled(samples: Ints | Floats, losses: Floats, exponent: float) -> Floats:
    """Return data size times loss^exponent; who has told no loss counts as having their mean."""
    told = np.isfinite(losses)
    if exponent == 0 or not told.any():
        return samples.astype(np.float64)
    unit = loss_unit([SMALLEST_LOSS, *losses[told].tolist()], exponent)
    known = np.where(told, losses, total(losses[told] / unit) / np.count_nonzero(told) * unit)
    weights: Floats = samples * power(np.maximum(known, SMALLEST_LOSS) / unit, exponent)
    return weights
