"""FedAvgM: FedAvg whose server has momentum.

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from flamma.aggregators import aggregated
from flamma.numerics import total
from flamma.registry import Between, above
from flamma.strategies.base import Round, data_weights
from flamma.strategies.fedavg import (
    Averaging,
    GradientState,
    ServerOptimiser,
    gradient_weight,
    scaled_models,
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

    server_momentum: Annotated[float, Between(0, 1, without="high")] = 0.9
    server_step: Annotated[float, above(0)] = 1.0

    def init(self, params: Params, population: Population) -> MomentumState:
        """Start without velocity."""
        size = population.trainable_size
        return MomentumState(params, 0, population.samples, size, np.zeros(size))

    def move(self, state: MomentumState, update: Floats) -> tuple[Floats, MomentumState]:
        """Add the mean update to the velocity, and move with it."""
        velocity: Floats = self.server_momentum * state.velocity + update
        return self.server_step * velocity, replace(state, velocity=velocity)


# FedAdam: FedAvg whose server takes the steps of Adam.
#
# Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. As there, moments are
# not corrected for their start, and the second one starts at τ².


@dataclass(frozen=True, eq=False)
class _MomentsState(GradientState):
    """``first`` and ``second`` are the moments m and v, as long as the trainable weights."""

    first: Floats
    second: Floats


@dataclass(frozen=True)
class _AdaptiveServer(ServerOptimiser[_MomentsState]):
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

    server_step: Annotated[float, above(0)] = 0.01
    beta_1: Annotated[float, Between(0, 1, without="high")] = 0.9
    beta_2: Annotated[float, Between(0, 1, without="high")] = 0.99
    tau: Annotated[float, above(0)] = 0.001

    def init(self, params: Params, population: Population) -> _MomentsState:
        """Start with m = 0 and v = τ²."""
        size = population.trainable_size
        second = np.full(size, self.tau * self.tau)
        return _MomentsState(params, 0, population.samples, size, np.zeros(size), second)

    def second_moment(self, before: Floats, squares: Floats) -> Floats:
        """Return v after a round whose mean update has these squares D²: here Adam's."""
        return self.beta_2 * before + (1 - self.beta_2) * squares

    def move(self, state: _MomentsState, update: Floats) -> tuple[Floats, _MomentsState]:
        """Follow the moments of the mean update."""
        first: Floats = self.beta_1 * state.first + (1 - self.beta_1) * update
        second = self.second_moment(state.second, np.square(update))
        step: Floats = self.server_step * first / (np.sqrt(second) + self.tau)
        return step, replace(state, first=first, second=second)


@dataclass(frozen=True)
class FedAdam(_AdaptiveServer):
    """The server's step is Adam's: v ← β₂ v + (1 - β₂) D²."""

    name: ClassVar[str] = "fedadam"
    label: ClassVar[str] = "FedAdam"
    summary: ClassVar[str] = "FedAvg with Adam on the server"


# FedYogi: FedAvg whose server takes the steps of Yogi.
#
# Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.


@dataclass(frozen=True)
class FedYogi(_AdaptiveServer):
    """The server's step is Yogi's: v ← v - (1 - β₂) D² sign(v - D²)."""

    name: ClassVar[str] = "fedyogi"
    label: ClassVar[str] = "FedYogi"
    summary: ClassVar[str] = "FedAvg with Yogi on the server"

    def second_moment(self, before: Floats, squares: Floats) -> Floats:
        """Return v after a round: it moves towards D² by D², however far that is."""
        return before - (1 - self.beta_2) * squares * np.sign(before - squares)


# FedNova: who has done more local steps does not pull harder for that.
#
# Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
# Optimization", NeurIPS 2020.


@dataclass(frozen=True)
class FedNova(Averaging[GradientState]):
    """w ← w + (Σ p_k a_k) Σ p_k u_k / a_k, with a_k the gradients in client k's update.

    That is the mean of the models that clients would have sent had each done the same, effective
    number of steps. Where all did, it is FedAvg. a_k counts mini-batches, and with
    ``training.momentum`` what each gradient adds to the steps after its own.
    """

    name: ClassVar[str] = "fednova"
    label: ClassVar[str] = "FedNova"
    summary: ClassVar[str] = "FedAvg with updates divided by the local steps they took"
    family: ClassVar[str] = "optimisation"

    def init(self, params: Params, population: Population) -> GradientState:
        """Start with the given weights."""
        return GradientState(params, 0, population.samples, population.trainable_size)

    def step(self, state: GradientState, round: Round) -> GradientState:
        """Take the mean of the models at an equal number of steps."""
        updates = round.updates
        if not updates:
            return state
        samples = np.array(data_weights(updates))
        done = np.array([gradient_weight(self.plan, r.samples, r.epochs) for r in updates])
        factors = [total(samples * (done / own)) / total(samples) for own in done]
        models = scaled_models(updates, state.params, factors, state.trainable_size)
        shares: Floats = samples / total(samples)
        params = aggregated(self.aggregator, models, shares, round.reference)
        return replace(state, params=params.astype(np.float32))
