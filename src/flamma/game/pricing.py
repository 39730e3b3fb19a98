"""The decay factor of each client: the paper's common one, or one independent of its report.

Under the rule ``common`` the server solves one game of all clients that it offers work, and all
get the same decay factor. What a client reports moves that decay factor, and so lying can pay.
Under the rule ``others`` each client is offered what solves the game of all *other* clients the
server knows. What it reports then moves the offers of the others only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import GameError
from flamma.game.equilibrium import Pieces, best_of_pieces, solve, utility_pieces
from flamma.game.model import (
    FOLLOWER_TIE,
    Game,
    best_response,
    check_decay_factor,
    check_epoch_bounds,
    check_number,
    check_price,
    check_round,
    server_utility,
)
from flamma.numerics import total
from flamma.types import Floats

# The decay factor over the rounds: the price that sets when it falls, and two fixed rules.


def price_for(
    decay_start: float,
    rounds: int,
    contributions: ArrayLike | Game,
    costs: ArrayLike | None = None,
    epoch_bounds: tuple[float, float] = (0, math.inf),
    whole_epochs: bool = False,
    decay_bounds: tuple[float, float] = (0.0, 1.0),
) -> float:
    """Return the price λ at which γ stays at its upper bound until round t0 and falls after it.

    With continuous epochs and no epoch bounds, the default, that is λ = (A + B) / (2 t0). With
    bounds or whole epochs it is found exactly too: γ_max stays optimal as long as
    λ t ≤ min over γ of (γ_max S(γ_max) - γ S(γ)) / (γ_max² - γ²), where S is what the clients
    offer, Σ (ω_i + τ_i*). The minimum of this ratio is found by Dinkelbach's iteration, each
    step of which is one exact :func:`solve`.

    Parameters
    ----------
    decay_start : float
        t0 as a share of the rounds, in (0, 1].
    rounds : int
        How many rounds there are; t0 = decay_start · rounds.
    contributions : Game or array_like
        A game, whose clients and rules are taken (its round and price are not), or ω.
    costs, epoch_bounds, whole_epochs, decay_bounds
        As of :class:`Game`, where no game is given; the default rules are the closed form's.

    Examples
    --------
    >>> price_for(0.5, 100, [0.8, 0.4], [0.1, 0.1])
    0.132
    >>> game = Game([0.8, 0.4], [0.1, 0.1])  # whole epochs, 1 to 10
    >>> game = game.replace(price=price_for(0.5, 100, game))
    >>> [solve(game.replace(round=t)).decay_factor < 1 for t in (49, 50, 51)]
    [False, False, True]
    """
    share = check_number("decay_start", decay_start)
    if not 0 < share <= 1:
        raise GameError(f"decay_start must lie in (0, 1], not {share:g}.")
    if isinstance(contributions, Game):
        game = contributions.replace(round=1, price=0.0)
    elif costs is None:
        raise GameError("price_for needs a game, or contributions and costs.")
    else:
        game = Game(contributions, costs, 1, 0.0, epoch_bounds, whole_epochs, decay_bounds)
    return _largest_price(_FreeGame(game)) / (share * check_round(rounds, "rounds"))


def constant_decay(decay_factor: float) -> float:
    """Return the decay factor that is given, checked: the simplest schedule.

    Examples
    --------
    >>> constant_decay(0.9)
    0.9
    """
    return float(check_decay_factor(check_number("decay_factor", decay_factor)))


def harmonic_decay(round: int, mean_epochs: float, price: float = 1.0) -> float:
    """Return γ = 1 / (1 + λ (t + τ̄)), which falls with the rounds and with the work done.

    Parameters
    ----------
    round : int
        t ≥ 1.
    mean_epochs : float
        τ̄, the mean local epochs of the clients that took part last.
    price : float
        λ ≥ 0.

    Examples
    --------
    >>> harmonic_decay(round=4, mean_epochs=5.0, price=1.0)
    0.1
    """
    number = check_round(round)
    epochs = check_number("mean_epochs", mean_epochs)
    if not (math.isfinite(epochs) and epochs >= 0):
        raise GameError(f"mean_epochs must be a finite number of at least 0, not {epochs:g}.")
    return 1 / (1 + check_price(price) * (number + epochs))


class _Offers(Protocol):
    """What the clients offer, S(γ) = Σ (ω_i + τ_i*), as the search for a price needs it."""

    @property
    def decay_bounds(self) -> tuple[float, float]:
        """The range of γ."""

    def value(self, gamma: float) -> float:
        """Return γ S(γ)."""

    def slope_below_top(self, top: float) -> float:
        """Return the slope of γ S(γ) just below γ_max; infinite if it jumps there to ``top``."""

    def best(self, influence_price: float) -> float:
        """Return the γ that maximises γ S(γ) - λ t γ²."""


def _largest_price(offers: _Offers) -> float:
    """Return the largest λ (at t = 1) at which the upper decay bound is optimal."""
    gamma_min, gamma_max = offers.decay_bounds
    if gamma_min == gamma_max:
        raise GameError("decay_bounds leave the decay factor no room: there is no price to find.")
    top = offers.value(gamma_max)
    if top == 0:
        raise GameError("no client takes part at any decay factor: there is no price to find.")

    def ratio(gamma: float) -> float:
        return (top - offers.value(gamma)) / (gamma_max * gamma_max - gamma * gamma)

    price = min(offers.slope_below_top(top) / (2 * gamma_max), ratio(gamma_min))
    steps = 0
    while (gamma := offers.best(price)) < gamma_max:
        # Slightly lower, so that rounding does not make another γ better at t0 itself. It takes a
        # few steps, unless contributions are below 1e-300: then steps must grow to have an effect.
        slightly = min(1.0, 1e-13 * 2.0 ** max(0, steps - 100))
        price = min(ratio(gamma), price * (1 - slightly))
        steps += 1
    return price


@dataclass(frozen=True)
class _FreeGame:
    """A game at price 0 and round 1, in which the server's utility is γ S(γ)."""

    game: Game

    @property
    def decay_bounds(self) -> tuple[float, float]:
        return self.game.decay_bounds

    def value(self, gamma: float) -> float:
        return float(server_utility(self.game, gamma, best_response(self.game, gamma)))

    def slope_below_top(self, top: float) -> float:
        gamma_max = self.game.decay_bounds[1]
        piece = utility_pieces(self.game)
        below = np.flatnonzero(piece.start < gamma_max * (1 - 2 * FOLLOWER_TIE))
        if not below.size:  # the lower bound is that close
            return math.inf
        last = int(below[-1])
        return _slope_at_top(
            float(piece.linear[last]), float(piece.quadratic[last]), gamma_max, top
        )

    def best(self, influence_price: float) -> float:
        return solve(self.game.replace(price=influence_price)).decay_factor


def _slope_at_top(linear: float, quadratic: float, gamma_max: float, top: float) -> float:
    """Return the slope at γ_max of the last piece; infinite if γ S(γ) jumps from it to ``top``."""
    jumps = top > gamma_max * (linear + quadratic * gamma_max) * (1 + 1e-9)
    return math.inf if jumps else linear + 2 * quadratic * gamma_max


# The paper's closed forms, each with the condition under which it is the equilibrium.
#
# They describe continuous epochs without bounds. A = Σ ω_i and B = Σ ω_i / c_i.


def unbounded_best_response(
    contributions: ArrayLike, costs: ArrayLike, decay_factor: float
) -> Floats:
    """Return τ* = γ ω / (2 c), the best response of Lemma 2.

    It is :func:`best_response` where epochs are continuous and no epoch bound binds.
    """
    game = _unbounded(contributions, costs)
    response: Floats = check_decay_factor(decay_factor) * game.contributions / (2 * game.costs)
    return response


def printed_decay_factor(contribution: float, cost: float, round: int) -> float:
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
    round: int,
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
    round: int,
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
    round: int = 1,
    price: float = 1.0,
) -> Game:
    return Game(contributions, costs, round, price, epoch_bounds=(0, math.inf), whole_epochs=False)


def _sums(game: Game) -> tuple[float, float]:
    omega = game.contributions
    return total(omega), total(omega / game.costs)


# What many clients offer together as a function of the decay factor, and its best price.
#
# The game of "all but one" is needed once per client that gets an offer. Its pieces are the sum
# of two sets: those of the clients that get no offer, listed once, and those of the other clients
# that do, which are few. So leaving one out costs a search in the first list, not a new sort of
# it.

_FIRST_CUTS, _FURTHER_CUTS = 64, 8
"""Number of intervals that the range of γ is cut into, and each remaining one again."""


@dataclass(frozen=True)
class _OfferCurve:
    """γ S(γ) over a range of γ whose upper end is 1, as the sum of several sets of pieces.

    The parts are pieces of games at price 0 over the whole range from 0 to 1.
    """

    parts: tuple[Pieces, ...]
    decay_bounds: tuple[float, float]

    def value(self, gamma: float) -> float:
        """Return γ S(γ)."""
        linear, quadratic = self._coefficients(np.array([gamma]))
        return float(gamma * (linear[0] + quadratic[0] * gamma))

    def slope_below_top(self, top: float) -> float:
        """Return the slope of γ S(γ) just below 1; infinite if it jumps there."""
        below = np.array([1 - 4 * FOLLOWER_TIE])
        linear, quadratic = self._coefficients(below)
        return _slope_at_top(float(linear[0]), float(quadratic[0]), 1.0, top)

    def best(self, influence_price: float) -> float:
        """Return the γ that maximises γ S(γ) - λ t γ², the larger of equally good ones."""
        start, end = self._candidates(influence_price)
        linear, quadratic = self._coefficients(start)
        found = Pieces(start, end, linear, quadratic - influence_price)
        return best_of_pieces(found, self.decay_bounds[1])

    def _coefficients(self, gammas: Floats) -> tuple[Floats, Floats]:
        linear, quadratic = np.zeros(gammas.size), np.zeros(gammas.size)
        for part in self.parts:
            # A client within the tie's reach of its next step has taken it.
            at = np.searchsorted(part.start, gammas * (1 + FOLLOWER_TIE), side="right") - 1
            linear += part.linear[at]
            quadratic += part.quadratic[at]
        return linear, quadratic

    def _candidates(self, price: float) -> tuple[Floats, Floats]:
        """Return start and end of all pieces that could hold the maximum, and γ = 1 last."""
        low, high = self._hopeful(price)
        starts, ends = [], []
        # Neighbouring intervals are one run; it begins and ends where a piece does, so that a cut
        # is never taken for a candidate itself.
        first = np.flatnonzero(np.concatenate(([True], low[1:] != high[:-1])))
        last = np.concatenate((first[1:], [low.size])) - 1
        for a, b in zip(low[first], high[last], strict=True):
            inside = []
            begin, finish = self.decay_bounds
            for part in self.parts:
                i, j = np.searchsorted(part.start, (a, b), side="right")
                inside.append(part.start[i:j])
                begin = max(begin, part.start[i - 1])
                finish = min(finish, part.start[j]) if j < part.start.size else finish
            start = np.sort(np.concatenate(([begin], *inside)))
            starts.append(start)
            ends.append(np.concatenate((start[1:], [finish])))
        return np.concatenate((*starts, [1.0])), np.concatenate((*ends, [1.0]))

    def _hopeful(self, price: float) -> tuple[Floats, Floats]:
        """Return the intervals of γ that may hold the maximum.

        S never falls, so on an interval [a, b] the value is at most that of γ S(b) - λ t γ²; an
        interval whose bound is below a value that was found is dropped.
        """
        edges = np.linspace(*self.decay_bounds, _FIRST_CUTS + 1)
        low, high = edges[:-1], edges[1:]
        best = -np.inf
        while True:
            linear, quadratic = self._coefficients(high)
            offer = linear + quadratic * high
            best = max(best, float(np.max(high * (offer - price * high))))
            with np.errstate(divide="ignore", invalid="ignore"):
                peak = np.where(offer > 0, offer / (2 * price), 0.0)
            peak = np.clip(peak, low, high)
            keep = peak * (offer - price * peak) >= best - 1e-12 * (abs(best) + price)
            keep |= low == self.decay_bounds[0]  # its own lower end has not been evaluated
            low, high = low[keep], high[keep]
            within = sum(
                np.searchsorted(part.start, high, side="right")
                - np.searchsorted(part.start, low, side="right")
                for part in self.parts
            )
            narrow = bool(np.all(high - low < 1e-9))
            if np.sum(within) <= 4096 or narrow:  # these are compared one by one
                return low, high
            share = np.arange(_FURTHER_CUTS + 1) / _FURTHER_CUTS
            cuts = low[:, None] + (high - low)[:, None] * share
            cuts[:, -1] = high
            low, high = cuts[:, :-1].ravel(), cuts[:, 1:].ravel()


_NO_ROOM = 1 - 4 * FOLLOWER_TIE
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

    def game(self, contributions: ArrayLike, costs: ArrayLike, round: int) -> Game:
        """Return the game of these clients: its floor and its price are set by the rule."""
        bare = self._free(contributions, costs, round)
        floor = self._floor(bare.contributions, bare.costs)
        game = bare.replace(price=1.0, decay_bounds=(floor, 1))
        if self.price is not None:
            return game.replace(price=self.price)
        if floor >= _NO_ROOM or not best_response(game, 1.0).any():  # γ cannot fall, or need not
            return game.replace(price=0.0)
        return game.replace(price=price_for(self.decay_start, self.rounds, game))

    def decay_factors(
        self,
        contributions: ArrayLike,
        costs: ArrayLike,
        round: int,
        offered: ArrayLike | None = None,
    ) -> Floats:
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
                least = 0.0 if isinstance(self.decay_floor, str) else self.decay_floor
                if self.price is None:
                    best = self.decay_start * self.rounds / known.round
                else:
                    influence = 2 * self.price * known.round
                    omega = float(known.contributions[client])
                    best = omega / influence if influence > 0 else 1.0
                yield max(least, min(1.0, best))
                continue
            # Those that are asked set the floor, because it is they whom it keeps at work. Among
            # all clients known there would always be one that needs γ close to 1.
            members = asked if asked.size else unasked
            floor = self._floor(known.contributions[members], known.costs[members])
            if floor >= _NO_ROOM:
                yield 1.0
                continue
            curve = _OfferCurve((*rest, *self._pieces(known, asked)), (floor, 1.0))
            if self.price is not None:
                price = self.price * others / chosen.size
            else:
                price = _largest_price(curve) / (self.decay_start * self.rounds)
            yield curve.best(price * known.round)

    def _free(self, contributions: ArrayLike, costs: ArrayLike, round_: int) -> Game:
        return Game(contributions, costs, round_, 0.0, self.epoch_bounds, self.whole_epochs)

    def _floor(self, omega: Floats, costs: Floats) -> float:
        if not isinstance(self.decay_floor, str):
            return self.decay_floor
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            entry = self.epoch_bounds[0] * costs / omega
        return float(np.max(entry[entry <= 1], initial=0.0))

    def _pieces(self, known: Game, members: NDArray[np.int64]) -> tuple[Pieces, ...]:
        if not members.size:
            return ()
        omega, costs = known.contributions[members], known.costs[members]
        return (utility_pieces(known.replace(contributions=omega, costs=costs, round=1)),)


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


# A budget that no play of the clients can exceed, and that gives none a reason to lie.


def affordable(
    decay_factors: ArrayLike,
    contributions: ArrayLike,
    most_epochs: ArrayLike,
    *,
    budget: float,
    rounds: int,
    per_round: int,
) -> Floats:
    """Return the factor in [0, 1] by which the decay factor of each offer must be multiplied.

    The rule: of a budget B for T rounds with K clients each, every selected client's share is
    q = B / (T K), decided before the first round. An offer whose pay for the most epochs,
    γ ω τ_max, is more than the share is scaled down to it; every other offer stays as it is.

    Parameters
    ----------
    decay_factors : array_like
        γ as offered, one for all selected clients or one for each.
    contributions : array_like
        ω, one for each selected client.
    most_epochs : array_like
        τ_max, the most epochs that a client is paid for.
    budget : float
        B, in units of utility.
    rounds, per_round : int
        T, and K: the most clients that are ever selected in a round.

    Notes
    -----
    *The budget is never exceeded.* A client is paid s γ ω τ ≤ s γ ω τ_max ≤ q, and there are at
    most T K payments of at most q = B / (T K). The share is lowered by as many units in the last
    place as that sum may have rounding errors, so that this holds for the floats in a ledger too.

    *Truth stays a dominant strategy.* The factor s_i depends on γ_i, ω_i, τ_max, B, T and K alone.
    If γ_i and ω_i do not depend on what client i reports, as with a price from the game of the
    others, neither does the rate r_i = s_i γ_i ω_i that it is offered. What it then earns, the
    largest r_i τ - c_i τ², has nothing in it that the report could change.

    Rules that use the budget better do not have this. A common factor for a round, and dividing
    what earlier rounds have left, both depend on the offers and payments of the *others*; those
    move with i's report, so i could raise its own pay by a lie that lowers theirs.

    Examples
    --------
    >>> affordable(0.5, [0.8, 0.2], 10, budget=120.0, rounds=30, per_round=2).round(6)
    array([0.5, 1. ])
    """
    if not (budget >= 0 and math.isfinite(budget)):
        raise GameError("a budget must be a number from 0 on.")
    most = np.asarray(most_epochs, dtype=np.float64)
    if not np.isfinite(most).all():
        raise GameError("a budget needs an upper bound of the local epochs.")
    share = payment_share(budget, rounds * per_round)
    pay = np.asarray(decay_factors, dtype=np.float64) * np.asarray(contributions) * most
    factors: Floats = np.divide(share, pay, out=np.ones_like(pay), where=pay > share)
    return factors


def payment_share(budget: float, payments: int) -> float:
    """Return the upper bound of each payment, so that the sum of all of them is in the budget.

    It is lowered by as many units in the last place as the sum may have rounding errors.

    Examples
    --------
    >>> 0.0999 < payment_share(1.0, 10) < 0.1
    True
    """
    # There are fewer than 16 roundings between a share of the budget and the payment out of it.
    roundings = (payments + 16) * float(np.finfo(np.float64).eps)
    return budget / payments * max(0.0, 1 - roundings)
