"""What the server of a game knows of every client, and how play reveals costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from flamma.game.costs import cost_interval, middle_cost
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.strategies.base import Answers, State
from flamma.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class FlammaState(State):
    """What the server knows of every client.

    Attributes
    ----------
    trainable_size : int
        How many of the weights count in a distance.
    contributions : ndarray
        ω as of the last refresh, what the game is played with.
    effective : ndarray
        ω decayed by every selection since the last refresh, what selection goes by.
    measured : ndarray
        ω as of the client's last report.
    costs : ndarray
        c as given to the server; NaN where it must go by the revealed bounds.
    cost_lower, cost_upper : ndarray
        What the clients' play has revealed of their costs.
    """

    trainable_size: int
    contributions: Floats
    effective: Floats
    measured: Floats
    costs: Floats
    cost_lower: Floats
    cost_upper: Floats


Known = TypeVar("Known", bound=FlammaState)


def known_costs(state: FlammaState, clients: Ints, prior: float) -> Floats:
    """Return these clients' costs as the server knows them: given, revealed, or assumed."""
    given = state.costs[clients]
    revealed = middle_cost(state.cost_lower[clients], state.cost_upper[clients])
    estimate = np.where(np.isfinite(revealed), revealed, prior)
    known = np.where(np.isnan(given), estimate, given)
    return np.clip(known, SMALLEST_COST, LARGEST_COST)


def observed(state: Known, answers: Answers, epoch_bounds: tuple[int, int]) -> Known:
    """Return the state with narrower bounds on the costs of those whose epochs were seen."""
    played = {r.client: r.epochs for r in answers.accepted} | dict.fromkeys(answers.abstained, 0)
    if not np.isnan(state.costs).any() or not played:
        return state
    pulls = {t.client: t.decay_factor * t.contribution for t in answers.offer.terms}
    clients = np.array(sorted(played))
    pull = np.array([pulls[c] for c in clients])
    epochs = np.array([float(played[c]) for c in clients])
    at_least, at_most, _ = cost_interval(pull, epochs, epoch_bounds, whole=True)
    lower, upper = state.cost_lower.copy(), state.cost_upper.copy()
    lower[clients] = np.maximum(lower[clients], at_least)
    upper[clients] = np.minimum(upper[clients], at_most)
    return replace(state, cost_lower=lower, cost_upper=upper)
