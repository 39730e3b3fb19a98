"""FedAdam: FedAvg whose server takes the steps of Adam.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. As there, moments are not
corrected for their start, and the second one starts at τ².
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.strategies.gradients import GradientState
from flamma.strategies.server_steps import (
    ServerOptimiser,
    require_fraction,
    require_positive,
)
from flamma.types import Floats, Params, Population


@dataclass(frozen=True, eq=False)
class MomentsState(GradientState):
    """``first`` and ``second`` are the moments m and v, as long as the trainable weights."""

    first: Floats
    second: Floats


@dataclass(frozen=True)
class AdaptiveServer(ServerOptimiser[MomentsState]):
    """m ← β₁ m + (1 - β₁) D, w ← w + η_s m / (√v + τ), with D = Σ p_k u_k and p by data size.

    Variants say how v follows D².

    Parameters
    ----------
    server_step : float
        η_s, the server's step size.
    beta_1 : float
        β₁, how much of the first moment stays.
    beta_2 : float
        β₂, how much of the second moment stays.
    tau : float
        τ, how little adaptive it is: the larger, the more alike all weights' steps are.
    """

    family: ClassVar[str] = "optimisation"

    server_step: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fraction(beta_1=self.beta_1, beta_2=self.beta_2)
        require_positive(server_step=self.server_step, tau=self.tau)

    def init(self, params: Params, population: Population) -> MomentsState:
        """Start with m = 0 and v = τ²."""
        size = population.trainable_size
        second = np.full(size, self.tau * self.tau)
        return MomentsState(params, 0, population.samples, size, np.zeros(size), second)

    def second_moment(self, before: Floats, squares: Floats) -> Floats:
        """Return v after a round whose mean update has these squares D²: here Adam's."""
        return self.beta_2 * before + (1 - self.beta_2) * squares

    def step(self, state: MomentsState, update: Floats) -> tuple[Floats, MomentsState]:
        """Follow the moments of the mean update."""
        first: Floats = self.beta_1 * state.first + (1 - self.beta_1) * update
        second = self.second_moment(state.second, np.square(update))
        step: Floats = self.server_step * first / (np.sqrt(second) + self.tau)
        return step, replace(state, first=first, second=second)


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    """The server's step is Adam's: v ← β₂ v + (1 - β₂) D²."""

    name: ClassVar[str] = "fedadam"
    label: ClassVar[str] = "FedAdam"
    summary: ClassVar[str] = "FedAvg with Adam on the server"
