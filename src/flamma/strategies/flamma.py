"""FLamma: the server decays influence, clients choose their epochs, as a Stackelberg game.

Javaherian et al., "Incentive-Compatible Federated Learning with Stackelberg Game Modeling":
Algorithm 1 and the experimental set-up. Where the paper leaves a choice open it is an option here,
and the default is what its words suggest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Generic, Literal, TypeVar

import numpy as np

from flamma.clients.behaviours import BestReport
from flamma.contributions import CONTRIBUTIONS
from flamma.game import Game, best_misreport, best_response, solve
from flamma.game.costs import cost_interval, middle_cost
from flamma.game.model import LARGEST_COST, SMALLEST_COST, check_epoch_bounds
from flamma.game.pricing import PricingRule, affordable
from flamma.registry import Between, Choice, at_least
from flamma.strategies.base import (
    Offer,
    PriorCost,
    Round,
    State,
    Strategy,
    data_weights,
    largest,
    measured_contributions,
    model_of,
    uniform_choice,
    weighted_choice,
)
from flamma.types import Floats, Ints, LocalWork, Params, Population, Profile, Terms

# What the server of a game knows of every client, and how play reveals costs.


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


def _with_revealed_costs(state: Known, round: Round, epoch_bounds: tuple[int, int]) -> Known:
    """Return the state with narrower bounds on the costs of those whose epochs were seen."""
    played = {r.client: r.epochs for r in round.updates} | dict.fromkeys(round.abstained, 0)
    if not np.isnan(state.costs).any() or not played:
        return state
    pulls = {t.client: t.decay_factor * t.contribution for t in round.offer.terms}
    clients = np.array(sorted(played))
    pull = np.array([pulls[c] for c in clients])
    epochs = np.array([float(played[c]) for c in clients])
    at_least, at_most, _ = cost_interval(pull, epochs, epoch_bounds, whole=True)
    lower, upper = state.cost_lower.copy(), state.cost_upper.copy()
    lower[clients] = np.maximum(lower[clients], at_least)
    upper[clients] = np.minimum(upper[clients], at_most)
    return replace(state, cost_lower=lower, cost_upper=upper)


F = TypeVar("F", bound=FlammaState)


@dataclass(frozen=True)
class GameStrategy(Strategy[F], Generic[F]):
    """The paper's strategy, whatever else its state holds.

    Parameters
    ----------
    decay_start : float
        Share of the rounds before γ leaves 1; the price λ is derived from it each round.
    price : float, optional
        λ itself, instead of ``decay_start``. The paper has 1.
    selection : {"top", "sample", "uniform"}
        The K largest effective contributions, a draw in proportion to them, or a plain draw.
    rotation : "gamma" or float
        What a selected client's effective contribution is multiplied with until the next refresh.
    decay_acts_on : {"step", "server"}
        γ scales the clients' step size (Algorithm 1), or the server's step.
    refresh_every : int
        Rounds between two refreshes of the contributions.
    warmup_iterations : int
        Mini-batches every client trains before round 1, to measure contributions; 0 for none.
    epoch_bounds : (int, int) or "planned"
        The fewest and the most local epochs of a client that takes part; planned, from 1 to
        ``training.epochs``, so that nobody does more than FedAvg asks for.
    decay_floor : "participation" or float
        γ_min. By default the smallest γ at which every selected client that would work at γ = 1
        still works; with 0 the equilibrium ends the training some time after the decay starts.
    server_costs : {"given", "revealed"}
        Whether the server knows the costs, or estimates them from the clients' play. Of clients
        that do not tell their cost it is estimated in any case.
    prior_cost : float
        What the server assumes of a client that has not revealed anything yet.
    server_epochs : {"whole", "continuous"}
        Whether the server solves for the whole epochs that clients play, or, as the paper's
        derivation does, for continuous ones. Then γ falls at once instead of in steps, and what
        the rounding costs the server shows as regret.
    contribution : name or table
        What measures ω: ``distance``, the closeness of a client's model to the new global one;
        ``cosine``, of the angle between the client's move and the global one, which does not
        reward doing little; or another registered measure.
    pricing : {"common", "others"}
        Whether all selected clients are offered the decay factor of their common game, as in the
        paper, or each one that of the game of all other clients known. Then what a client reports
        or shows of its cost does not move its own offer.
    normalise_epochs : bool
        Whether updates are divided by the epochs done (FedNova), so that those who work more do
        not count for more.
    """

    decay_start: Annotated[float, Between(0, 1, without="low")] = 0.3
    price: Annotated[float | None, at_least(0)] = None
    selection: Literal["top", "sample", "uniform"] = "top"
    rotation: Annotated[float | Literal["gamma"], Between(0, 1)] = "gamma"
    decay_acts_on: Literal["step", "server"] = "step"
    refresh_every: Annotated[int, at_least(1)] = 10
    warmup_iterations: Annotated[int, at_least(0)] = 10
    epoch_bounds: tuple[int, int] | Literal["planned"] = (1, 10)
    decay_floor: Annotated[float | Literal["participation"], Between(0, 1)] = "participation"
    server_costs: Literal["given", "revealed"] = "given"
    prior_cost: PriorCost = 0.1
    server_epochs: Literal["whole", "continuous"] = "whole"
    contribution: Annotated[Choice, CONTRIBUTIONS] = Choice("distance")
    pricing: Literal["common", "others"] = "common"
    normalise_epochs: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epoch_bounds(self.epoch_limits, whole_epochs=True)

    @property
    def epoch_limits(self) -> tuple[int, int]:
        """The fewest and the most local epochs of a client that takes part."""
        return (1, self.plan.epochs) if self.epoch_bounds == "planned" else self.epoch_bounds

    def first_state(self, make: Callable[..., F], params: Params, population: Population) -> F:
        """Return full contributions, in the state that ``make`` makes of what the game knows.

        A warm-up measures contributions before round 1.
        """
        n = population.clients
        given = population.costs if self.server_costs == "given" else None
        return make(
            params,
            -1 if self.warmup_iterations else 0,
            population.samples,
            trainable_size=population.trainable_size,
            contributions=np.ones(n),
            effective=np.ones(n),
            measured=np.ones(n),
            costs=np.full(n, np.nan) if given is None else given,
            cost_lower=np.zeros(n),
            cost_upper=np.full(n, np.inf),
        )

    def offer(self, state: F, available: Ints, rng: np.random.Generator) -> Offer:
        """Select by effective contribution, then solve the game of those selected (lines 3-5)."""
        number = state.round + 1
        if number == 0:
            terms = (Terms(int(c), 0, batches=self.warmup_iterations) for c in available)
            return Offer(0, tuple(terms))
        chosen = self.select(state, available, rng)
        game = self.game(state, chosen, number)
        gamma = solve(game).decay_factor
        steps = self.decay_acts_on == "step"
        terms = (
            Terms(int(client), number, own, float(omega), step_scale=own if steps else 1.0)
            for client, own, omega in zip(
                chosen, self.offered(state, chosen, number, gamma), game.contributions, strict=True
            )
        )
        effective = tuple(state.effective[chosen].tolist())
        return Offer(number, tuple(terms), gamma, game, effective, self.contribution.name)

    def respond(self, terms: Terms, profile: Profile) -> LocalWork:
        """Choose the epochs that are best for this client (line 9); 0 if none pays."""
        task = super().respond(terms, profile)
        if terms.batches is not None:
            return task
        game = Game([terms.contribution], [profile.cost], epoch_bounds=self.epoch_limits)
        return replace(task, epochs=int(best_response(game, terms.decay_factor)[0]))

    def epoch_range(self, terms: Terms) -> tuple[int, int]:
        """Return the bounds of the game; a warm-up has none."""
        return self.epoch_limits if terms.batches is None else super().epoch_range(terms)

    def step(self, state: F, round: Round) -> F:
        """Aggregate (line 14), measure contributions, rotate the selected, refresh when due."""
        offer = round.offer
        if round.updates:
            state = self.move(state, self.normalised(round))
        selected = np.array(offer.selected, dtype=np.int64)
        measured = measured_contributions(
            self.contribution, round, state.params, state.trainable_size, state.measured
        )
        state = replace(state, measured=measured)
        if offer.game is not None:
            own = np.array([terms.decay_factor for terms in offer.terms])
            effective = state.effective.copy()
            effective[selected] *= own if self.rotation == "gamma" else float(self.rotation)
            effective[list(round.abstained)] = 0.0  # asked again after the next refresh
            state = replace(state, effective=effective)
            state = _with_revealed_costs(state, round, self.epoch_limits)
        if offer.round % self.refresh_every == 0:
            state = replace(state, contributions=measured, effective=measured)
        return state

    def select(self, state: F, available: Ints, rng: np.random.Generator) -> Ints:
        """Return the clients of this round, in order."""
        count = min(self.plan.per_round, available.size)
        if self.selection == "uniform":
            return uniform_choice(available, count, rng)
        effective = state.effective[available]
        if self.selection == "top":
            return np.sort(available[largest(effective, count, rng)])
        return weighted_choice(available, effective, count, rng)

    def game(self, state: F, chosen: Ints, number: int) -> Game:
        """Return the game that the selected clients play this round, as the server knows it."""
        omega, costs = state.contributions[chosen], known_costs(state, chosen, self.prior_cost)
        return self.rule(self.starts(state)).game(omega, costs, number)

    def offered(self, state: F, chosen: Ints, number: int, gamma: float) -> list[float]:
        """Return the decay factor that each selected client is offered; γ is the game's."""
        if self.pricing == "common":
            factors = np.full(chosen.size, gamma)
        else:
            everybody = np.arange(state.contributions.size)
            costs = known_costs(state, everybody, self.prior_cost)
            rule = self.rule(self.starts(state))
            factors = rule.decay_factors(state.contributions, costs, number, chosen)
        if self.plan.budget is not None:
            factors *= affordable(
                factors,
                state.contributions[chosen],
                self.epoch_limits[1],
                budget=self.plan.budget,
                rounds=self.plan.rounds,
                per_round=self.plan.per_round,
            )
        return [float(factor) for factor in factors]

    @property
    def best_report(self) -> BestReport | None:
        """A client's best lie about its cost in the middle of the run, if it knew all others'."""
        return self._best_report if self.server_costs == "given" else None

    def _best_report(self, population: Population, client: int) -> float:
        assert population.costs is not None
        middle = (self.plan.rounds + 1) // 2
        rule, full = self.rule(self.decay_start), np.ones(population.clients)
        game = rule.game(full, population.costs, middle)
        return best_misreport(game, client, rule).cost

    def rule(self, decay_start: float) -> PricingRule:
        """Return how decay factors follow from contributions and costs."""
        return PricingRule(
            rule=self.pricing,
            decay_floor=self.decay_floor,
            price=self.price,
            decay_start=decay_start,
            rounds=self.plan.rounds,
            epoch_bounds=self.epoch_limits,
            whole_epochs=self.server_epochs == "whole",
        )

    def starts(self, state: F) -> float:
        """Return the share of the rounds at which γ leaves 1."""
        return self.decay_start

    def move(self, state: F, round: Round) -> F:
        """Return the state with the new global model."""
        params = self.average(round, data_weights(round.updates))
        return replace(state, params=self.damped(state.params, params, round.offer))

    def normalised(self, round: Round) -> Round:
        """Return the answers with their updates divided by the epochs done, times their mean."""
        accepted = round.updates
        if not self.normalise_epochs or any(update.epochs < 1 for update in accepted):
            return round
        shares = data_weights(accepted)
        mean = math.fsum(
            share * update.epochs for share, update in zip(shares, accepted, strict=True)
        ) / math.fsum(shares)
        scaled = (
            replace(update, params=round.received + np.float32(mean / update.epochs) * move)
            for update in accepted
            for move in (model_of(update) - round.received,)
        )
        return round.only(tuple(scaled))

    def damped(self, before: Params, target: Params, offer: Offer) -> Params:
        """Return the target, or only γ of the way to it if the decay acts on the server's step."""
        if self.decay_acts_on == "step" or offer.decay_factor == 1:
            return target
        moved = before + np.float32(offer.decay_factor) * (target - before)
        return moved.astype(np.float32, copy=False)


@dataclass(frozen=True)
class Flamma(GameStrategy[FlammaState]):
    """The paper's strategy."""

    name: ClassVar[str] = "flamma"
    label: ClassVar[str] = "FLamma"
    summary: ClassVar[str] = "the paper's: a Stackelberg game sets decay factor and epochs"
    family: ClassVar[str] = "flamma"

    def init(self, params: Params, population: Population) -> FlammaState:
        """Start with full contributions."""
        return self.first_state(FlammaState, params, population)
