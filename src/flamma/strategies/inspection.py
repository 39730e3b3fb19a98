"""Inspections: whose claimed work is done once more at the client, and what that finds out.

Training is the same to the last bit on every machine, so an inspector at the client can repeat the
claimed work and compare. An answer is inspected

- if the client was never inspected before,
- by chance, which the client is not told,
- if it claims more epochs than inspected work proves: a client that did τ epochs at a rate of pay
  γ ω has a cost of at most γ ω / (2 τ - 1), and does at least the best response at that cost for
  every other rate. So whoever claims more epochs than are best for it is inspected, always,
- if its update is implausibly short or long for what it claims, or it names other samples than the
  client introduced itself with,
- if the client's last inspection failed.

An inspection that fails (the inspector is late, or its training ends with an error or with numbers
that are not finite) verifies nothing. The answer is not used, its pay is withheld, and the client's
next answer is inspected. Once an inspection succeeds the withheld pay is paid, for each answer at
most what the verified one earns. After three failed inspections in a row the client is not selected
any more, and nothing is paid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flamma.game import Game, best_response
from flamma.game.costs import cost_interval
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.numerics import norm
from flamma.strategies.common import model_of
from flamma.types import Floats, Params, Report, Terms

SAME_UPDATE = 1e-3
"""How far an update may be from the inspector's, as a share of its length: torch rounds."""

MOST_UNVERIFIED = 3
"""After so many failed inspections in a row a client is not selected any more."""


def proven_epochs(terms: Terms, largest_cost: float, epoch_bounds: tuple[int, int]) -> int:
    """Return the epochs that are best for a client of the largest cost it may have."""
    if not math.isfinite(largest_cost):
        return 0
    cost = float(np.clip(largest_cost, SMALLEST_COST, LARGEST_COST))
    game = Game([terms.contribution], [cost], epoch_bounds=epoch_bounds)
    return int(best_response(game, terms.decay_factor)[0])


def with_verified(
    largest_costs: Floats,
    terms: Sequence[Terms],
    verified: Mapping[int, int],
    epoch_bounds: tuple[int, int],
) -> Floats:
    """Return the largest costs that clients may have, now that these epochs were verified."""
    found = largest_costs.copy()
    for own in terms:
        if own.client in verified:
            pull = np.array([own.decay_factor * own.contribution])
            epochs = np.array([float(verified[own.client])])
            _, [at_most], _ = cost_interval(pull, epochs, epoch_bounds, whole=True)
            found[own.client] = min(found[own.client], at_most)
    return found


def inspector_failure(report: Report, truth: Report | None) -> str:
    """Return why an inspection cannot tell whether a report is true; empty if it can."""
    if truth is None or truth.params is None or truth.failure:
        return (truth and truth.failure) or "no result"
    if report.params is None or truth.params.shape != report.params.shape:
        return "weights of another shape"
    if truth.samples < 1:
        return "no samples"
    if not np.isfinite(truth.params).all():
        return "weights that are not finite"
    if math.isfinite(report.loss) and not math.isfinite(truth.loss):
        return "no loss to compare"
    return ""


def difference(report: Report, truth: Report, received: Params) -> str:
    """Return how a report differs from what the inspector got; empty if it does not."""
    if report.samples > truth.samples:
        return f"inspected: it has {truth.samples} samples, not {report.samples}"
    verified = model_of(truth)
    moved = norm(verified - received)
    if norm(model_of(report) - verified) > SAME_UPDATE * moved:
        return f"inspected: its update is not that of {report.epochs} epochs on its data"
    if report.loss > truth.loss * (1 + SAME_UPDATE):
        return f"inspected: its loss is {truth.loss:.4g}, not {report.loss:.4g}"
    return ""
