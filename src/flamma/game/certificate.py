"""Measures how far a play is from equilibrium, by a method that is independent of the solver.

Responses are found from evaluated utilities alone (a parabola through three of them), and the
leader's best utility by evaluating it on a grid and refining where it could still be larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import GameError
from flamma.game.model import (
    Game,
    check_decay_factor,
    check_epochs,
    client_utility,
    server_utility,
    takes_part,
)
from flamma.numerics import totals
from flamma.types import Floats

_UTILITY_ERROR = 4e-15
"""Relative rounding error of an evaluated utility, in double precision."""


@dataclass(frozen=True)
class Certificate:
    """The gaps of one play, in units of utility; at an equilibrium both gaps are zero.

    Attributes
    ----------
    follower_gap : float
        The most that any client could gain by another number of epochs, or by abstaining.
    leader_regret : float
        What the leader could gain by the best common decay factor, the clients answering
        rationally. Negative if the clients work more than is rational for them, or if one decay
        factor for each brings the leader more than any common one.
    leader_regret_uncertainty : float
        The regret is at least ``leader_regret`` and at most this much larger.
    better_decay_factor : float
        The decay factor at which the leader would do best.
    individual_rationality_slack : float
        The smallest utility among the clients that take part (0 if none does); negative if a
        client works at a loss.
    abstaining_share : float
        The share of the clients that abstain.
    """

    follower_gap: float
    leader_regret: float
    leader_regret_uncertainty: float
    better_decay_factor: float
    individual_rationality_slack: float
    abstaining_share: float


@np.errstate(over="ignore")  # a ratio may be infinite; it is clipped to the bounds
def certify(game: Game, decay_factor: ArrayLike, local_epochs: ArrayLike) -> Certificate:
    """Measure how far this play is from a Stackelberg equilibrium of the game.

    With one decay factor per client, as under a :class:`PricingRule` of ``others``, each client
    is measured by its own, and the leader's regret is what it loses against the best common decay
    factor; its utility is then Σ γ_i (ω_i + τ_i) - λ t mean(γ_i²).

    Parameters
    ----------
    game : Game
    decay_factor : float or array_like
        γ as played, one for all clients or one per client.
    local_epochs : array_like
        τ as played, one per client; 0 for a client that abstains.

    Returns
    -------
    Certificate

    Raises
    ------
    GameError
        If the play breaks the game's rules: a common decay factor or epochs outside the bounds.
        Individual decay factors need only lie in [0, 1], for each may have other bounds.

    Examples
    --------
    >>> game = Game([0.9, 0.8], [0.1, 0.1], round=4)
    >>> certificate = certify(game, 0.5, [1, 2])  # the first should do 2, the server play 1
    >>> round(certificate.follower_gap, 9), round(certificate.leader_regret, 9)
    (0.15, 5.35)
    """
    if np.ndim(decay_factor) == 0:
        gamma = float(check_decay_factor(decay_factor))
        low, high = game.decay_bounds
        if not low <= gamma <= high:
            raise GameError(
                f"the decay factor {gamma:g} lies outside its bounds {low:g}..{high:g}."
            )
        tau = _check_epochs_played(game, local_epochs)
        _, best_utility = _respond(game, np.array([gamma]))
        best_utility = best_utility[0]
        utility = client_utility(game, gamma, tau)
        played = float(server_utility(game, gamma, tau))
    else:
        tau = _check_epochs_played(game, local_epochs)
        utility = client_utility(game, decay_factor, tau, one_each=True)
        played = float(server_utility(game, decay_factor, tau, one_each=True))
        _, best_utility = _respond(game, np.asarray(decay_factor, dtype=float), one_each=True)
        gamma = game.decay_bounds[1]  # where to look for something better, beside the grid
    playing = takes_part(game, tau)
    best, upper, where = _leader_optimum(game, gamma, played)
    return Certificate(
        follower_gap=float(np.max(best_utility - utility)),
        leader_regret=best - played,
        leader_regret_uncertainty=upper - best,
        better_decay_factor=where,
        individual_rationality_slack=float(np.min(utility[playing])) if playing.any() else 0.0,
        abstaining_share=float(np.mean(~playing)),
    )


def _check_epochs_played(game: Game, local_epochs: ArrayLike) -> Floats:
    tau = check_epochs(game, local_epochs).reshape(game.clients)
    low, high = game.epoch_bounds
    allowed = (tau == 0) | ((tau >= low) & (tau <= high) & np.isfinite(tau))
    if game.whole_epochs:
        allowed &= tau == np.floor(tau)
    if not allowed.all():
        client = int(np.argmin(allowed))
        raise GameError(f"client {client} cannot play {tau[client]:g} epochs in this game.")
    return tau


def _respond(game: Game, gammas: Floats, one_each: bool = False) -> tuple[Floats, Floats]:
    """Return best epochs and utilities from evaluated utilities only.

    Their shape is (gammas, clients), or (clients,) for one decay factor each.
    """
    low, high = game.epoch_bounds

    def worth(epochs: Floats) -> Floats:
        return client_utility(game, gammas, epochs, one_each=one_each)

    shape = gammas.shape if one_each else (gammas.size, game.clients)
    peak = np.clip(_peak(game, worth, shape), low, high)
    if game.whole_epochs:
        below, above = np.floor(peak), np.minimum(np.floor(peak) + 1, high)
        value_below, value_above = (worth(t) for t in (below, above))
        margin = _UTILITY_ERROR * np.abs(game.costs * np.square(above))
        tau = np.where(value_above >= value_below - margin, above, below)
    else:
        tau = peak
    value = worth(tau)
    if low > 0:
        stays = value >= -_UTILITY_ERROR * game.costs * np.square(tau)
        tau, value = np.where(stays, tau, 0.0), np.where(stays, value, 0.0)
    return tau, value


def _peak(game: Game, worth: Callable[[Floats], Floats], shape: tuple[int, ...]) -> Floats:
    """Return where each client's utility peaks: the vertex through three evaluated points."""
    low, high = game.epoch_bounds
    step = np.full(shape, (high - low) / 2 if low < high < np.inf else 1.0)

    def at(steps: int) -> Floats:
        return worth(low + steps * step)

    if high == np.inf:
        # This ends, because costs are positive: every utility falls in the end.
        while (rising := at(2) > at(1)).any():
            step = np.where(rising, 2 * step, step)
    left, middle, right = at(0), at(1), at(2)
    bend = left - 2 * middle + right
    with np.errstate(divide="ignore", invalid="ignore"):
        peak = low + step + step * (left - right) / (2 * bend)
    # A curvature that is lost in rounding means a peak far to one side.
    return np.where(bend < 0, peak, np.where(right > left, np.inf, -np.inf))


class _Points(NamedTuple):
    """The leader's utility at some decay factors, in order.

    ``offer`` is Σ (ω_i + τ_i) and ``phases`` a count that no client lowers as γ rises: it is
    equal at two decay factors only if every client is in the same phase (out, at its lower
    bound, between, at its upper bound; or at one whole number of epochs) all the way between.
    """

    gamma: Floats
    utility: Floats
    offer: Floats
    phases: Floats


def _evaluate(game: Game, gammas: Floats) -> _Points:
    rows = max(1, 1_000_000 // game.clients)
    utility, offer = np.empty(gammas.size), np.empty(gammas.size)
    phases = np.empty(gammas.size)
    low, high = game.epoch_bounds
    for first in range(0, gammas.size, rows):
        part = slice(first, first + rows)
        tau, _ = _respond(game, gammas[part])
        playing = takes_part(game, tau)
        utility[part] = server_utility(game, gammas[part], tau)
        offer[part] = totals(np.where(playing, game.contributions + tau, 0.0))
        phase = tau if game.whole_epochs else (tau > low).astype(float) + (tau >= high)
        phases[part] = np.sum(np.where(playing, 1 + phase, 0), axis=-1)
    return _Points(gammas, utility, offer, phases)


def _leader_optimum(game: Game, gamma: float, played: float) -> tuple[float, float, float]:
    """Return the leader's best utility found, an upper bound on it, and the decay factor.

    Between two decay factors a < b no client works more than at b, so U_s(γ) is at most
    γ·offer(b) - λ t γ², a parabola whose maximum is known. Intervals whose bound is below the
    best value found are discarded. Where every client keeps its phase, U_s is one parabola, whose
    peak follows from three evaluations. The other intervals are cut into parts.
    """
    # With very many clients the uncertainty grows instead of the number of responses, and intervals
    # are only cut in half.
    budget = max(64, 50_000_000 // game.clients)
    parts = 2 if game.clients > 10_000 else 8
    grid = np.union1d(np.linspace(*game.decay_bounds, num=min(129, budget // 4)), [gamma])
    points = _evaluate(game, grid)
    best_index = int(np.argmax(points.utility))
    best, where = float(points.utility[best_index]), float(grid[best_index])
    left, right = _take(points, slice(None, -1)), _take(points, slice(1, None))
    spent, upper = grid.size, best

    while left.gamma.size:
        tolerance = _UTILITY_ERROR * max(
            abs(best), abs(played), game.influence_price * where * where
        )
        bound = _upper_bound(game, left, right)
        open_ = bound > best + tolerance
        left, right, bound = _take(left, open_), _take(right, open_), bound[open_]
        done = right.gamma - left.gamma <= 4 * np.finfo(float).eps * right.gamma
        room = max(0, (budget - spent) // parts)
        if done.size > room:  # only the most promising can still be refined
            done[np.argsort(bound, kind="stable")[: done.size - room]] = True
        if done.any():
            upper = max(upper, float(np.max(bound[done])))
            left, right = _take(left, ~done), _take(right, ~done)
        if not left.gamma.size:
            break
        single = left.phases == right.phases
        vertex = _vertex(game, _take(left, single), _take(right, single))
        left, right = _take(left, ~single), _take(right, ~single)
        share = np.arange(1, parts) / parts
        inner = left.gamma[:, None] + (right.gamma - left.gamma)[:, None] * share
        found = _evaluate(game, np.concatenate((inner.ravel(), vertex)))
        spent += found.gamma.size
        if np.max(found.utility) > best:
            best = float(np.max(found.utility))
            where = float(found.gamma[np.argmax(found.utility)])
        cuts = _take(found, slice(0, inner.size))
        left, right = _cut(left, cuts, right, parts)
    return best, max(upper, best), where


def _upper_bound(game: Game, left: _Points, right: _Points) -> Floats:
    price = game.influence_price
    with np.errstate(divide="ignore", invalid="ignore"):
        peak = np.where(right.offer > 0, right.offer / (2 * price), 0.0)
    gamma = np.clip(peak, left.gamma, right.gamma)
    bound: Floats = gamma * right.offer - price * np.square(gamma)
    return bound


def _vertex(game: Game, left: _Points, right: _Points) -> Floats:
    """Return the peak of each interval on which the utility is one parabola."""
    middle = _evaluate(game, (left.gamma + right.gamma) / 2)
    bend = left.utility - 2 * middle.utility + right.utility
    half = (right.gamma - left.gamma) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        peak = middle.gamma + half * (left.utility - right.utility) / (2 * bend)
    return np.clip(np.where(bend < 0, peak, middle.gamma), left.gamma, right.gamma)


def _take(points: _Points, which: slice | NDArray[np.bool_]) -> _Points:
    return _Points(*(values[which] for values in points))


def _cut(left: _Points, cuts: _Points, right: _Points, parts: int) -> tuple[_Points, _Points]:
    """Return the left and the right ends of all parts that the cuts make of the intervals."""
    lines = []
    for first, inner, last in zip(left, cuts, right, strict=True):
        middle = inner.reshape(first.size, parts - 1)
        lines.append(np.concatenate((first[:, None], middle, last[:, None]), axis=1))
    starts = _Points(*(line[:, :-1].ravel() for line in lines))
    return starts, _Points(*(line[:, 1:].ravel() for line in lines))
