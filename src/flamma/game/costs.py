"""Estimates clients' costs from their play.

A rational client that plays τ epochs at decay factor γ and contribution ω has a cost of about
γ ω / (2 τ); rounding to whole epochs and the epoch bounds turn that into an interval. Several
rounds narrow it. So the server can play the game without asking for costs. Asking would invite
lying: a report that raises γ is to the client's own advantage. At a given price that is a lower
cost; with a derived price, or a floor that keeps all clients at work, it is a higher one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import GameError
from flamma.game.model import (
    Game,
    best_response,
    check_decay_factor,
    check_epoch_bounds,
    client_utility,
)
from flamma.types import Floats

_BOUNDS_TOLERANCE = 1e-9
"""Relative gap between two bounds on a cost that still counts as agreement, because of rounding."""

_Observation = tuple[float, ArrayLike, ArrayLike]


@dataclass(frozen=True)
class Contradiction:
    """A client's play that no single cost explains.

    ``rounds`` are the two rounds (counted from 0, as given) whose bounds exclude each other, or
    the one round whose play no cost at all explains.
    """

    client: int
    rounds: tuple[int, ...]
    reason: str


@dataclass(frozen=True, eq=False)
class RevealedCosts:
    """The costs consistent with rational play, one entry per client.

    Attributes
    ----------
    lower, upper : ndarray
        The interval; from 0 to infinity where nothing is known.
    estimate : ndarray
        The middle of the interval in 1/c, where play is linear: γ ω / (2 τ) after one round,
        twice the lower bound of a client that only abstained. The upper bound where there is no
        lower one, NaN where nothing is known.
    consistent : ndarray of bool
        Whether some cost explains all of a client's play. Where two rounds contradict each other,
        ``lower`` exceeds ``upper`` and the estimate lies between them; a round that no cost
        explains narrows nothing.
    contradictions : tuple of Contradiction
        The play that no cost explains.
    """

    lower: Floats
    upper: Floats
    estimate: Floats
    consistent: NDArray[np.bool_]
    contradictions: tuple[Contradiction, ...]


def reveal_costs(
    rounds: Iterable[_Observation],
    epoch_bounds: tuple[float, float] = (1, 10),
    whole_epochs: bool = True,
) -> RevealedCosts:
    """Return the costs that rational play of these rounds reveals.

    Parameters
    ----------
    rounds : iterable of (decay_factor, contributions, local_epochs)
        What was announced, measured and played. ``local_epochs`` is NaN for a client that was
        not in the game that round, and 0 for one that abstained.
    epoch_bounds, whole_epochs
        The rules the clients played by.

    Examples
    --------
    >>> revealed = reveal_costs([(1.0, [0.8], [4]), (0.5, [0.8], [2])])
    >>> revealed.lower.round(4), revealed.upper.round(4), revealed.estimate
    (array([0.0889]), array([0.1143]), array([0.1]))
    """
    low, high = check_epoch_bounds(epoch_bounds, whole_epochs)
    lower = upper = lower_round = upper_round = None
    contradictions: list[Contradiction] = []
    for number, (decay_factor, contributions, local_epochs) in enumerate(rounds):
        pull, tau = _observed(number, decay_factor, contributions, local_epochs)
        if lower is None or upper is None or lower_round is None or upper_round is None:
            lower, upper = np.zeros(tau.size), np.full(tau.size, np.inf)
            lower_round, upper_round = np.full((2, tau.size), -1)
        if tau.size != lower.size:
            raise GameError(
                f"every round must name the same clients, but round {number} has {tau.size} "
                f"of them and round 0 has {lower.size}."
            )
        at_least, at_most, explained = cost_interval(pull, tau, (low, high), whole_epochs)
        contradictions += [
            Contradiction(int(i), (number,), f"no cost explains {tau[i]:g} epochs")
            for i in np.flatnonzero(~explained)
        ]
        lower_round = np.where(at_least > lower, number, lower_round)
        upper_round = np.where(at_most < upper, number, upper_round)
        lower, upper = np.maximum(lower, at_least), np.minimum(upper, at_most)
    if lower is None or upper is None or lower_round is None or upper_round is None:
        raise GameError("revealing costs needs at least one round of play.")
    crossed = lower > upper * (1 + _BOUNDS_TOLERANCE)
    contradictions += [
        Contradiction(
            int(i),
            tuple(sorted((int(lower_round[i]), int(upper_round[i])))),
            f"one round says the cost is above {lower[i]:g}, another below {upper[i]:g}",
        )
        for i in np.flatnonzero(crossed)
    ]
    consistent = ~crossed
    consistent[[c.client for c in contradictions]] = False
    return RevealedCosts(lower, upper, middle_cost(lower, upper), consistent, tuple(contradictions))


def _observed(
    number: int, decay_factor: float, contributions: ArrayLike, local_epochs: ArrayLike
) -> tuple[Floats, Floats]:
    gamma = check_decay_factor(decay_factor)
    omega = np.asarray(contributions, dtype=np.float64)
    tau = np.asarray(local_epochs, dtype=np.float64)
    if omega.shape != tau.shape or tau.ndim != 1 or gamma.ndim != 0:
        raise GameError(
            f"round {number} must be one decay factor, and equally many contributions and epochs."
        )
    present = ~np.isnan(tau)
    if not np.all((omega[present] >= 0) & (omega[present] <= 1)):
        raise GameError(f"round {number} has a contribution outside [0, 1].")
    return gamma * np.where(present, omega, 0.0), tau


def cost_interval(
    pull: Floats, tau: Floats, epoch_bounds: tuple[float, float], whole: bool
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return the smallest and the largest cost that explain a round's play, and whether one does.

    ``pull`` is γ ω, ``tau`` the epochs played (NaN if not in the game). A whole τ is the nearest
    to γ ω / (2 c), so that lies within half an epoch of it; a bound that binds leaves one side
    open; taking part means c τ_min <= γ ω.
    """
    low, high = epoch_bounds
    absent = np.isnan(tau)
    out = (tau == 0) & (low > 0)
    playing = ~absent & ~out
    slack = 0.5 if whole else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        at_least = pull / (2 * (tau + slack))
        at_most = pull / (2 * (tau - slack))
        entry = pull / low if low > 0 else np.full(tau.size, np.inf)
    at_least = np.where(playing & (tau < high) & (pull > 0), at_least, 0.0)
    at_most = np.where(playing & (tau > low), at_most, np.where(playing, entry, np.inf))
    at_least = np.where(out, entry, at_least)

    explained = absent | out | ((tau >= low) & (tau <= high) & np.isfinite(tau))
    if whole:
        explained &= absent | (tau == np.floor(tau))
    # With γ ω = 0 no client works; with γ ω > 0 and continuous epochs every client works.
    explained &= ~(playing & (pull == 0) & (tau > 0))
    explained &= ~(playing & (pull > 0) & (tau == 0) & (not whole))
    at_least = np.where(explained, at_least, 0.0)
    at_most = np.where(explained, at_most, np.inf)
    return at_least, at_most, explained


def middle_cost(lower: Floats, upper: Floats) -> Floats:
    """Return the middle of intervals of costs in 1/c; see :class:`RevealedCosts`."""
    with np.errstate(divide="ignore"):
        middle = 2 / (1 / lower + 1 / upper)
    middle = np.where(lower > 0, middle, upper)
    estimate: Floats = np.where(np.isfinite(middle), middle, math.nan)
    return estimate


# Inspections: how often, and with which fine, so that cheating does not pay.


def smallest_inspection_rate(gain: ArrayLike, fine: ArrayLike) -> Floats:
    """Return the smallest probability of an inspection at which cheating does not pay.

    A client that cheats gains g if it is not inspected, and loses f otherwise. With inspections
    of probability a it expects (1 - a) g - a f, which is at most 0 from a = g / (f + g) on.

    Parameters
    ----------
    gain : array_like
        g, what cheating is worth against being honest; where that is 0 or less, the rate is 0.
    fine : array_like
        f ≥ 0, what a client that is caught loses against being honest. With 0, only certain
        inspection (a rate of 1) deters.

    Examples
    --------
    >>> smallest_inspection_rate([0.0, 1.0, 1.0, 3.0], [1.0, 1.0, 0.0, 1.0])
    array([0.  , 0.5 , 1.  , 0.75])
    """
    gained, lost = np.broadcast_arrays(_numbers(gain, "a gain"), _numbers(fine, "a fine"))
    if (lost < 0).any():
        raise GameError("a fine must not be negative.")
    if (np.isinf(gained) & (gained > 0) & np.isinf(lost)).any():
        raise GameError("no rate follows from a gain and a fine that are both infinite.")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # Not g / (f + g), whose sum may leave the range of floats.
        rate = 1 / (1 + lost / gained)
    found: Floats = np.where(gained > 0, rate, 0.0)
    return found


def deterring_fine(gain: ArrayLike, rate: ArrayLike) -> Floats:
    """Return the smallest loss on being caught at which cheating does not pay, g (1 - a) / a.

    Parameters
    ----------
    gain : array_like
        g, what cheating is worth against being honest; where that is 0 or less, no fine is needed.
    rate : array_like
        a, the probability of an inspection. No fine deters where it is 0, so that is infinite.

    Examples
    --------
    >>> deterring_fine([1.0, 1.0, 1.0, -1.0], [0.5, 0.0, 1.0, 0.0])
    array([ 1., inf,  0.,  0.])
    """
    gained, looked = np.broadcast_arrays(_numbers(gain, "a gain"), _numbers(rate, "a rate"))
    if ((looked < 0) | (looked > 1)).any():
        raise GameError("a rate of inspection must lie in [0, 1].")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        fine = gained * ((1 - looked) / looked)
    found: Floats = np.where((gained > 0) & (looked < 1), fine, 0.0)
    return found


def free_riding(game: Game, decay_factors: ArrayLike) -> tuple[Floats, Floats]:
    """Return what each client gains by claiming the most epochs without any work, and its utility.

    A client that is believed is paid γ ω τ for its claim, so the best claim is the upper bound of
    the epochs. The utility is that of honest play, the client's best response; the gain is the
    payment less that utility. It contains the cost that is saved, c τ² for τ epochs, and the
    payment for epochs that no client would do.

    Parameters
    ----------
    game : Game
        With the clients' true costs.
    decay_factors : array_like
        γ, one for all clients or one for each.

    Returns
    -------
    gain, honest : ndarray of shape (clients,)
        Both in units of utility. The gain is infinite where the epochs have no upper bound.

    Examples
    --------
    >>> gain, honest = free_riding(Game([0.8], [0.1]), 1.0)
    >>> gain, honest  # 10 epochs are paid 8; honest are 4 epochs, paid 3.2 at a cost of 1.6
    (array([6.4]), array([1.6]))
    """
    pull = np.asarray(decay_factors, dtype=np.float64) * game.contributions
    own = game.replace(contributions=pull)  # a rate of pay is all that a client sees
    honest: Floats = client_utility(own, 1.0, best_response(own, 1.0))
    with np.errstate(invalid="ignore"):
        most = np.where(pull > 0, pull * game.epoch_bounds[1], 0.0)
    gain: Floats = most - honest
    return gain, honest


def _numbers(values: ArrayLike, what: str) -> Floats:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GameError(f"{what} must be a number.") from error
    if np.isnan(found).any():
        raise GameError(f"{what} must be a number, not NaN.")
    return found
