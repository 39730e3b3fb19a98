"""CGSV: who moves the model in the common direction receives more of it.

Xu et al., "Gradient-driven rewards to guarantee fairness in collaborative machine learning",
NeurIPS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import dot, norm
from flamma.strategies.base import Answers, ServerReads
from flamma.strategies.fedavg import Averaging
from flamma.strategies.own_models import (
    OwnModels,
    carried_along,
    combined_step,
    hyperbolic_tangent,
    of_largest,
    rewarded,
    shares_among,
    with_reputations,
)
from flamma.types import Download, Floats, Params, Population


@dataclass(frozen=True)
class CGSV(Averaging[OwnModels]):
    """Unit updates by reputation; r ← α r + (1 - α) cos(u_i, u), and a share of u by tanh(β r_i).

    Every client has a model of its own, from which it trains. The step is u = Σ r_i Γ u_i / ‖u_i‖,
    and client i adds the share tanh(β r_i) / max_k tanh(β r_k) of it to its model: of every part of
    the model that share of the entries, those of the largest magnitude. The data sizes that clients
    tell have no effect on trained weights. The paper has all clients in every round. Here those
    that answer share their reputations anew among them, and all clients receive their share.

    Parameters
    ----------
    memory : float
        α, the weight of the past in a reputation.
    length : float
        Γ, what every update is scaled to; a schedule of the learning rate multiplies it, too.
    altruism : float
        β: the larger, the more equal the shares; without end, everybody receives everything.
    floor : float
        The smallest reputation before reputations are divided by their sum.
    """

    name: ClassVar[str] = "cgsv"
    label: ClassVar[str] = "CGSV"
    summary: ClassVar[str] = "clients receive the more of a step the better they agree with it"
    family: ClassVar[str] = "incentive"
    server_reads: ClassVar[ServerReads] = "plain"

    memory: float = 0.95
    length: float = 0.5
    altruism: float = 1.0
    floor: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.memory <= 1:
            raise StrategyError(f"memory must lie in [0, 1], not {self.memory:g}.")
        if not 0 < self.floor <= 1:
            raise StrategyError(f"floor must lie in (0, 1], not {self.floor:g}.")
        for option in ("length", "altruism"):
            if not 0 < getattr(self, option) < np.inf:
                raise StrategyError(f"{option} must be positive, not {getattr(self, option):g}.")

    def init(self, params: Params, population: Population) -> OwnModels:
        """Start with one model and one reputation for all."""
        return OwnModels.first(params, population)

    def download(self, state: OwnModels) -> Download:
        """Return each client's own model."""
        return state.download()

    def combine(self, state: OwnModels, answers: Answers) -> OwnModels:
        """Step by unit updates, learn reputations from their angles, and share the step out."""
        accepted = answers.accepted
        if not accepted:
            return state
        clients = [report.client for report in accepted]
        length = self.length * self.plan.factor(answers.offer.round)
        units = [scaled(update, length) for update in state.updates(accepted)]
        before = shares_among(state, clients)
        step = combined_step(self, state, units, before, answers.reference)
        agreement = np.array([cosine_between(unit, step) for unit in units])
        now = np.maximum(self.memory * before + (1 - self.memory) * agreement, self.floor)
        reputations = with_reputations(state, clients, now)
        shares = of_largest(hyperbolic_tangent(self.altruism * reputations))
        carried = carried_along(self, state, accepted, answers.reference)
        return rewarded(replace(state, reputations=reputations), step, carried, shares)


def scaled(update: Floats, length: float) -> Floats:
    """Return an update with a given length; one of length 0 as it is."""
    size = norm(update)
    return length / size * update if size > 0 else update


def cosine_between(x: Floats, y: Floats) -> float:
    """Return the cosine of the angle between two vectors, 0 if one of them has no length."""
    size = norm(x) * norm(y)
    return dot(x, y) / size if size > 0 else 0.0
