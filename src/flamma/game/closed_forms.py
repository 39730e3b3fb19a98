"""The paper's closed forms, each with the condition under which it is the equilibrium.

They describe continuous epochs without bounds. A = Σ ω_i and B = Σ ω_i / c_i.
"""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from flamma.game.model import Game, Vector, check_decay_factor
from flamma.numerics import total


def unbounded_best_response(
    contributions: ArrayLike, costs: ArrayLike, decay_factor: float
) -> Vector:
    """Return τ* = γ ω / (2 c), the best response of Lemma 2.

    It is :func:`best_response` where epochs are continuous and no epoch bound binds.
    """
    game = _unbounded(contributions, costs)
    response: Vector = check_decay_factor(decay_factor) * game.contributions / (2 * game.costs)
    return response


def printed_decay_factor(contribution: float, cost: float, round: int) -> float:  # noqa: A002
    """Return γ* = ω c / (2 t c - ω) as printed, for one client and a price of 1.

    It is the equilibrium only of the one-client game, only where 2 t c > ω (else the server's
    utility is convex and the formula negative or undefined), and only where the value is at
    most 1, which is t ≥ (ω + ω / c) / 2. Elsewhere the equilibrium is γ = 1.

    Examples
    --------
    >>> round(printed_decay_factor(0.8, 0.1, round=10), 4)
    0.0667
    >>> round(printed_decay_factor(0.8, 0.1, round=3), 4)  # 2 t c < ω: no maximum at all
    -0.4
    """
    game = _unbounded([contribution], [cost], round)
    omega, c = float(game.contributions[0]), float(game.costs[0])
    denominator = 2 * game.round * c - omega
    return omega * c / denominator if denominator else math.inf


def server_utility_is_concave(
    contributions: ArrayLike,
    costs: ArrayLike,
    round: int,  # noqa: A002
    price: float = 1.0,
) -> bool:
    """Return whether Lemma 3 holds: U_s(γ, τ*(γ)) is strictly concave exactly if 2 λ t > B.

    Examples
    --------
    >>> [server_utility_is_concave([0.8], [0.1], round=t) for t in (4, 5)]
    [False, True]
    """
    game = _unbounded(contributions, costs, round, price)
    return 2 * game.influence_price > _sums(game)[1]


def closed_form_decay_factor(
    contributions: ArrayLike,
    costs: ArrayLike,
    round: int,  # noqa: A002
    price: float = 1.0,
) -> float:
    """Return min(1, A / (2 λ t - B)) where 2 λ t > B, else 1: the equilibrium without bounds.

    Examples
    --------
    >>> round(closed_form_decay_factor([0.8, 0.4], [0.1, 0.1], round=10), 4)
    0.15
    """
    game = _unbounded(contributions, costs, round, price)
    offered, response = _sums(game)
    curvature = 2 * game.influence_price - response
    return min(1.0, offered / curvature) if curvature > 0 else 1.0


def decay_start_round(contributions: ArrayLike, costs: ArrayLike, price: float = 1.0) -> float:
    """Return t0 = (A + B) / (2 λ), up to which γ = 1; afterwards γ falls like 1/t.

    Examples
    --------
    >>> decay_start_round([0.8, 0.4], [0.1, 0.1])
    6.6
    """
    game = _unbounded(contributions, costs, price=price)
    offered, response = _sums(game)
    return (offered + response) / (2 * game.price) if game.price else math.inf


def _unbounded(
    contributions: ArrayLike,
    costs: ArrayLike,
    round: int = 1,  # noqa: A002
    price: float = 1.0,
) -> Game:
    return Game(contributions, costs, round, price, epoch_bounds=(0, math.inf), whole_epochs=False)


def _sums(game: Game) -> tuple[float, float]:
    omega = game.contributions
    return total(omega), total(omega / game.costs)
