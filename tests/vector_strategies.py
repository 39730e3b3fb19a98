"""Small strategies that use what the contract has besides FedAvg's, one thing each.

Each is FedAvg but for what its name says. The functions register them: in this process, or in the
processes that a test starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from flamma.strategies import STRATEGIES
from flamma.strategies.base import KeepingState, Needs, Offer, State, largest, uniform_choice
from flamma.strategies.fedavg import Averaging
from flamma.types import Broadcast, TaskVectors, Terms
from flat_work import work


@dataclass(frozen=True, eq=False)
class HeardState(State):
    """With the losses that were last heard."""

    losses: np.ndarray


@dataclass(frozen=True)
class Surveying(Averaging[HeardState]):
    """Asks twice as many as it selects, and selects those of the largest losses."""

    name: ClassVar[str] = "surveying"
    label: ClassVar[str] = "Surveying"
    summary: ClassVar[str] = "those of the largest losses"

    def init(self, params, population):
        return HeardState(params, 0, population.samples, np.zeros(population.clients))

    def survey(self, state, available, rng):
        return uniform_choice(available, 2 * self.plan.per_round, rng)

    def hear(self, state, losses: Mapping[int, float]):
        heard = np.full(state.losses.size, -1.0)
        for client, loss in losses.items():
            heard[client] = loss
        return replace(state, losses=heard)

    def offer(self, state, available, rng):
        count = min(self.plan.per_round, available.size)
        chosen = np.sort(available[largest(state.losses[available], count, rng)])
        return Offer(state.round + 1, tuple(Terms(int(c), state.round + 1) for c in chosen))


@dataclass(frozen=True, eq=False)
class ControlState(KeepingState):
    """With the server's control variate."""

    control: np.ndarray


@dataclass(frozen=True)
class Controlled(Averaging[ControlState]):
    """Corrects gradients by the server's control less the client's own, which it keeps."""

    name: ClassVar[str] = "controlled"
    label: ClassVar[str] = "Controlled"
    summary: ClassVar[str] = "control variates"
    needs: ClassVar[Needs] = Needs(client_memory=True)

    def init(self, params, population):
        nothing = np.zeros(population.clients, dtype=np.int64)
        control = np.zeros(population.trainable_size, dtype=np.float32)
        return ControlState(params, 0, population.samples, nothing, control)

    def broadcast(self, state):
        return Broadcast(state.params, state.round, extra=state.control)

    def prepare(self, task, vectors):
        own = 0 if vectors.kept is None else vectors.kept
        return TaskVectors(correction=vectors.extra - own)

    def keep(self, task, vectors, trained):
        moved = (vectors.received - trained)[: vectors.trainable_size]
        before = 0 if vectors.kept is None else vectors.kept
        return np.float32(0.1) * moved + np.float32(0.5) * (before - vectors.extra)

    def step(self, state, round):
        after = super().step(state, round)
        moved = (state.params - after.params)[: state.control.size]
        return replace(after, control=np.float32(0.5) * (state.control + moved))


@dataclass(frozen=True, eq=False)
class OwnState(State):
    """With a number for each client, by which its own model differs."""

    shrinking: np.ndarray


@dataclass(frozen=True)
class OwnDownloads(Averaging[OwnState]):
    """Sends every client a model of its own, the smaller the oftener it has answered."""

    name: ClassVar[str] = "own-downloads"
    label: ClassVar[str] = "OwnDownloads"
    summary: ClassVar[str] = "a model for each client"

    def init(self, params, population):
        return OwnState(params, 0, population.samples, np.ones(population.clients))

    def broadcast(self, state):
        def per_client(client):
            return (state.params * np.float32(state.shrinking[client])).astype(np.float32)

        return Broadcast(state.params, state.round, per_client=per_client)

    def step(self, state, round):
        shrinking = state.shrinking.copy()
        shrinking[[report.client for report in round.updates]] *= 0.75
        return replace(super().step(state, round), shrinking=shrinking)


@dataclass(frozen=True)
class OwnModels(Averaging[KeepingState]):
    """Lets clients train models for themselves, keep them, and score them."""

    name: ClassVar[str] = "own-models"
    label: ClassVar[str] = "OwnModels"
    summary: ClassVar[str] = "models that clients keep"
    needs: ClassVar[Needs] = Needs(client_memory=True)

    def init(self, params, population):
        nothing = np.zeros(population.clients, dtype=np.int64)
        return KeepingState(params, 0, population.samples, nothing)

    def broadcast(self, state):
        return Broadcast(state.params, state.round, evaluates_kept=True)

    def personal_work(self, task):
        return work(task.client, task.round, 1, task.learning_rate, proximal=0.5)


VECTOR_STRATEGIES = (Surveying, Controlled, OwnDownloads, OwnModels)


def register():
    """Register them in this process for good."""
    for strategy in VECTOR_STRATEGIES:
        STRATEGIES.add(strategy.name, strategy)


@contextmanager
def registered():
    """Have them registered in this process for a while."""
    register()
    try:
        yield
    finally:
        for strategy in VECTOR_STRATEGIES:
            STRATEGIES.discard(strategy.name)


def search_path(folder: Path) -> str:
    """Return a PYTHONPATH with which other processes have them, by the entry points of a package.

    ``folder`` is where the package's description is written.
    """
    about = folder / "vectors-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vectors\nVersion: 1.0\n")
    points = [f"{s.name} = vector_strategies:{s.__name__}\n" for s in VECTOR_STRATEGIES]
    (about / "entry_points.txt").write_text("[flamma.strategies]\n" + "".join(points))
    before = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join([str(folder), str(Path(__file__).parent), *before])
