"""What several behaviours are made of: claims, noise, and checks of their options."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from flamma.clients.behaviours.contract import Encounter
from flamma.errors import ConfigError
from flamma.numerics import normal
from flamma.types import Params

Claim = int | Literal["honest", "most"]
"""The epochs that a client says it did.

A number; what an honest client would have done; or what one would whose work costs nothing, which
is the most that the strategy pays for.
"""


def claim(claimed: Claim, encounter: Encounter) -> int:
    """Return the epochs that a client says it did; 0 where it does not even pretend to work.

    The warm-up is not paid for, so nothing but the honest number is said there.
    """
    if encounter.warms_up or claimed == "honest":
        return encounter.honest.epochs
    return encounter.at_cost(0).epochs if claimed == "most" else claimed


def noise_of(encounter: Encounter, like: Params, length: float, shared: bool = False) -> Params:
    """Return Gaussian noise of a given expected length, keyed by round and client or group."""
    drawn = normal(encounter.rng(shared), like.size)
    with np.errstate(over="ignore", invalid="ignore"):  # the length may be that of anything
        scaled = drawn * (length / math.sqrt(max(1, like.size)))
        return scaled.astype(np.float32)


def moved(received: Params, move: Params) -> Params:
    """Return the received model moved a way; what leaves the range of numbers is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return received + move


def update_of(params: Params, received: Params) -> Params:
    """Return how far a model was moved by training."""
    with np.errstate(over="ignore", invalid="ignore"):
        return params - received


def check_positive(name: str, value: float) -> None:
    """Refuse a factor that is not a positive number."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a positive number, not {value:g}.")


def check_claim(claimed: Claim) -> None:
    """Refuse a claim of no epochs or fewer."""
    if not isinstance(claimed, str) and claimed < 1:
        raise ConfigError(f'claimed must be "honest", "most" or at least 1, not {claimed}.')
