"""FedAvgM: FedAvg whose server has momentum.

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019.
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
class MomentumState(GradientState):
    """``velocity`` is the server's v, as long as the trainable weights."""

    velocity: Floats


@dataclass(frozen=True)
class FedAvgM(ServerOptimiser[MomentumState]):
    """v ← β v + Σ p_k u_k, w ← w + η_s v, p by data size; β = 0 and η_s = 1 are FedAvg.

    Parameters
    ----------
    server_momentum : float
        β, the momentum of the server.
    server_step : float
        η_s, the server's step size.
    """

    name: ClassVar[str] = "fedavgm"
    label: ClassVar[str] = "FedAvgM"
    summary: ClassVar[str] = "FedAvg with momentum on the server"
    family: ClassVar[str] = "optimisation"

    server_momentum: float = 0.9
    server_step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fraction(server_momentum=self.server_momentum)
        require_positive(server_step=self.server_step)

    def init(self, params: Params, population: Population) -> MomentumState:
        """Start without velocity."""
        size = population.trainable_size
        return MomentumState(params, 0, population.samples, size, np.zeros(size))

    def step(self, state: MomentumState, update: Floats) -> tuple[Floats, MomentumState]:
        """Add the mean update to the velocity, and move with it."""
        velocity: Floats = self.server_momentum * state.velocity + update
        return self.server_step * velocity, replace(state, velocity=velocity)
