"""What FLamma's relatives with a memory share: clients that the model serves badly weigh more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import power, total
from flamma.strategies.base import Offer, loss_unit
from flamma.strategies.flamma import GameStrategy
from flamma.strategies.knowledge import FlammaState
from flamma.strategies.memory import Remembering, empty_memory
from flamma.strategies.rows import RowFormat
from flamma.types import Floats, Ints, Params, Population, Report

SMALLEST_LOSS = 1e-3
"""Below it a loss weighs as this one does, so that no client's weight is 0."""


@dataclass(frozen=True, eq=False)
class LevellingState(FlammaState, Remembering):
    """What FLamma knows of every client, what it last sent, and how well it was served.

    ``losses`` has every client's loss of the model it last received; NaN before it has told one.
    """

    losses: Floats


L = TypeVar("L", bound=LevellingState)


@dataclass(frozen=True)
class LevellingStrategy(GameStrategy[L], Generic[L]):
    """FLamma with a row for every client, and weights that follow their losses.

    Parameters
    ----------
    levelling : float
        A client weighs in proportion to its data size (in FLamma-plus, a power of it) times
        loss^(levelling (1 - γ)): by data size alone before the decay, and then the more if served
        badly, the smaller γ. 0 for never.
    rows : {"auto", "float32", "float16"}
        How what clients last sent is kept on disk; ``auto`` is float32 up to 256 MiB for all
        clients, else float16.
    """

    rotation: float | Literal["gamma"] = 0.1
    levelling: float = 0.5
    rows: RowFormat = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.levelling <= 10:
            raise StrategyError(f"levelling must lie in [0, 10], not {self.levelling:g}.")

    def first_knowledge(
        self, params: Params, population: Population, *, size: int, fading: float
    ) -> dict[str, Any]:
        """Return the fields of the state of a server that has not heard from any client.

        Rows have ``size`` weights.
        """
        state = self.first_state(params, population)
        known = {field.name: getattr(state, field.name) for field in fields(state)}
        kept, heard = empty_memory(
            self,
            population.clients,
            size,
            fading=fading,
            kept_as=self.rows,
            warms_up=self.warmup_iterations > 0,
        )
        return {
            **known,
            "kept": kept,
            "heard": heard,
            "losses": np.full(population.clients, np.nan),
        }

    def offer(self, state: L, available: Ints, rng: np.random.Generator) -> Offer:
        """Ask those selected for the loss of the received model, if it will weigh."""
        made = super().offer(state, available, rng)
        if not self.wants_losses or not made.round:
            return made
        return replace(made, terms=tuple(replace(t, wants_loss=True) for t in made.terms))

    @property
    def wants_losses(self) -> bool:
        """Whether clients must tell the loss of the model they receive."""
        return self.levelling > 0

    def loss_factors(self, losses: Floats, decay_factor: float) -> Floats:
        """Return what each client's last loss multiplies its weight by, up to a common factor."""
        return loss_factors(losses, self.levelling * (1 - decay_factor))


def told_losses(before: Floats, accepted: Sequence[Report]) -> Floats:
    """Return every client's last loss, with those that were told this round."""
    losses = before.copy()
    for report in accepted:
        if np.isfinite(report.loss):
            losses[report.client] = report.loss
    return losses


def loss_factors(losses: Floats, exponent: float) -> Floats:
    """Return loss^exponent; who has told no loss counts as having their mean."""
    told = np.isfinite(losses)
    if exponent == 0 or not told.any():
        return np.ones(losses.size)
    known = losses[told]
    unit = loss_unit([SMALLEST_LOSS, *known.tolist()], exponent)
    mean = total(known / unit) / known.size * unit
    powers = power(np.maximum(np.append(known, mean), SMALLEST_LOSS) / unit, exponent)
    factors = np.full(losses.size, powers[-1])  # there may be very many who have not told any
    factors[told] = powers[:-1]
    return factors
