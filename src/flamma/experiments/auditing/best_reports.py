"""The cost report that would have paid a client most in the games of an honest run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from flamma.clients.behaviours.truth import profile_of
from flamma.experiments.auditing.evidence import Evidence
from flamma.experiments.config import Config
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.records import RoundRecord
from flamma.seeding import stream
from flamma.strategies.knowledge import FlammaState
from flamma.types import Floats, Params

COARSE_DECADES = 3
"""How many powers of ten above and below the truth reports are tried."""

COARSE_STEPS, FINE_STEPS = 24, 12
"""Steps over all of these decades, and between the neighbours of the best of them."""

BELOW_ENTRY = 1 - 1e-6
"""A report of its contribution times this: a client that only just works at a decay factor of 1."""


def best_cost_factor(config: Config, honest: Evidence, client: int) -> float:
    """Return what a client best multiplies its cost with, by the recorded games of an honest run.

    Every round in which the client was selected is offered anew for each candidate, with the
    strategy's own rules, all contributions and the other clients' reports as they were; the client
    answers as is best at its true cost. The truth, 1, is returned where no other report does
    better, as for a strategy that does not use reports.

    Candidates are a grid, the reports at which the client's own participation bound is at a decay
    factor of 1, and a finer grid around the best of these. The others' play does not change in
    what is tried here, while in a run it does, so that another report may do better there.
    """
    costs = honest.population.costs
    assert costs is not None
    rounds = [r for r in honest.history if client in r.selected and r.contributions is not None]
    if not rounds:
        return 1.0
    contributions = _contributions(honest.history, honest.population.clients)
    true = float(costs[client])

    def utility(factor: float) -> float:
        reported = float(np.clip(true * factor, SMALLEST_COST, LARGEST_COST))
        return math.fsum(_utilities(config, honest, client, reported, rounds, contributions))

    coarse = np.logspace(-COARSE_DECADES, COARSE_DECADES, COARSE_STEPS + 1).tolist()
    entry = {_own_contribution(r, client) * BELOW_ENTRY / true for r in rounds}
    bounds = sorted(factor for factor in entry if factor > 0)
    candidates = {1.0: utility(1.0)}
    candidates |= {factor: utility(factor) for factor in (*coarse, *bounds)}
    leader = _best(candidates)
    step = 10 ** (2 * COARSE_DECADES / COARSE_STEPS)
    fine = leader * np.geomspace(1 / step, step, FINE_STEPS + 1)
    candidates |= {factor: utility(factor) for factor in fine.tolist()}
    return _best(candidates)


def _best(candidates: dict[float, float]) -> float:
    """Return the factor of the largest utility; of equal ones that nearest to the truth."""
    return max(candidates, key=lambda factor: (candidates[factor], -abs(math.log(factor))))


def _utilities(
    config: Config,
    honest: Evidence,
    client: int,
    reported: float,
    rounds: Sequence[RoundRecord],
    contributions: Floats,
) -> Iterator[float]:
    """Yield what the client's best play of each round is worth to it if it reports a cost."""
    strategy, population = config.strategy, honest.population
    assert population.costs is not None
    told = population.costs.copy()
    told[client] = reported
    nothing: Params = np.zeros(1, dtype=np.float32)
    begun: Any = strategy.init(nothing, replace(population, costs=told))
    if not isinstance(begun, FlammaState):
        return
    profile = profile_of(population, client)
    for record in rounds:
        known = contributions[record.round - 1]
        state = replace(
            begun, round=record.round - 1, contributions=known, effective=np.ones(known.size)
        )
        rng = stream(config.seed, "select", record.round)
        offer = strategy.offer(state, np.array(record.selected, dtype=np.int64), rng)
        [terms] = [terms for terms in offer.terms if terms.client == client]
        epochs = strategy.respond(terms, profile).epochs
        yield terms.decay_factor * terms.contribution * epochs - profile.cost * epochs**2


def _own_contribution(record: RoundRecord, client: int) -> float:
    assert record.contributions is not None
    return record.contributions[record.selected.index(client)]


def _contributions(history: Sequence[RoundRecord], clients: int) -> Floats:
    """Return every client's contribution in every round, as of when it was last selected.

    Before its first selection it has the one of that, and 1 if it was never selected.
    """
    table = np.full((max(r.round for r in history), clients), np.nan)
    for record in history:
        if record.contributions is not None:
            table[record.round - 1, list(record.selected)] = record.contributions
    for order in (table, table[::-1]):
        for before, own in pairwise(order):
            own[np.isnan(own)] = before[np.isnan(own)]
    table[np.isnan(table)] = 1.0
    return table
