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
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    Self,
    TypeVar,
    get_args,
    get_origin,
)

import numpy as np

from flamma._renamed import renamed
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
    Objective,
    Params,
    Plan,
    Population,
    Profile,
    TaskVectors,
    Terms,
    Update,
)

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)

# What passes between a strategy and the round loop: states, offers and rounds.

_Validate = Callable[[Params], tuple[float, float]]
"""Scores weights on the server's own validation set: (loss, accuracy in percent)."""

Inspect = Callable[[Sequence[LocalWork]], list[Update]]
"""Does clients' claimed work of this round once more, at the client and on its true data."""

ServerReads = Literal["mean", "updates", "plain"]
"""What a server must see of clients' models: their mean, each of them, or each as it was sent."""

_Release = Callable[[Params, int, tuple[Update, ...]], tuple[Update, ...]]
"""Returns what a strategy may see of the updates of a round, given the received model."""

_TrainServer = Callable[[Params, LocalWork], Params]
"""Trains on the server's own validation set; returns the trainable weights, which are the first."""


@dataclass(frozen=True)
class Needs:
    """What a strategy needs from a run; also what a component chosen for it can need.

    Parameters
    ----------
    validation : bool
        A validation set at the server.
    server_update : bool
        That the server trains on its validation set.
    sgd : bool
        That updates are sums of gradients, which those of Adam are not.
    clock : bool
        A virtual clock: the server steps without waiting for all clients at work; see
        :meth:`Strategy.advance`.
    client_memory : bool
        That clients keep a vector from one training to the next. The state is then a
        :class:`KeepingState`.
    pooled_data : bool
        All data in one place: a ceiling, not a competitor.
    varies_selection : bool
        The number of selected clients is not always that of the plan.
    sends_models : bool
        Models travel between the server and the clients, and so count as traffic.
    server_reads : {"mean", "updates", "plain"}
        What the server must see of clients' models: nothing but their mean; each of them, which
        may be noisy; or each as it was sent. It says what differential privacy can be had.
    """

    validation: bool = False
    server_update: bool = False
    sgd: bool = False
    clock: bool = False
    client_memory: bool = False
    pooled_data: bool = False
    varies_selection: bool = False
    sends_models: bool = True
    server_reads: ServerReads = "updates"


_Need = Literal["validation", "server_update"]
"""What a component of a strategy can need, too."""


@dataclass(frozen=True, eq=False)
class ServerSide:
    """What the server can do in a round besides averaging; None for what it cannot.

    Attributes
    ----------
    validate : callable
        Scores weights on the server's validation set.
    train : callable
        Trains on the server's validation set.
    inspect : callable
        Repeats clients' claimed work.
    release : callable
        Puts what a strategy may see in the place of well-formed updates, before all else.
    """

    validate: _Validate | None = None
    train: _TrainServer | None = None
    inspect: Inspect | None = None
    release: _Release | None = None


_ALONE = ServerSide()
"""A server that can do nothing of that."""


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

    def with_participants(self, updates: Sequence[Update]) -> Self:
        """Return the state that knows who has taken part."""
        answered = self.answered.copy()
        answered[[update.client for update in updates]] = 1
        return replace(self, answered=answered)

    def clients_with_lost_state(self, updates: Sequence[Update]) -> dict[int, str]:
        """Return a flag for every client that should have kept something and has nothing."""
        return {
            update.client: "it lost its local state and restarted"
            for update in updates
            if update.restarted and self.answered[update.client]
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
class Verdict:
    """What a strategy makes of updates before it uses them, one for each selected client.

    ``credited``, ``fines``, ``flags`` and ``inspected`` are as in a record. ``unverified`` are the
    clients whose inspection failed, so that nobody knows what their updates are worth.
    """

    updates: tuple[Update, ...]
    credited: tuple[float, ...] | None = None
    fines: Mapping[int, float] = field(default_factory=dict)
    flags: Mapping[int, str] = field(default_factory=dict)
    inspected: tuple[int, ...] = ()
    unverified: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Round:
    """All that came back in a round, in client order: what :meth:`Strategy.step` is given.

    Attributes
    ----------
    offer : Offer
        What was offered, and to whom.
    updates : tuple of Update
        The usable ones only.
    abstained : tuple of int
        The clients that chose to do nothing.
    received : Params
        The model that clients received.
    server : ServerSide
        What the server can do besides.
    verdict : Verdict
        What was found out about all updates, those that are not usable too.
    """

    offer: Offer
    updates: tuple[Update, ...]
    abstained: tuple[int, ...]
    received: Params
    server: ServerSide
    verdict: Verdict
    reference: Reference

    @property
    def number(self) -> int:
        """The number of the round, 0 for the warm-up."""
        return self.offer.round

    @property
    def clients(self) -> Ints:
        """The clients of the usable updates, in order."""
        return np.array([update.client for update in self.updates], dtype=np.int64)

    def only(self, updates: Sequence[Update]) -> Round:
        """Return the round as if these were the only usable updates."""
        return replace(self, updates=tuple(updates))

    def validate(self, params: Params) -> tuple[float, float]:
        """Return loss and accuracy in percent of weights on the server's validation set.

        Raises
        ------
        StrategyError
            If the server has none.
        """
        if self.server.validate is None:
            raise StrategyError("the server has no validation set: set data.validation_samples.")
        return self.server.validate(params)

    @property
    def fixed_payments(self) -> tuple[float, ...] | None:
        """What the offer has fixed for each selected client, and 0 for one without usable update.

        None if it has fixed nothing.
        """
        if self.offer.payments is None:
            return None
        usable = {update.client for update in self.updates}
        pairs = zip(self.offer.selected, self.offer.payments, strict=True)
        return tuple(amount if client in usable else 0.0 for client, amount in pairs)


def _record_of(
    offer: Offer,
    verdict: Verdict,
    flags: Mapping[int, str],
    *,
    epochs_total: int,
    payments: tuple[float, ...] | None,
) -> RoundRecord:
    """Return the record of a round, as far as a strategy knows it."""
    answers = verdict.updates
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
        credited=verdict.credited,
        payments=payments,
        fines=verdict.fines,
        flags=flags,
        inspected=verdict.inspected,
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


def data_weights(updates: Sequence[Update]) -> list[float]:
    """Return each update's number of training samples, the weights of FedAvg."""
    return [float(update.samples) for update in updates]


def with_losses(updates: Sequence[Update]) -> list[Update]:
    """Return the updates that have a usable loss."""
    return [update for update in updates if np.isfinite(update.loss)]


def loss_unit(losses: Sequence[float], power: float) -> float:
    """Return what to divide losses by before they are raised to a power and compared.

    It is 1, or the largest loss where the power of that would leave the range of floats: the
    weights that follow are the same but for a common factor, and stay finite whatever a client
    says its loss is.
    """
    most = max(losses)
    return 1.0 if abs(max(1.0, power) * float(log(most))) < MOST_EXPONENT else most


def model_of(update: Update) -> Params:
    """Return the model of a usable update."""
    assert update.params is not None
    return update.params


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

_CONTRACT_OF_0_2 = (
    "combine",
    "own_task",
    "download",
    "needs_validation",
    "pools_data",
    "clients_keep",
    "varies_selection",
    "sends_models",
    "needs_sgd",
    "asynchronous",
    "server_reads",
)

NOT_FINITE = "refused: weights that are not finite"
"""Why an answer is refused whose training has diverged."""


def _validate_updates(
    state: State,
    offer: Offer,
    updates: Sequence[Update],
    epoch_range: Callable[[Terms], tuple[int, int]],
) -> tuple[Update, ...]:
    """Return one report for each selected client, in order, without what is not well formed."""
    by_client: dict[int, Update] = {}
    for update in sorted(updates, key=lambda r: r.client):
        by_client.setdefault(update.client, update)
    one_each = [by_client.get(c) or Update.missing(c, "no answer") for c in offer.selected]
    # Clients that did not introduce themselves are taken to have one sample each.
    introduced = bool((state.samples > 1).any())
    told = state.samples if introduced else np.full_like(state.samples, 2**62)
    return tuple(
        _validated(update, state.params.size, epoch_range(terms), told[update.client])
        for update, terms in zip(one_each, offer.terms, strict=True)
    )


def _validated(update: Update, size: int, epochs: tuple[int, int], told: int) -> Update:
    """Return the report as it is, or without its weights and with the reason.

    A failed or refused report has done no epochs that count.
    """
    reason = ""
    fewest, most = epochs
    if update.failure:
        return replace(update, params=None, epochs=0)
    if update.params is None:
        return replace(update, epochs=0)
    if update.params.shape != (size,) or update.params.dtype != np.float32:
        reason = f"refused: {update.params.dtype} weights of shape {update.params.shape}"
    elif not np.isfinite(update.params).all():
        reason = NOT_FINITE
    elif update.samples <= 0:
        reason = f"refused: {update.samples} samples"
    elif update.samples > told:
        reason = f"refused: {update.samples} samples of a client that had {told}"
    elif not fewest <= update.epochs <= most:
        allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        reason = f"refused: {update.epochs} epochs where {allowed} were on offer"
    elif update.loss < 0:
        reason = f"refused: a loss of {update.loss:g}"
    return replace(update, params=None, epochs=0, failure=reason) if reason else update


# The server's own update: what it makes of the received model by its validation set.

SERVER = -1
"""Stands for a client's number in the task of the server itself."""


def server_work(plan: Plan, terms: Sequence[Terms], accepted: Sequence[Update]) -> LocalWork:
    """Return how the server trains: as long, and with as large a step, as the middle client."""
    terms_of = {own.client: own for own in terms}
    asked = [terms_of[update.client] for update in accepted]
    middle = len(accepted) // 2
    of_middle = asked[middle]
    return LocalWork(
        Terms(
            SERVER,
            of_middle.round,
            batches=of_middle.batches,
            objective=Objective(proximal=of_middle.objective.proximal),
        ),
        epochs=max(1, sorted(update.epochs for update in accepted)[middle]),
        learning_rate=plan.step_size(of_middle.round)
        * sorted(own.step_scale for own in asked)[middle],
    )


def _update_by(
    train_server: _TrainServer, received: Params, work: LocalWork
) -> Callable[[], Floats]:
    """Return a function that trains when it is first called, and returns the update."""

    def update() -> Floats:
        trained = train_server(received, work)
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
    needs : Needs
        What it needs from a run.
    """

    plan: Plan
    aggregator: Annotated[Choice, AGGREGATORS] = Choice("mean")

    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    family: ClassVar[str] = "other"
    needs: ClassVar[Needs] = Needs()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        old = [name for name in _CONTRACT_OF_0_2 if name in vars(cls)]
        if old:
            raise StrategyError(
                f"the strategy {cls.__name__} has {old[0]}, which the contract of version 0.2 had: "
                f"docs/how-to/upgrade.md says what to change."
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        # From Python a name alone will do, as in a configuration.
        for option in options_of(type(self)).values():
            value = getattr(self, option.field)
            if isinstance(value, str) and get_origin(option.annotation) is Annotated:
                object.__setattr__(
                    self, option.field, convert(value, option.annotation, option.name)
                )
        check_aggregator(self.aggregator, self.plan.per_round)

    @property
    def wants_validation(self) -> bool:
        """Whether the server needs a validation set, by the strategy or what was chosen for it."""
        return bool(self.component_that_needs("validation"))

    @property
    def wants_losses(self) -> bool:
        """Whether clients must tell the loss of a model on their data."""
        return type(self).survey is not Strategy.survey

    def component_that_needs(self, requirement: _Need) -> str:
        """Return the name of what needs this, empty if nothing does.

        That is the strategy itself, or a component that was chosen for it from a registry, such
        as its aggregator.
        """
        if getattr(self.needs, requirement):
            return self.name
        for option in options_of(type(self)).values():
            chosen: Any = getattr(self, option.field)
            for registry in get_args(option.annotation)[1:] if isinstance(chosen, Choice) else ():
                if getattr(registry[chosen.name], f"needs_{requirement}", False):
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
        step_size = self.plan.step_size(terms.round) * terms.step_scale
        return LocalWork(terms, planned if terms.train else 0, step_size)

    def prepare(self, task: LocalWork, vectors: ClientVectors) -> TaskVectors:
        """Return, on the client, where its training starts and what corrects its gradients.

        The ``received`` vector of the result is not looked at.
        """
        return TaskVectors()

    def personal_work(self, task: LocalWork) -> LocalWork | None:
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
        if terms.batches is not None or type(self).respond is not Strategy.respond:
            return 0, MAX_EPOCHS
        fixed = self.plan.epochs if terms.epochs is None else terms.epochs
        return fixed, fixed

    def screen(
        self, state: S, offer: Offer, updates: tuple[Update, ...], inspect: Inspect | None
    ) -> Verdict:
        """Look at updates that are well formed and say which to believe: here all of them."""
        return Verdict(updates)

    def aggregate(
        self,
        state: S,
        offer: Offer,
        updates: Sequence[Update],
        server: ServerSide = _ALONE,
    ) -> tuple[S, RoundRecord]:
        """Return the state after the round, and the record of what happened in it.

        Updates may come in any order and are reduced in client order. An update that is not
        finite, or not of the model's size, or of epochs that were not on offer, or of more samples
        than the client had when it introduced itself, is left out and recorded with its reason.
        """
        well_formed = _validate_updates(state, offer, updates, self.epoch_range)
        if server.release is not None:
            well_formed = server.release(state.params, offer.round, well_formed)
        verdict = self.screen(state, offer, well_formed, server.inspect)
        usable = tuple(update for update in verdict.updates if update.params is not None)
        reference = Reference(state.params)
        if server.train is not None and usable:
            work = server_work(self.plan, offer.terms, usable)
            reference = Reference(state.params, _update_by(server.train, state.params, work))
        round = Round(
            offer,
            usable,
            abstained=tuple(update.client for update in verdict.updates if update.abstained),
            received=state.params,
            server=server,
            verdict=verdict,
            reference=reference,
        )
        after = self.step(state, round)
        flags = dict(verdict.flags)
        if isinstance(after, KeepingState):
            flags = after.clients_with_lost_state(usable) | flags
            after = after.with_participants(usable)
        record = _record_of(
            offer,
            verdict,
            flags,
            epochs_total=sum(update.epochs + self._personal_epochs(update) for update in usable),
            payments=self.payments(after, round),
        )
        return replace(after, round=offer.round), record

    def payments(self, state: S, round: Round) -> tuple[float, ...] | None:
        """Return what each selected client is paid, by the state after the round.

        Here it is what the offer has fixed, for usable answers alone. None means γ ω τ where there
        is a game, and nothing where there is none.
        """
        return round.fixed_payments

    def _personal_epochs(self, update: Update) -> int:
        """Return the epochs that a client trained for itself beside those that it reports."""
        done = LocalWork(Terms(update.client, 0), update.epochs, self.plan.learning_rate)
        own = self.personal_work(done)
        return 0 if own is None else own.epochs

    @abstractmethod
    def step(self, state: S, round: Round) -> S:
        """Return the next state; without usable updates the weights stay as they are."""

    def average(self, round: Round, weights: Sequence[float]) -> Params:
        """Return Σ p_k w_k with p in proportion to the weights, by the chosen aggregator."""
        total = math.fsum(weights)
        shares = np.array([weight / total for weight in weights])
        models = [model_of(update) for update in round.updates]
        return aggregated(self.aggregator, models, shares, round.reference).astype(np.float32)


# Contributions of the clients that answered, as a strategy needs them.


def measured_contributions(
    choice: Choice,
    round: Round,
    after: Params,
    trainable_size: int,
    last: Floats,
    last_step: Params | None = None,
) -> Floats:
    """Return all clients' contributions, with those of this round measured anew.

    ``after`` is the global model after the round, and ``last`` are the contributions as of every
    client's last update. A strategy that keeps the ``last_step`` of the global model
    lets measures tell what clients could have sent without work.
    """
    clients, shares = round.clients, data_weights(round.updates)
    if not clients.size:
        return last
    updates = RoundUpdates(
        clients=clients,
        models=[model_of(update) for update in round.updates],
        before=round.received,
        after=after,
        trainable_size=trainable_size,
        weights=np.array(shares) / math.fsum(shares),
        # In a warm-up nothing was measured before.
        previous=last[clients] if round.number else np.full(clients.size, np.nan),
        round=round.number,
        last_step=last_step,
        validate=round.server.validate,
    )
    measured = last.copy()
    measured[clients] = measure_round(choice, updates)
    return measured


# What each answer adds to the aggregate, on the server's validation set.


def marginal_gains(strategy: Strategy[Any], round: Round) -> list[float]:
    """Return the validation loss of the aggregate without each update, minus that with all.

    An update above 0 helped. Without the only one there is, the aggregate is the received model. A
    gain is not finite if one of the losses is not.

    Raises
    ------
    StrategyError
        If the server has no validation set.
    """
    shares = data_weights(round.updates)
    together = round.validate(strategy.average(round, shares))[0]
    gains = []
    for k in range(len(shares)):
        others = round.only([*round.updates[:k], *round.updates[k + 1 :]])
        rest = [*shares[:k], *shares[k + 1 :]]
        without = strategy.average(others, rest) if rest else round.received
        gains.append(round.validate(without)[0] - together)
    return gains
