"""The contract every strategy keeps: pure functions over a state that can be saved.

``init`` makes the state, ``offer`` selects clients and sets each one's terms, ``respond`` runs on
the client and decides what it does, ``aggregate`` turns what came back into the next state. A
strategy never mutates itself or a state, and knows nothing of engines, files or terminals.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, get_args, get_origin

import numpy as np

from flamma.aggregators import AGGREGATORS, Reference, aggregated, check_aggregator
from flamma.clients.behaviours import BestReport
from flamma.contributions import RoundUpdates, measure_round
from flamma.errors import StrategyError
from flamma.game import Game
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.game.model import MAX_EPOCHS as MAX_EPOCHS
from flamma.numerics import gumbel, log
from flamma.records import OfferRecord, Outcomes, RoundRecord
from flamma.registry import Between, CheckedOptions, Choice, convert, options_of
from flamma.types import (
    Broadcast,
    ClientVectors,
    Floats,
    Ints,
    LocalWork,
    Params,
    Plan,
    Population,
    Profile,
    TaskVectors,
    Terms,
    Update,
)

# What passes between a strategy and the round loop: states, offers and answers.

Validate = Callable[[Params], tuple[float, float]]
"""Scores weights on the server's own validation set: (loss, accuracy in percent)."""

Inspect = Callable[[Sequence[LocalWork]], list[Update]]
"""Does clients' claimed work of this round once more, at the client and on its true data."""

ServerReads = Literal["mean", "updates", "plain"]
"""What a server must see of clients' models: their mean, each of them, or each as it was sent."""

_Release = Callable[[Params, int, tuple[Update, ...]], tuple[Update, ...]]
"""Returns what a strategy may see of the reports of a round, given the received model."""


SecondsOf = Callable[[Terms], float]
"""Returns the virtual seconds until a client that begins now has answered its terms."""


@dataclass(frozen=True, eq=False)
class State:
    """What a strategy remembers between rounds: arrays, numbers and rows only, so it can be saved.

    ``round`` is the last finished round, -1 before a warm-up.
    """

    params: Params
    round: int
    samples: Ints

    @property
    def served(self) -> Params:
        """The model that a run yields and evaluates: here the one that clients train."""
        return self.params


S = TypeVar("S", bound=State)


@dataclass(frozen=True, eq=False)
class KeepingState(State):
    """The state of a strategy whose clients keep something from round to round.

    ``answered`` is 1 for every client that was heard from, and so has kept something.
    """

    answered: Ints

    def having_heard(self, accepted: Sequence[Update]) -> Self:
        """Return the state that knows of these answers."""
        answered = self.answered.copy()
        answered[[report.client for report in accepted]] = 1
        return replace(self, answered=answered)


def lost_what_they_kept(state: KeepingState, accepted: Sequence[Update]) -> dict[int, str]:
    """Return a flag for every client that should have kept something and has nothing."""
    return {
        report.client: "it had lost what it kept, and started anew"
        for report in accepted
        if report.restarted and state.answered[report.client]
    }


@dataclass(frozen=True, eq=False)
class Offer:
    """Who is selected, in client order, on which terms, and the game the server has solved.

    ``effective`` are the contributions that selection went by, and ``measure`` is what measured
    them; both only where there is a game. ``decay_factor`` is the game's own, whatever the terms
    offer each client. ``inspected`` are the clients whose answers will be inspected in any case,
    which they are not told. ``probabilities`` are those with which each selected client was drawn,
    where what its answer counts depends on them, and ``payments`` what each earns by a usable
    answer, where that is fixed before it works; both have one entry for each of the terms.
    """

    round: int
    terms: tuple[Terms, ...]
    decay_factor: float = 1.0
    game: Game | None = None
    effective: tuple[float, ...] | None = None
    measure: str | None = None
    inspected: tuple[int, ...] = ()
    probabilities: tuple[float, ...] | None = None
    payments: tuple[float, ...] | None = None

    @property
    def decay_factors(self) -> tuple[float, ...] | None:
        """Each selected client's decay factor, None where all have the game's."""
        each = tuple(terms.decay_factor for terms in self.terms)
        common = self.game is None or set(each) <= {self.decay_factor}
        return None if common else each

    @property
    def selected(self) -> tuple[int, ...]:
        """The selected clients, in order."""
        return tuple(terms.client for terms in self.terms)


@dataclass(frozen=True, eq=False)
class Screened:
    """What a strategy makes of answers before it uses them, one for each selected client.

    ``credited``, ``fines``, ``flags`` and ``inspected`` are as in a record. ``unverified`` are the
    clients whose inspection failed, so that nobody knows what their answers are worth.
    """

    answers: tuple[Update, ...]
    credited: tuple[float, ...] | None = None
    fines: Mapping[int, float] = field(default_factory=dict)
    flags: Mapping[int, str] = field(default_factory=dict)
    inspected: tuple[int, ...] = ()
    unverified: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Answers:
    """What came back in a round: the usable reports in client order, and who abstained.

    ``validate`` scores weights on the server's validation set; None where there is none.
    ``reference`` is what aggregators measure updates from. ``screened`` has what was found out
    about the answers, those that are not usable too.
    """

    offer: Offer
    accepted: tuple[Update, ...]
    abstained: tuple[int, ...]
    validate: Validate | None = None
    reference: Reference | None = None
    screened: Screened | None = None

    @property
    def earned(self) -> tuple[float, ...] | None:
        """What the offer has fixed for each selected client, and 0 for one without usable answer.

        None if it has fixed nothing.
        """
        if self.offer.payments is None:
            return None
        usable = {report.client for report in self.accepted}
        pairs = zip(self.offer.selected, self.offer.payments, strict=True)
        return tuple(amount if client in usable else 0.0 for client, amount in pairs)


def record_of(
    offer: Offer,
    screened: Screened,
    flags: Mapping[int, str],
    *,
    epochs_total: int,
    payments: tuple[float, ...] | None,
) -> RoundRecord:
    """Return the record of a round, as far as a strategy knows it."""
    answers = screened.answers
    contributions = tuple(terms.contribution for terms in offer.terms)
    measured = bool(contributions) and not any(map(math.isnan, contributions))
    offered = OfferRecord(
        offer.decay_factor, contributions if measured else None, offer.decay_factors
    )
    outcome = Outcomes(
        abstained=tuple(r.client for r in answers if r.abstained),
        failed={r.client: r.failure for r in answers if r.failure},
        local_epochs=tuple(r.epochs for r in answers),
        epochs_total=epochs_total,
        credited=screened.credited,
        payments=payments,
        fines=screened.fines,
        flags=flags,
        inspected=screened.inspected,
    )
    return RoundRecord(offer.round, offer.selected, offered, outcome)


# Small things that many strategies need: choices, weights and models.

MOST_EXPONENT = 300.0
"""Powers of losses are taken as they are if they lie within e to plus and minus this."""


def uniform_choice(available: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Return ``count`` of the available clients (all if there are fewer), in order."""
    return np.sort(rng.choice(available, size=min(count, available.size), replace=False))


def largest(values: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Return the places of the ``count`` largest values, ties broken at random."""
    bar = np.partition(values, values.size - count)[values.size - count]
    above = np.flatnonzero(values > bar)
    ties = np.flatnonzero(values == bar)
    return np.concatenate((above, rng.choice(ties, count - above.size, replace=False)))


def weighted_choice(available: Ints, weights: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Return ``count`` of the available clients (all if there are fewer), in order.

    They are drawn without replacement, each draw in proportion to the weights of those left: the
    largest of log(weight) + Gumbel noise. Clients without weight come last, in any order.
    """
    if not min(count, available.size):
        return available[:0]
    keys = log(weights) + gumbel(rng, available.size)
    return np.sort(available[largest(keys, min(count, available.size), rng)])


def data_shares(accepted: Sequence[Update]) -> list[float]:
    """Return each report's number of training samples, the weights of FedAvg."""
    return [float(report.samples) for report in accepted]


def with_losses(accepted: Sequence[Update]) -> list[Update]:
    """Return the reports that have a usable loss."""
    return [report for report in accepted if np.isfinite(report.loss)]


def loss_unit(losses: Sequence[float], power: float) -> float:
    """Return what to divide losses by before they are raised to a power and compared.

    It is 1, or the largest loss where the power of that would leave the range of floats: the
    weights that follow are the same but for a common factor, and stay finite whatever a client
    says its loss is.
    """
    most = max(losses)
    return 1.0 if abs(max(1.0, power) * float(log(most))) < MOST_EXPONENT else most


def model_of(report: Update) -> Params:
    """Return the model of an accepted report."""
    assert report.params is not None
    return report.params


PriorCost = Annotated[float, Between(SMALLEST_COST, LARGEST_COST)]
"""What the server takes the cost of a client to be that does not tell its own."""


def round_costs(population: Population, epochs: int, prior: float) -> Floats:
    """Return what a round of so many epochs costs each client, as far as the server knows.

    A client that does not tell its cost per squared epoch is taken to have the prior one.
    """
    unknown = np.full(population.clients, np.nan)
    told = unknown if population.costs is None else population.costs
    costs = np.where(np.isfinite(told), told, prior) * float(epochs) ** 2
    return np.clip(costs, SMALLEST_COST, LARGEST_COST)


# Reports as they come in: one for each selected client, those refused that are not well formed.

NOT_FINITE = "refused: weights that are not finite"
"""Why an answer is refused whose training has diverged."""


def well_formed_reports(
    state: State,
    offer: Offer,
    reports: Sequence[Update],
    epoch_range: Callable[[Terms], tuple[int, int]],
) -> tuple[Update, ...]:
    """Return one report for each selected client, in order, without what is not well formed."""
    # Clients that did not introduce themselves are taken to have one sample each.
    introduced = bool((state.samples > 1).any())
    told = state.samples if introduced else np.full_like(state.samples, 2**62)
    return tuple(
        well_formed_report(report, state.params.size, epoch_range(terms), told[report.client])
        for report, terms in zip(one_each(offer, reports), offer.terms, strict=True)
    )


def one_each(offer: Offer, reports: Sequence[Update]) -> list[Update]:
    """Return one report for each selected client, in order; a failed one where none was sent."""
    by_client: dict[int, Update] = {}
    for report in sorted(reports, key=lambda r: r.client):
        by_client.setdefault(report.client, report)
    missing = "no answer"
    return [
        by_client.get(c) or Update(c, params=None, samples=0, epochs=0, failure=missing)
        for c in offer.selected
    ]


def well_formed_report(report: Update, size: int, epochs: tuple[int, int], told: int) -> Update:
    """Return the report as it is, or without its weights and with the reason.

    A failed or refused report has done no epochs that count.
    """
    reason = ""
    fewest, most = epochs
    if report.failure:
        return replace(report, params=None, epochs=0)
    if report.params is None:
        return replace(report, epochs=0)
    if report.params.shape != (size,) or report.params.dtype != np.float32:
        reason = f"refused: {report.params.dtype} weights of shape {report.params.shape}"
    elif not np.isfinite(report.params).all():
        reason = NOT_FINITE
    elif report.samples <= 0:
        reason = f"refused: {report.samples} samples"
    elif report.samples > told:
        reason = f"refused: {report.samples} samples of a client that had {told}"
    elif not fewest <= report.epochs <= most:
        allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        reason = f"refused: {report.epochs} epochs where {allowed} were on offer"
    elif report.loss < 0:
        reason = f"refused: a loss of {report.loss:g}"
    return replace(report, params=None, epochs=0, failure=reason) if reason else report


# The server's own update: what it makes of the received model by its validation set.

SERVER = -1
"""Stands for a client's number in the task of the server itself."""

_TrainServer = Callable[[Params, LocalWork], Params]
"""Trains on the server's own validation set; returns the trainable weights, which are the first."""


def server_task(plan: Plan, terms: Sequence[Terms], accepted: Sequence[Update]) -> LocalWork:
    """Return how the server trains: as long, and with as large a step, as the middle client."""
    terms_of = {own.client: own for own in terms}
    asked = [terms_of[report.client] for report in accepted]
    middle = len(accepted) // 2
    return LocalWork(
        client=SERVER,
        round=asked[middle].round,
        epochs=max(1, sorted(report.epochs for report in accepted)[middle]),
        iterations=asked[middle].iterations,
        learning_rate=plan.step_size(asked[middle].round)
        * sorted(own.step_scale for own in asked)[middle],
        proximal=asked[middle].proximal,
    )


def update_by(
    train_server: _TrainServer, received: Params, task: LocalWork
) -> Callable[[], Floats]:
    """Return a function that trains when it is first called, and returns the update."""

    def update() -> Floats:
        trained = train_server(received, task)
        return trained.astype(np.float64) - received[: trained.size]

    return cache(update)


@dataclass(frozen=True)
class Strategy(CheckedOptions, ABC, Generic[S], within="strategy.", error=StrategyError):
    """One federated algorithm. A new one overrides what differs from FedAvg, and nothing else.

    Parameters
    ----------
    aggregator : name or table
        How the server combines accepted models: ``mean``, a robust one such as ``median`` or
        ``trimmed-mean``, or another registered aggregator.

    Attributes
    ----------
    name, label, summary : str
        In configurations, in tables, and in one line.
    family : str
        One of :data:`flamma.strategies.FAMILIES`.
    needs_validation : bool
        Whether the server needs a validation set.
    pools_data : bool
        Whether all data are brought to one place: a ceiling, not a competitor.
    clients_keep : bool
        Whether clients keep a vector from one training to the next. The state is then a
        :class:`KeepingState`.
    varies_selection : bool
        Whether the number of selected clients is not always that of the plan.
    sends_models : bool
        Whether models travel between the server and the clients, and so count as traffic.
    needs_sgd : bool
        Whether updates are read as sums of gradients, which those of Adam are not.
    asynchronous : bool
        Whether the server steps without waiting for all clients at work; see :meth:`advance`.
    server_reads : {"mean", "updates", "plain"}
        What the server must see of clients' models: nothing but their mean; each of them, which
        may be noisy; or each as it was sent. It says what differential privacy can be had.
    """

    plan: Plan
    aggregator: Annotated[Choice, AGGREGATORS] = Choice("mean")

    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    family: ClassVar[str] = "other"
    needs_validation: ClassVar[bool] = False
    pools_data: ClassVar[bool] = False
    clients_keep: ClassVar[bool] = False
    varies_selection: ClassVar[bool] = False
    sends_models: ClassVar[bool] = True
    needs_sgd: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False
    server_reads: ClassVar[ServerReads] = "updates"

    def __post_init__(self) -> None:
        super().__post_init__()
        # From Python a name alone will do, as in a configuration.
        for option in options_of(type(self)).values():
            value = getattr(self, option.name)
            if isinstance(value, str) and get_origin(option.annotation) is Annotated:
                object.__setattr__(
                    self, option.name, convert(value, option.annotation, option.name)
                )
        check_aggregator(self.aggregator, self.plan.per_round)

    @property
    def wants_validation(self) -> bool:
        """Whether the server needs a validation set, by the strategy or what was chosen for it."""
        return bool(self.in_need_of("needs_validation"))

    @property
    def wants_losses(self) -> bool:
        """Whether clients must tell the loss of a model on their data."""
        return type(self).survey is not Strategy.survey

    def in_need_of(self, what: str) -> str:
        """Return the name of what has this attribute set, empty if nothing has.

        That is the strategy itself, or a component that was chosen for it from a registry, such
        as its aggregator.
        """
        if getattr(self, what, False):
            return self.name
        for option in options_of(type(self)).values():
            chosen: Any = getattr(self, option.name)
            for registry in get_args(option.annotation)[1:] if isinstance(chosen, Choice) else ():
                if getattr(registry[chosen.name], what, False):
                    return f"the {registry.kind} {chosen.name}"
        return ""

    @property
    def best_report(self) -> BestReport | None:
        """What returns a client's best lie about its cost; None where costs are not used."""
        return None

    @abstractmethod
    def init(self, params: Params, population: Population) -> S:
        """Return the state before the first round."""

    def survey(self, state: S, available: Ints, rng: np.random.Generator) -> Ints:
        """Return whose loss of the current model is asked for before the offer: here nobody's."""
        return np.zeros(0, dtype=np.int64)

    def hear(self, state: S, losses: Mapping[int, float]) -> S:
        """Return the state that knows the losses of those surveyed who answered."""
        return state

    def advance(
        self, state: S, available: Ints, rng: np.random.Generator, seconds_of: SecondsOf
    ) -> S:
        """Return the state in which the clients of the next step have answered, in virtual time.

        Here clients begin together and the server waits for all of them, so nothing has happened
        before the offer. The offer of an asynchronous strategy has those that have answered, on
        the terms on which each of them began.
        """
        return state

    @abstractmethod
    def offer(self, state: S, available: Ints, rng: np.random.Generator) -> Offer:
        """Select among the available clients and say on which terms."""

    def broadcast(self, state: S) -> Broadcast:
        """Return what clients receive besides their terms: here the global model."""
        return Broadcast(state.params, state.round)

    def serving(self, state: S) -> Broadcast:
        """Return what clients evaluate: what they receive, with the served model in it."""
        broadcast = self.broadcast(state)
        if state.served is state.params:
            return broadcast
        return replace(broadcast, params=state.served)

    def respond(self, terms: Terms, profile: Profile) -> LocalWork:
        """Decide, on the client, what it does: here the epochs that the plan fixes."""
        planned = self.plan.epochs if terms.epochs is None else terms.epochs
        return LocalWork(
            client=terms.client,
            round=terms.round,
            epochs=0 if terms.evaluates else planned,
            iterations=terms.iterations,
            learning_rate=self.plan.step_size(terms.round) * terms.step_scale,
            proximal=terms.proximal,
            wants_loss=terms.wants_loss,
            evaluates=terms.evaluates,
            loss_bound=terms.loss_bound,
            tilt=terms.tilt,
            wants_trained_loss=terms.wants_trained_loss,
        )

    def prepare(self, task: LocalWork, vectors: ClientVectors) -> TaskVectors:
        """Return, on the client, where its training starts and what corrects its gradients.

        The ``received`` vector of the result is not looked at.
        """
        return TaskVectors()

    def own_task(self, task: LocalWork) -> LocalWork | None:
        """Return, on the client, what it trains for itself after a task; here nothing.

        That training starts from what it has kept, from the received model if that is nothing, and
        its result is what it keeps. The proximal term pulls to the received model.
        """
        return None

    def keep(self, task: LocalWork, vectors: ClientVectors, trained: Params) -> Params | None:
        """Return, on the client, what it keeps after a training; None for what it has kept."""
        return None

    def epoch_range(self, terms: Terms) -> tuple[int, int]:
        """Return the fewest and the most epochs that a client may report with its weights.

        Where clients decide as :meth:`respond` does here, there is one number. A strategy that
        lets them choose says how far. Terms that count mini-batches say nothing of epochs.
        """
        if terms.iterations is not None or type(self).respond is not Strategy.respond:
            return 0, MAX_EPOCHS
        fixed = self.plan.epochs if terms.epochs is None else terms.epochs
        return fixed, fixed

    def screen(
        self, state: S, offer: Offer, answers: tuple[Update, ...], inspect: Inspect | None
    ) -> Screened:
        """Look at answers that are well formed and say which to believe: here all of them."""
        return Screened(answers)

    def aggregate(
        self,
        state: S,
        offer: Offer,
        reports: Sequence[Update],
        validate: Validate | None = None,
        train_server: _TrainServer | None = None,
        inspect: Inspect | None = None,
        release: _Release | None = None,
    ) -> tuple[S, RoundRecord]:
        """Return the state after the round, and the record of what happened in it.

        Reports may come in any order and are reduced in client order. An update that is not
        finite, or not of the model's size, or of epochs that were not on offer, or of more samples
        than the client had when it introduced itself, is left out and recorded with its reason.
        ``release`` puts noisy models in the place of well-formed ones before all else.
        """
        well_formed = well_formed_reports(state, offer, reports, self.epoch_range)
        if release is not None:
            well_formed = release(state.params, offer.round, well_formed)
        screened = self.screen(state, offer, well_formed, inspect)
        answers = screened.answers
        accepted = tuple(r for r in answers if r.params is not None)
        abstained = tuple(r.client for r in answers if r.abstained)
        reference = Reference(state.params)
        if train_server is not None and accepted:
            task = server_task(self.plan, offer.terms, accepted)
            reference = Reference(state.params, update_by(train_server, state.params, task))
        came_back = Answers(offer, accepted, abstained, validate, reference, screened)
        after = self.combine(state, came_back)
        flags = dict(screened.flags)
        if isinstance(after, KeepingState):
            flags = lost_what_they_kept(after, accepted) | flags
            after = after.having_heard(accepted)
        record = record_of(
            offer,
            screened,
            flags,
            epochs_total=sum(r.epochs + self._own_epochs(r) for r in accepted),
            payments=self.payments(after, came_back),
        )
        return replace(after, round=offer.round), record

    def payments(self, state: S, answers: Answers) -> tuple[float, ...] | None:
        """Return what each selected client is paid, by the state after the round.

        Here it is what the offer has fixed, for usable answers alone. None means γ ω τ where there
        is a game, and nothing where there is none.
        """
        return answers.earned

    def _own_epochs(self, report: Update) -> int:
        """Return the epochs that a client trained for itself beside those that it reports."""
        if report.params is None:
            return 0
        own = self.own_task(LocalWork(report.client, 0, report.epochs, self.plan.learning_rate))
        return 0 if own is None else own.epochs

    @abstractmethod
    def combine(self, state: S, answers: Answers) -> S:
        """Return the next state; without accepted reports the weights stay as they are."""

    def average(
        self,
        accepted: Sequence[Update],
        weights: Sequence[float],
        reference: Reference | None = None,
    ) -> Params:
        """Return Σ p_k w_k with p in proportion to the weights, by the chosen aggregator.

        Aggregators that work on updates need the ``reference`` of the answers.
        """
        total = math.fsum(weights)
        shares = np.array([weight / total for weight in weights])
        models = [model_of(report) for report in accepted]
        return aggregated(self.aggregator, models, shares, reference).astype(np.float32)


# Contributions of the clients that answered, as a strategy needs them.


def measured_contributions(
    choice: Choice,
    answers: Answers,
    before: Params,
    after: Params,
    trainable_size: int,
    last: Floats,
    last_step: Params | None = None,
) -> Floats:
    """Return all clients' contributions, with those of this round measured anew.

    ``before`` and ``after`` are the global model around the round, and ``last`` the contributions
    as of every client's last report. A strategy that keeps the ``last_step`` of the global model
    lets measures tell what clients could have sent without work.
    """
    accepted, number = answers.accepted, answers.offer.round
    if not accepted:
        return last
    clients = np.array([report.client for report in accepted])
    shares = data_shares(accepted)
    updates = RoundUpdates(
        clients=clients,
        models=[model_of(report) for report in accepted],
        before=before,
        after=after,
        trainable_size=trainable_size,
        weights=np.array(shares) / math.fsum(shares),
        # In a warm-up nothing was measured before.
        previous=last[clients] if number else np.full(clients.size, np.nan),
        round=number,
        last_step=last_step,
        validate=answers.validate,
    )
    measured = last.copy()
    measured[clients] = measure_round(choice, updates)
    return measured


# What each answer adds to the aggregate, on the server's validation set.


def marginal_gains(strategy: Strategy[Any], received: Params, answers: Answers) -> list[float]:
    """Return the validation loss of the aggregate without each answer, minus that with all.

    An answer above 0 helped. Without the only one there is, the aggregate is the received model. A
    gain is not finite if one of the losses is not.

    Raises
    ------
    StrategyError
        If the server has no validation set.
    """
    accepted, validate, reference = answers.accepted, answers.validate, answers.reference
    if validate is None:
        raise StrategyError(f"{strategy.name} needs a validation set: set data.validation_samples.")
    shares = data_shares(accepted)
    together = validate(strategy.average(accepted, shares, reference))[0]
    gains = []
    for k in range(len(accepted)):
        others = [*accepted[:k], *accepted[k + 1 :]]
        rest = [*shares[:k], *shares[k + 1 :]]
        without = strategy.average(others, rest, reference) if others else received
        gains.append(validate(without)[0] - together)
    return gains
