"""The client's side of a run: its data, its cost, and how it carries out an order."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flamma.clients.behaviours import Encounter, Introduction, Notes
from flamma.clients.costs import CostedClients, true_costs
from flamma.data.sites import UNLIMITED, SiteLimits, epochs_of
from flamma.engines.flower.client_data import ClientData
from flamma.engines.flower.conduct import ClientConduct, Memory
from flamma.engines.flower.messages import MessageError, Order, Score, SiteProfile
from flamma.engines.flower.payload import read_configuration
from flamma.engines.flower.site_agreement import reported_labels
from flamma.engines.flower.site_trainers import (
    first_params,
    lanes_plan,
    measures_of,
    site_lanes_trainer,
    site_torch_trainer,
)
from flamma.errors import ConfigError
from flamma.experiments.config import Config
from flamma.simulation.client_side import ClientSide, one_line, outcome_of, training_report
from flamma.training import Trained, Trainer, TrainingJob, training_stream, used_samples
from flamma.training.lanes import available
from flamma.types import (
    NO_VECTORS,
    Broadcast,
    Floats,
    LocalWork,
    Params,
    Profile,
    TaskVectors,
    Terms,
    Update,
)

_MEASURED = "measured"
"""The kind of costs that every client finds out by itself."""

_SHORTEST_EPOCH_SECONDS = 1e-9
"""What an epoch takes at least, so that a measured cost is positive on any clock."""


@dataclass(frozen=True, eq=False)
class Site:
    """A client that knows its data and its cost, and does what is best for itself or what it likes.

    Parameters
    ----------
    data : ClientData
        Its data.
    text : str
        The run's configuration as TOML, from which it makes the same strategy and model as the
        server.
    memory : mutable mapping
        What lasts from one message to the next.
    conduct : ClientConduct
        How it behaves; honestly by default.
    kept : Notes
        What the strategy lets it keep from one training to the next.
    limits : SiteLimits
        What it does at most for an order; in a simulation, whatever it is asked for.
    """

    data: ClientData
    text: str
    memory: Memory
    conduct: ClientConduct = field(default_factory=ClientConduct)
    kept: Notes = field(default_factory=Notes)
    limits: SiteLimits = UNLIMITED

    @property
    def config(self) -> Config:
        """The run's configuration."""
        return read_configuration(self.text)

    def profile(self, order: Order) -> SiteProfile:
        """Describe itself; with a cost of its own only if the server asks and may know it."""
        own = self.data
        has_cost = own.cost is not None or self.config.costs.name == _MEASURED
        tells = has_cost and own.tells_cost and order.wants_cost
        said = Profile(order.client, self.cost(order) if tells else math.nan, len(own.y))
        if self.conduct.introduces:
            said = self.conduct.behaviour.tell(Introduction(said))
        return SiteProfile(
            own.name,
            samples=said.samples,
            held_out=len(own.held_y),
            cost=said.cost,
            own_cost=has_cost,
            shape=tuple(own.shape),
            classes=own.classes,
            lanes=available(),
            task=own.task,
            labels=reported_labels(own.labels),
            columns_sha256=own.columns_sha256,
        )

    def play(
        self, order: Order, terms: Terms, params: Params, extra: Params | None = None
    ) -> Update:
        """Respond to terms, train and report; an exception becomes the report's failure.

        Who is asked for a loss alone sends no weights, whatever it has done.
        """
        begin, samples, conduct = time.monotonic(), len(self.data.y), self.conduct
        try:
            profile = Profile(terms.client, self.cost(order), samples)
            respond = self.config.strategy.respond
            encounter = Encounter(terms, profile, respond, self.config.seed, conduct.group)
            task = conduct.behaviour.act(encounter)
            self.limits.check_epochs(self._epochs(task))
            report = self._carry_out(order, task, Broadcast(params, order.round, extra))
            sent = conduct.behaviour.send(report, encounter, params, conduct.notes)
            return sent if terms.train else replace(sent, params=None, epochs=0)
        except Exception as error:  # the server is told, and the round goes on without it
            seconds = time.monotonic() - begin
            return Update(terms.client, None, samples, 0, seconds=seconds, failure=one_line(error))

    def score(self, order: Order, params: Params) -> Score:
        """Evaluate weights on the held-out data: its own, if the order is for what it keeps."""
        own = self.data
        received = Broadcast(params, order.round, evaluates_kept=order.evaluates_kept)
        params = self._side(order).model_of(order.client, received)
        losses, marks = self._trainer(order).predict(params, own.held_x, own.held_y)
        score = measures_of(self.text, own.task).client_score(losses, marks, own.held_y)
        return Score(*score, len(own.held_y))

    def cost(self, order: Order) -> float:
        """Return what an epoch costs this client.

        It is the client's own cost if it has one, else the one in the order. Where costs are
        measured and the order has none, an epoch is timed. The order repeats what a client
        measured and told before, which is how a cost outlasts an interrupted run; a client that
        may have lied does not go by that.

        Raises
        ------
        ConfigError
            If there is none of them.
        """
        if self.data.cost is not None:
            return self.data.cost
        measured = self.config.costs.name == _MEASURED
        if math.isfinite(order.cost) and not (measured and self.conduct.introduces):
            return order.cost
        if not measured:
            name, kind = self.data.name, self.config.costs.name
            raise ConfigError(f"{name} was not told its cost of the kind {kind}.")
        known: float | None = self.memory.get("cost")
        if known is None:
            this = CostedClients(1, self.config.seed, lambda: self._seconds_per_epoch(order))
            known = float(true_costs(self.config.costs, this)[0])
            self.memory["cost"] = known
        return known

    def _seconds_per_epoch(self, order: Order) -> Floats:
        own = self.data
        params = first_params(self.text, tuple(own.shape), order.classes or own.classes)
        task = LocalWork(Terms(0, 0), epochs=1, learning_rate=1e-3)
        for _ in range(2):  # the first also warms the machine up
            seconds = self._train(order, task, params).seconds
        return np.array([max(seconds, _SHORTEST_EPOCH_SECONDS)])

    def _epochs(self, task: LocalWork) -> float:
        """Return the epochs of a task over this client's data, with those that are its own."""
        samples, batch = len(self.data.y), self.config.training.batch_size
        own = (
            None
            if task.abstains or not task.terms.train
            else self.config.strategy.personal_work(task)
        )
        tasks = [task] if own is None else [task, own]
        return sum(epochs_of(one, samples, batch) for one in tasks)

    @property
    def _time_limit(self) -> float | None:
        """Seconds that a training may take: what the run says, or less."""
        return self.limits.time_limit(self.config.engine.time_limit or None)

    def _side(self, order: Order) -> ClientSide:
        return ClientSide(self.config.strategy, order.trainable_size, self.kept)

    def _carry_out(self, order: Order, task: LocalWork, broadcast: Broadcast) -> Update:
        """Do a task and what the strategy wants besides, and report it honestly."""

        def train(tasks: Sequence[LocalWork], vectors: Sequence[TaskVectors]) -> list[Update]:
            pairs = zip(tasks, vectors, strict=True)
            return [self._report(order, one, broadcast.params, own) for one, own in pairs]

        [report] = self._side(order).carry_out(broadcast, [task], train)
        return report

    def _report(
        self, order: Order, task: LocalWork, params: Params, vectors: TaskVectors
    ) -> Update:
        """Do a task, and report it honestly."""
        samples, limit = len(self.data.y), self._time_limit
        if task.abstains:
            return Update(task.client, None, samples, epochs=0)
        begin = time.monotonic()
        try:
            trained = self._train(order, task, params, vectors)
        except Exception as error:
            trained = Trained(None, seconds=time.monotonic() - begin, error=error)
        report = training_report(task, samples, outcome_of(trained, limit), trained.params)
        if report.failure or not task.terms.train:
            return report
        if report.params is None:
            return replace(report, epochs=0, failure="the training returned no weights")
        return replace(report, params=report.params.copy())

    def _train(
        self, order: Order, task: LocalWork, params: Params, vectors: TaskVectors = NO_VECTORS
    ) -> Trained:
        limit = self._time_limit
        own = self.data.x, self.data.y
        x, y = own if task.owner == task.client else self.conduct.samples_of(task.owner)
        classes = order.classes or self.data.classes
        rng = training_stream(self.config.seed, task)
        job = TrainingJob(task, *used_samples(task.data, x, y, classes), rng, vectors)
        [(_, trained)] = self._trainer(order).train_each(params, [job], limit)
        return trained

    def _trainer(self, order: Order) -> Trainer:
        shape, classes = tuple(self.data.shape), order.classes or self.data.classes
        if order.trainer == "lanes":
            return site_lanes_trainer(self.text, shape, classes, self._plan(shape, classes))
        if order.trainer == "torch":
            return site_torch_trainer(self.text, shape, classes, self.data.task)
        raise ConfigError(f"there is no trainer {order.trainer!r}.")

    def _plan(self, shape: tuple[int, ...], classes: int) -> bytes:
        """Return the lanes' plan; only the first message of a run needs torch to make it."""
        name = f"plan of {classes} classes"
        plan: bytes | None = self.memory.get(name)
        if plan is None:
            plan = lanes_plan(self.text, shape, classes)
            self.memory[name] = plan
        return plan


def check_address(order: Order, name: str, number: int | None) -> None:
    """Refuse an order that is for another client; one without a name is for any client.

    Raises
    ------
    MessageError
        If the order is for another client.
    """
    if order.client < 0 and not order.name:
        return
    if order.name != name or (number is not None and order.client != number):
        raise MessageError(f"this is {name}, but {order.name!r} was asked.")
