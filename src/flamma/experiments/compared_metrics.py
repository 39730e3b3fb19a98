"""The metrics of runs that are compared: their own, and those that depend on the other runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flamma.experiments.run import Run
from flamma.experiments.suite import Cell
from flamma.experiments.summary import Summary, at_budget, score_kind_of
from flamma.metrics import METRICS, BesideLocalMetric, EqualWorkMetric
from flamma.metrics.kinds import LAST_ROUNDS
from flamma.metrics.readings import finite_or_none
from flamma.numerics import totals
from flamma.strategies import competes
from flamma.strategies.local import Local
from flamma.types import Floats, Ints

CellRuns = Sequence[tuple[Cell, Run]]
"""Finished runs, and what each is of."""


def compared_metrics(
    runs: CellRuns, summaries: Sequence[Summary], names: Sequence[str]
) -> list[dict[str, float | None]]:
    """Return these metrics of every run, None where a run does not have one.

    Metrics of equal work are taken when a run has spent as many local epochs as the run of the
    same dataset and split that spent the fewest in all, the ceiling left out. Metrics beside
    training alone are taken where a run of ``local`` has the same dataset, split and seed.
    """
    budgets = _fewest_epochs(runs, summaries)
    alone = _trained_alone(runs)
    found = []
    for (cell, run), summary in zip(runs, summaries, strict=True):
        values: dict[str, float | None] = {}
        for name in names:
            metric = METRICS[name]
            if isinstance(metric, EqualWorkMetric):
                budget = budgets.get((cell.dataset, cell.split), math.inf)
                values[name] = at_budget(run.history, budget, metric.of)
            elif isinstance(metric, BesideLocalMetric):
                values[name] = _beside(metric, alone.get(_place(cell)), cell, run)
            else:
                values[name] = summary[name]
        found.append(values)
    return found


def _fewest_epochs(runs: CellRuns, summaries: Sequence[Summary]) -> dict[tuple[str, str], float]:
    """Return the epochs of the thriftiest run of every dataset and split."""
    budgets: dict[tuple[str, str], float] = {}
    for (cell, _), summary in zip(runs, summaries, strict=True):
        where, spent = (cell.dataset, cell.split), summary["epochs_total"]
        if competes(cell.strategy) and spent is not None:
            budgets[where] = min(spent, budgets.get(where, spent))
    return budgets


def _place(cell: Cell) -> tuple[str, str, int]:
    return cell.dataset, cell.split, cell.seed


def _is_alone(cell: Cell) -> bool:
    """Return whether every client trains alone, under whatever name in the suite."""
    return isinstance(cell.config.strategy, Local)


def _trained_alone(runs: CellRuns) -> dict[tuple[str, str, int], tuple[Ints, Floats]]:
    """Return the clients' accuracies when each trains alone, by dataset, split and seed."""
    found: dict[tuple[str, str, int], tuple[Ints, Floats]] = {}
    for cell, run in runs:
        if _is_alone(cell) and _place(cell) not in found:
            found[_place(cell)] = last_accuracies(run)
    return found


def _beside(
    metric: BesideLocalMetric, alone: tuple[Ints, Floats] | None, cell: Cell, run: Run
) -> float | None:
    """Return a metric of the clients whose accuracies are known of both runs."""
    if alone is None or _is_alone(cell):
        return None
    clients, together = last_accuracies(run)
    _, own, other = np.intersect1d(alone[0], clients, assume_unique=True, return_indices=True)
    sign = -1 if score_kind_of(run.history).less_is_better else 1
    return finite_or_none(metric.compare(sign * alone[1][own], sign * together[other]))


def last_accuracies(run: Run) -> tuple[Ints, Floats]:
    """Return the clients with scores, and each one's mean accuracy over the last ten rounds.

    Of these rounds those count that were evaluated; a client without any score in them has NaN.
    """
    scores, last = run.scores, run.history[-LAST_ROUNDS:]
    rows = [scores.rounds[record.round] for record in last if record.round in scores.rounds]
    if not rows:
        return scores.clients, np.full(scores.clients.size, np.nan)
    accuracies = np.stack(rows, axis=1)
    known = ~np.isnan(accuracies)
    counts = np.count_nonzero(known, axis=1)
    sums = totals(np.where(known, accuracies, 0.0))
    return scores.clients, np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
