"""SCAFFOLD: control variates correct what clients' gradients have of their own.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
Algorithm 1 with option II.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from flamma.aggregators import aggregated
from flamma.registry import above
from flamma.strategies.base import KeepingState, Needs, Round
from flamma.strategies.fedavg import (
    Averaging,
    change,
    gradient_weight,
    scaled_models,
    stepped,
)
from flamma.types import (
    Broadcast,
    ClientVectors,
    Floats,
    LocalWork,
    Objective,
    Params,
    Population,
    TaskVectors,
    Terms,
)


@dataclass(frozen=True, eq=False)
class ControlState(KeepingState):
    """``control`` is the server's c, as long as the trainable weights."""

    control: Params


@dataclass(frozen=True)
class Scaffold(Averaging[ControlState]):
    """Clients step by η (∇F_k - c_k + c); w ← w + η_g mean u_k over those who answered.

    After its a_k steps a client keeps c_k' = c_k - c - u_k / (a_k η). The server's c moves by
    (|S| / N) mean (c_k' - c_k), which it finds out by itself: c_k' - c_k = -c - u_k / (a_k η). So c
    travels to the clients with the model, and nothing but their models travels back. Means are
    plain, as in the paper, whatever the data sizes.

    Parameters
    ----------
    server_step : float
        η_g, the server's step size.
    """

    name: ClassVar[str] = "scaffold"
    label: ClassVar[str] = "SCAFFOLD"
    summary: ClassVar[str] = "control variates correct the drift of local steps"
    family: ClassVar[str] = "optimisation"
    needs: ClassVar[Needs] = Needs(client_memory=True, sgd=True)

    server_step: Annotated[float, above(0)] = 1.0

    def init(self, params: Params, population: Population) -> ControlState:
        """Start with c = 0, and clients with c_k = 0."""
        unheard = np.zeros(population.clients, dtype=np.int64)
        control = np.zeros(population.trainable_size, dtype=np.float32)
        return ControlState(params, 0, population.samples, unheard, control)

    def broadcast(self, state: ControlState) -> Broadcast:
        """Send c with the global model."""
        return Broadcast(state.params, state.round, extra=state.control)

    def prepare(self, task: LocalWork, vectors: ClientVectors) -> TaskVectors:
        """Correct gradients by c - c_k."""
        return TaskVectors(correction=_server_control(vectors) - _own_control(vectors))

    def keep(self, task: LocalWork, vectors: ClientVectors, trained: Params) -> Params:
        """Keep c_k' = c_k - c - u_k / (a_k η)."""
        size = vectors.trainable_size
        done = gradient_weight(self.plan, vectors.samples, task.epochs, task.terms.batches)
        gradient = change(trained, vectors.received, size) / (done * task.learning_rate)
        kept = _own_control(vectors) - _server_control(vectors).astype(np.float64) + gradient
        return kept.astype(np.float32)

    def step(self, state: ControlState, round: Round) -> ControlState:
        """Take the mean update, and move c by what the clients' controls moved."""
        updates, size = round.updates, state.control.size
        if not updates:
            return state
        equal = [1.0] * len(updates)
        mean = self.average(round, equal)
        step = self.server_step * change(state.params, mean, size)
        # The models after a single step each tell the mean gradient, by any aggregator.
        single = [1 / gradient_weight(self.plan, r.samples, r.epochs) for r in updates]
        models = scaled_models(updates, state.params, single, size)
        shares = np.full(len(updates), 1 / len(updates))
        after = aggregated(self.aggregator, models, shares, round.reference)[:size]
        gradient = (state.params[:size] - after) / self.plan.step_size(round.number)
        share = len(updates) / state.samples.size
        control = state.control + share * (gradient - state.control)
        params = stepped(state.params, mean, step)
        return replace(state, params=params, control=control.astype(np.float32))


def _server_control(vectors: ClientVectors) -> Params:
    """Return the c that came with the model."""
    assert vectors.extra is not None
    return vectors.extra


def _own_control(vectors: ClientVectors) -> Params:
    """Return the client's c_k, 0 before its first training."""
    if vectors.kept is None:
        return np.zeros(vectors.trainable_size, dtype=np.float32)
    return vectors.kept


# FedDyn: clients' losses are bent until their minima are that of the whole.
#
# Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.


@dataclass(frozen=True, eq=False)
class _DynamicState(KeepingState):
    """``drift`` is -h / α: (1/N) Σ u_k over all answers so far, of the trainable weights."""

    drift: Floats


@dataclass(frozen=True)
class FedDyn(Averaging[_DynamicState]):
    """Clients minimise F_k(v) - ⟨h_k, v⟩ + (α/2) ‖v - w‖² and keep h_k ← h_k - α u_k.

    The server has h ← h - (α/N) Σ_S u_k and w ← mean w_k - h / α. Means are plain, as in the paper,
    whatever the data sizes.

    Parameters
    ----------
    alpha : float
        α, the weight of the dynamic regulariser.
    """

    name: ClassVar[str] = "feddyn"
    label: ClassVar[str] = "FedDyn"
    summary: ClassVar[str] = "dynamic regularisation aligns local with global minima (alpha)"
    family: ClassVar[str] = "optimisation"
    needs: ClassVar[Needs] = Needs(server_reads="mean", client_memory=True)

    alpha: Annotated[float, above(0)] = 0.1

    def init(self, params: Params, population: Population) -> _DynamicState:
        """Start with h = 0, and clients with h_k = 0."""
        unheard = np.zeros(population.clients, dtype=np.int64)
        drift = np.zeros(population.trainable_size)
        return _DynamicState(params, 0, population.samples, unheard, drift)

    def terms(self, client: int, round: int) -> Terms:
        """Return FedAvg's terms with α as the proximal weight."""
        return Terms(client, round, objective=Objective(proximal=self.alpha))

    def prepare(self, task: LocalWork, vectors: ClientVectors) -> TaskVectors:
        """Correct gradients by -h_k."""
        kept = vectors.kept
        return TaskVectors() if kept is None else TaskVectors(correction=-kept)

    def keep(self, task: LocalWork, vectors: ClientVectors, trained: Params) -> Params:
        """Keep h_k - α u_k."""
        moved = self.alpha * change(vectors.received, trained, vectors.trainable_size)
        return (-moved if vectors.kept is None else vectors.kept - moved).astype(np.float32)

    def step(self, state: _DynamicState, round: Round) -> _DynamicState:
        """Take the mean of the models, less h / α."""
        reports = round.updates
        if not reports:
            return state
        mean = self.average(round, [1.0] * len(reports))
        update = change(state.params, mean, state.drift.size)
        drift: Floats = state.drift + len(reports) / state.samples.size * update
        return replace(state, params=stepped(state.params, mean, update + drift), drift=drift)
