"""Which decay factor each client is offered: the paper's common one, or one without its own say.

Under the rule ``common`` the server solves one game of all clients that it offers work, and all
get the same decay factor. What a client reports moves that decay factor, and so lying can pay.
Under the rule ``others`` each client is offered what solves the game of all *other* clients the
server knows. What it reports then moves the offers of the others only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import GameError
from flamma.game.curves import OfferCurve
from flamma.game.equilibrium import solve
from flamma.game.model import (
    FOLLOWER_TIE,
    Game,
    Vector,
    check_epoch_bounds,
    check_number,
    check_price,
    check_round,
)
from flamma.game.pieces import Pieces, pieces
from flamma.game.response import best_response
from flamma.game.schedules import largest_price, price_for

NO_ROOM = 1 - 4 * FOLLOWER_TIE
"""From this lower bound on γ is as good as fixed at 1, and there is no price to derive."""


@dataclass(frozen=True)
class PricingRule:
    """How the server turns what it knows of the clients into decay factors.

    Parameters
    ----------
    rule : {"common", "others"}
        One game of all offered clients; or for each client the game of all others known.
    decay_floor : "participation" or float
        γ_min. ``participation`` is the smallest γ at which every offered client (under ``others``
        every other one) that would work at γ = 1 still works.
    price : float, optional
        λ, for as many clients as are offered work. The game of m others is played at λ m over
        their number: the server's gain from the clients grows with m, so its price must too, or
        the decay factors could not be compared.
    decay_start : float
        Where no price is given: the share of the rounds before γ leaves 1.
    rounds : int
        How many rounds there are.
    epoch_bounds : (float, float)
        The fewest and the most local epochs of a client that takes part.
    whole_epochs : bool
        Whether the server counts on whole epochs.

    Examples
    --------
    >>> contributions, costs = [0.9, 0.8, 0.7], [0.05, 0.1, 0.2]
    >>> PricingRule(price=1.0, decay_floor=0.0).decay_factors(contributions, costs, 20).round(3)
    array([0.389, 0.389, 0.389])
    >>> others = PricingRule("others", price=1.0, decay_floor=0.0)
    >>> others.decay_factors(contributions, costs, 20).round(3)
    array([0.125, 0.389, 0.944])
    >>> others.decay_factors(contributions, [0.05, 0.1, 0.04], 20).round(3)[2]  # its own lie
    np.float64(0.944)
    """

    rule: Literal["common", "others"] = "common"
    decay_floor: float | Literal["participation"] = "participation"
    price: float | None = None
    decay_start: float = 0.3
    rounds: int = 100
    epoch_bounds: tuple[float, float] = (1, 10)
    whole_epochs: bool = True

    def __post_init__(self) -> None:
        if self.rule not in ("common", "others"):
            raise GameError(f"a pricing rule is 'common' or 'others', not {self.rule!r}.")
        if isinstance(self.decay_floor, str):
            if self.decay_floor != "participation":
                raise GameError(
                    f"decay_floor must be 'participation' or a number, not {self.decay_floor!r}."
                )
        elif not 0 <= check_number("decay_floor", self.decay_floor) <= 1:
            raise GameError(f"decay_floor must lie in [0, 1], not {self.decay_floor:g}.")
        if self.price is not None:
            check_price(self.price)
        if not 0 < check_number("decay_start", self.decay_start) <= 1:
            raise GameError(f"decay_start must lie in (0, 1], not {self.decay_start:g}.")
        check_round(self.rounds, "rounds")
        check_epoch_bounds(self.epoch_bounds, self.whole_epochs)

    def game(self, contributions: ArrayLike, costs: ArrayLike, round: int) -> Game:  # noqa: A002
        """Return the game of these clients: its floor and its price are set by the rule."""
        bare = self._free(contributions, costs, round)
        floor = self._floor(bare.contributions, bare.costs)
        game = bare.replace(price=1.0, decay_bounds=(floor, 1))
        if self.price is not None:
            return game.replace(price=self.price)
        if floor >= NO_ROOM or not best_response(game, 1.0).any():  # γ cannot fall, or need not
            return game.replace(price=0.0)
        return game.replace(price=price_for(self.decay_start, self.rounds, game))

    def decay_factors(
        self,
        contributions: ArrayLike,
        costs: ArrayLike,
        round: int,  # noqa: A002
        offered: ArrayLike | None = None,
    ) -> Vector:
        """Return the decay factor of each client that is offered work.

        Under ``others`` the decay factor of a client is a function of the contributions and the
        costs of the others, to the last bit; if no other client would work at γ = 1 it is
        min(1, ω / (2 λ t)), which is the server's best for a client whose work it cannot move,
        and with a derived price min(1, t0 / t).

        Parameters
        ----------
        contributions, costs : array_like
            ω and c of all clients that the server knows.
        round : int
            t ≥ 1.
        offered : array_like of int, optional
            The clients that are offered work; all of them by default.
        """
        known = self._free(contributions, costs, round)
        chosen = _indices(offered, known.clients)
        if self.rule == "common":
            game = self.game(known.contributions[chosen], known.costs[chosen], known.round)
            return np.full(chosen.size, solve(game).decay_factor)
        return np.fromiter(self._without_oneself(known, chosen), np.float64, chosen.size)

    def _without_oneself(self, known: Game, chosen: NDArray[np.int64]) -> Iterator[float]:
        unasked = np.delete(np.arange(known.clients), chosen)
        works = best_response(known, 1.0) > 0
        others, rest = known.clients - 1, self._pieces(known, unasked)
        for place, client in enumerate(chosen):
            # Nothing from here on may look at what this client reports.
            asked = np.delete(chosen, place)
            if not (works[unasked].any() or works[asked].any()):
                yield self._alone(float(known.contributions[client]), known.round)
                continue
            # Those that are asked set the floor, because it is they whom it keeps at work. Among
            # all clients known there would always be one that needs γ close to 1.
            members = asked if asked.size else unasked
            floor = self._floor(known.contributions[members], known.costs[members])
            if floor >= NO_ROOM:
                yield 1.0
                continue
            curve = OfferCurve((*rest, *self._pieces(known, asked)), (floor, 1.0))
            if self.price is not None:
                price = self.price * others / chosen.size
            else:
                price = largest_price(curve) / (self.decay_start * self.rounds)
            yield curve.best(price * known.round)

    def _free(self, contributions: ArrayLike, costs: ArrayLike, round_: int) -> Game:
        return Game(contributions, costs, round_, 0.0, self.epoch_bounds, self.whole_epochs)

    def _floor(self, omega: Vector, costs: Vector) -> float:
        if not isinstance(self.decay_floor, str):
            return self.decay_floor
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            entry = self.epoch_bounds[0] * costs / omega
        return float(np.max(entry[entry <= 1], initial=0.0))

    def _pieces(self, known: Game, members: NDArray[np.int64]) -> tuple[Pieces, ...]:
        if not members.size:
            return ()
        omega, costs = known.contributions[members], known.costs[members]
        return (pieces(known.replace(contributions=omega, costs=costs, round=1)),)

    def _alone(self, omega: float, round_: int) -> float:
        floor = 0.0 if isinstance(self.decay_floor, str) else self.decay_floor
        if self.price is None:
            best = min(1.0, self.decay_start * self.rounds / round_)
        else:
            influence = 2 * self.price * round_
            best = min(1.0, omega / influence) if influence > 0 else 1.0
        return max(floor, best)


def _indices(offered: ArrayLike | None, clients: int) -> NDArray[np.int64]:
    if offered is None:
        return np.arange(clients)
    chosen = np.asarray(offered)
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        raise GameError("offered must be a list of client numbers.")
    chosen = chosen.astype(np.int64)
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < clients):
        raise GameError(f"offered must name clients 0..{clients - 1}.")
    if np.unique(chosen).size != chosen.size:
        raise GameError("offered must not name a client twice.")
    return chosen
