"""The contract every strategy keeps: pure functions over a state that can be saved.

``init`` makes the state, ``offer`` selects clients and sets each one's terms, ``respond`` runs on
the client and decides what it does, ``aggregate`` turns what came back into the next state. A
strategy never mutates itself or a state, and knows nothing of engines, files or terminals.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, get_args, get_origin

import numpy as np

from flamma.aggregators import AGGREGATORS, Reference, aggregated, check_aggregator
from flamma.clients.behaviours.contract import BestReport
from flamma.game.model import MOST_EPOCHS as MOST_EPOCHS
from flamma.options import convert, options_of
from flamma.records import RoundRecord
from flamma.registry import Choice
from flamma.strategies.common import data_shares as data_shares
from flamma.strategies.common import largest as largest
from flamma.strategies.common import loss_unit as loss_unit
from flamma.strategies.common import model_of as model_of
from flamma.strategies.common import uniform_choice as uniform_choice
from flamma.strategies.common import weighted_choice as weighted_choice
from flamma.strategies.common import with_losses as with_losses
from flamma.strategies.exchange import Answers as Answers
from flamma.strategies.exchange import Inspect as Inspect
from flamma.strategies.exchange import KeepingState as KeepingState
from flamma.strategies.exchange import Offer as Offer
from flamma.strategies.exchange import Release, lost_what_they_kept, record_of
from flamma.strategies.exchange import S as S
from flamma.strategies.exchange import Screened as Screened
from flamma.strategies.exchange import SecondsOf as SecondsOf
from flamma.strategies.exchange import ServerReads as ServerReads
from flamma.strategies.exchange import State as State
from flamma.strategies.exchange import Validate as Validate
from flamma.strategies.server_training import TrainServer, server_task, update_by
from flamma.strategies.well_formed import well_formed_reports
from flamma.types import (
    ClientVectors,
    Download,
    Ints,
    LocalTask,
    Params,
    Plan,
    Population,
    Profile,
    Report,
    TaskVectors,
    Terms,
)


@dataclass(frozen=True)
class Strategy(ABC, Generic[S]):
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

    def download(self, state: S) -> Download:
        """Return what clients receive besides their terms: here the global model."""
        return Download(state.params, state.round)

    def serving(self, state: S) -> Download:
        """Return what clients evaluate: what they receive, with the served model in it."""
        download = self.download(state)
        if state.served is state.params:
            return download
        return replace(download, params=state.served)

    def respond(self, terms: Terms, profile: Profile) -> LocalTask:
        """Decide, on the client, what it does: here the epochs that the plan fixes."""
        planned = self.plan.epochs if terms.epochs is None else terms.epochs
        return LocalTask(
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

    def prepare(self, task: LocalTask, vectors: ClientVectors) -> TaskVectors:
        """Return, on the client, where its training starts and what corrects its gradients.

        The ``received`` vector of the result is not looked at.
        """
        return TaskVectors()

    def own_task(self, task: LocalTask) -> LocalTask | None:
        """Return, on the client, what it trains for itself after a task; here nothing.

        That training starts from what it has kept, from the received model if that is nothing, and
        its result is what it keeps. The proximal term pulls to the received model.
        """
        return None

    def keep(self, task: LocalTask, vectors: ClientVectors, trained: Params) -> Params | None:
        """Return, on the client, what it keeps after a training; None for what it has kept."""
        return None

    def epoch_range(self, terms: Terms) -> tuple[int, int]:
        """Return the fewest and the most epochs that a client may report with its weights.

        Where clients decide as :meth:`respond` does here, there is one number. A strategy that
        lets them choose says how far. Terms that count mini-batches say nothing of epochs.
        """
        if terms.iterations is not None or type(self).respond is not Strategy.respond:
            return 0, MOST_EPOCHS
        fixed = self.plan.epochs if terms.epochs is None else terms.epochs
        return fixed, fixed

    def screen(
        self, state: S, offer: Offer, answers: tuple[Report, ...], inspect: Inspect | None
    ) -> Screened:
        """Look at answers that are well formed and say which to believe: here all of them."""
        return Screened(answers)

    def aggregate(
        self,
        state: S,
        offer: Offer,
        reports: Sequence[Report],
        validate: Validate | None = None,
        train_server: TrainServer | None = None,
        inspect: Inspect | None = None,
        release: Release | None = None,
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

    def _own_epochs(self, report: Report) -> int:
        """Return the epochs that a client trained for itself beside those that it reports."""
        if report.params is None:
            return 0
        own = self.own_task(LocalTask(report.client, 0, report.epochs, self.plan.learning_rate))
        return 0 if own is None else own.epochs

    @abstractmethod
    def combine(self, state: S, answers: Answers) -> S:
        """Return the next state; without accepted reports the weights stay as they are."""

    def average(
        self,
        accepted: Sequence[Report],
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
