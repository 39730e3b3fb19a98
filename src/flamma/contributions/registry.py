"""All contribution measures by name, and how one is applied to a round."""

from __future__ import annotations

import numpy as np

from flamma.contributions.contract import ContributionMeasure, RoundUpdates
from flamma.contributions.single import cosine, distance
from flamma.errors import StrategyError
from flamma.registry import Choice, Registry
from flamma.types import Floats

CONTRIBUTIONS: Registry[ContributionMeasure] = Registry(
    "contribution measure",
    "flamma.contributions",
    {
        "distance": distance,
        "cosine": cosine,
        "cosine-rescaled": "flamma.contributions.directions:cosine_rescaled",
        "distance-earned": "flamma.contributions.directions:distance_earned",
        "cgsv": "flamma.contributions.directions:cgsv",
        "leave-one-out": "flamma.contributions.coalitions:leave_one_out",
        "shapley": "flamma.contributions.coalitions:shapley",
        "gradient-shapley": "flamma.contributions.coalitions:gradient_shapley",
    },
)
"""All contribution measures by name."""


def measure_round(choice: Choice, updates: RoundUpdates) -> Floats:
    """Return the contribution of every client of a round, by the chosen measure.

    Raises
    ------
    StrategyError
        If the measure needs a validation set and there is none, or if what it returns is not one
        number in [0, 1] for each client.
    """
    entry, measure = CONTRIBUTIONS[choice.name], CONTRIBUTIONS.bind(choice)
    if not getattr(entry, "measures_rounds", False):
        return np.array([measure(update) for update in updates.single()], dtype=np.float64)
    if getattr(entry, "needs_validation", False) and updates.validate is None:
        raise StrategyError(
            f"the contribution measure {choice.name} needs a validation set: set "
            f"data.validation_samples."
        )
    found = np.asarray(measure(updates), dtype=np.float64)
    if found.shape != (len(updates.models),) or not np.all((found >= 0) & (found <= 1)):
        raise StrategyError(
            f"the contribution measure {choice.name} must return a number in [0, 1] for each of "
            f"{len(updates.models)} clients."
        )
    return found
