"""One client's side: its data, its cost, and what it does with an order. torch only if needed."""

from __future__ import annotations

import math
import time
import tomllib
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from flamma.clients.costs import draw_costs
from flamma.engines.flower.wire import Order, Score, SiteProfile, WireError
from flamma.engines.outcomes import late, means, one_line
from flamma.errors import ConfigError
from flamma.experiments.config import Config, make_config
from flamma.seeding import stream
from flamma.training.jobs import TooSlow, Trained, Trainer, TrainingJob
from flamma.training.lanes import LanesTrainer, available
from flamma.types import Ints, LocalTask, Params, Profile, Report, Terms

if TYPE_CHECKING:
    from flamma.data.federated import Images

DRAWN = ("constant", "lognormal")
"""Costs that a client finds in the configuration by itself."""

Memory = MutableMapping[str, Any]
"""What a client keeps from one message to the next: its measured cost, and a lanes plan."""


class Holdings(Protocol):
    """What a client holds: its name, its samples and their labels, and its cost if it has one."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def cost(self) -> float | None: ...  # noqa: D102
    @property
    def tells_cost(self) -> bool: ...  # noqa: D102
    @property
    def x(self) -> Images: ...  # noqa: D102
    @property
    def y(self) -> Ints: ...  # noqa: D102
    @property
    def held_x(self) -> Images: ...  # noqa: D102
    @property
    def held_y(self) -> Ints: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def classes(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Slice:
    """A client's part of a federation that this machine holds as a whole."""

    name: str
    x: Images
    y: Ints
    held_x: Images
    held_y: Ints
    classes: int
    cost: float | None = None
    tells_cost: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])


@dataclass(frozen=True, eq=False)
class Site:
    """A client that knows its data and its cost, and answers what is best for itself.

    Parameters
    ----------
    holdings : Holdings
        Its data.
    text : str
        The run's configuration, from which it makes the same strategy and model as the server.
    memory : mutable mapping
        What lasts from one message to the next.
    """

    holdings: Holdings
    text: str
    memory: Memory

    @property
    def config(self) -> Config:
        """The run's configuration."""
        return configured(self.text)

    def profile(self, order: Order) -> SiteProfile:
        """Say who it is; and its cost if it may be told, is asked for, and nobody else knows it."""
        own = self.holdings
        private = own.cost is not None or self.config.costs.kind == "measured"
        tells = private and own.tells_cost and order.wants_cost
        return SiteProfile(
            own.name,
            samples=int(own.y.size),
            held_out=int(own.held_y.size),
            cost=self.cost(order) if tells else math.nan,
            own_cost=private,
            shape=tuple(own.shape),
            classes=own.classes,
            lanes=available(),
        )

    def play(self, order: Order, terms: Terms, params: Params) -> Report:
        """Decide what is best for itself, and train; what goes wrong is the report's failure."""
        begin, samples = time.monotonic(), int(self.holdings.y.size)
        try:
            profile = Profile(terms.client, self.cost(order), samples)
            task = self.config.build_strategy().respond(terms, profile)
            if task.abstains:
                return Report(terms.client, None, samples, epochs=0)
            trained = self._train(order, task, params)
        except Exception as error:  # the server is told, and the round goes on without
            trained = Trained(None, seconds=time.monotonic() - begin, error=error)
        if trained.params is None:
            reason, seconds = self._reason(trained.error), trained.seconds
            return Report(terms.client, None, samples, 0, seconds=seconds, failure=reason)
        return Report(
            terms.client, trained.params, samples, task.epochs, trained.loss, trained.seconds
        )

    def score(self, order: Order, params: Params) -> Score:
        """Judge weights on the held-out data."""
        own = self.holdings
        held = int(own.held_y.size)
        offsets = np.array([0, held])
        losses, right = self._trainer(order).predict(params, own.held_x, own.held_y)
        return Score(float(100 * means(right, offsets)[0]), float(means(losses, offsets)[0]), held)

    def cost(self, order: Order) -> float:
        """Return what an epoch costs: its own, else as the configuration has it."""
        costs, own = self.config.costs, self.holdings.cost
        if own is not None:
            return own
        if costs.kind in DRAWN:
            drawn = draw_costs(
                costs.kind,
                self.config.data.clients,
                self.config.seed,
                value=costs.value,
                spread=costs.spread,
            )
            return float(drawn[order.client])
        if math.isfinite(order.cost):
            return order.cost
        if costs.kind != "measured":
            name = self.holdings.name
            raise ConfigError(f"{name} was not told its cost of the kind {costs.kind}.")
        return self._measured(order)

    def _measured(self, order: Order) -> float:
        """Return the price of the seconds that an epoch takes, timed once."""
        known: float | None = self.memory.get("cost")
        if known is None:
            own = self.holdings
            params = first_params(self.text, tuple(own.shape), order.classes or own.classes)
            task = LocalTask(0, round=0, epochs=1, learning_rate=1e-3)
            for _ in range(2):  # the first also warms the machine up
                seconds = self._train(order, task, params).seconds
            known = self.config.costs.value * max(seconds, 1e-9)
            self.memory["cost"] = known
        return known

    def _train(self, order: Order, task: LocalTask, params: Params) -> Trained:
        own, limit = self.holdings, self.config.engine.time_limit or None
        rng = stream(self.config.seed, "train", task.round, task.client)
        job = TrainingJob(task, own.x, own.y, rng)
        [(_, trained)] = self._trainer(order).train_each(params, [job], limit)
        return trained

    def _reason(self, error: Exception | None) -> str:
        if isinstance(error, TooSlow):
            return late(self.config.engine.time_limit)
        return "no weights came of the training" if error is None else one_line(error)

    def _trainer(self, order: Order) -> Trainer:
        shape, classes = tuple(self.holdings.shape), order.classes or self.holdings.classes
        if order.trainer == "lanes":
            return _lanes(self.text, shape, classes, self._plan(shape, classes))
        if order.trainer == "torch":
            return _torch(self.text, shape, classes)
        raise ConfigError(f"there is no trainer {order.trainer!r}.")

    def _plan(self, shape: tuple[int, ...], classes: int) -> bytes:
        """Return what the lanes have to do; only the first message of a run needs torch for it."""
        name = f"plan of {classes} classes"
        plan: bytes | None = self.memory.get(name)
        if plan is None:
            plan = lanes_plan(self.text, shape, classes)
            self.memory[name] = plan
        return plan


@lru_cache(maxsize=1)
def configured(text: str) -> Config:
    """Return the configuration that a client was sent, checked like any other."""
    try:
        return make_config(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise WireError(f"the configuration that was sent is not TOML: {error}.") from error


# A process that lives on, as those of a simulation do, makes its trainer once.
@lru_cache(maxsize=1)
def _lanes(text: str, shape: tuple[int, ...], classes: int, plan: bytes) -> Trainer:
    config = configured(text)
    training, words = config.training, np.frombuffer(plan, dtype=np.int64)
    return LanesTrainer(words, shape, training.batch_size, training.momentum, config.per_round)


@lru_cache(maxsize=1)
def _torch(text: str, shape: tuple[int, ...], classes: int) -> Trainer:
    import torch

    from flamma.experiments.setup import build_module
    from flamma.models.flat import FlatModel
    from flamma.training.torch_trainer import TorchTrainer, pick_device

    torch.set_num_threads(1)  # more threads would sum up in another order
    config = configured(text)
    training = config.training
    model = FlatModel(build_module(config, shape, classes), pick_device(training.device))
    return TorchTrainer(model, training.batch_size, training.momentum)


@lru_cache(maxsize=1)
def lanes_plan(text: str, shape: tuple[int, ...], classes: int) -> bytes:
    """Return the plan of the run's model as bytes."""
    from flamma.experiments.setup import build_module
    from flamma.training.lanes.plan import plan_of

    plan, reason = plan_of(build_module(configured(text), shape, classes), shape)
    if plan is None:
        raise ConfigError(f"the trainer lanes cannot be used: {reason}.")
    return plan.tobytes()


def first_params(text: str, shape: tuple[int, ...], classes: int) -> Params:
    """Return the model's initial weights."""
    from flamma.experiments.setup import build_module
    from flamma.models.flat import FlatModel

    return FlatModel(build_module(configured(text), shape, classes)).read()


def check_address(order: Order, name: str, number: int | None) -> None:
    """Refuse an order that is for somebody else; one without a name is for everybody.

    Raises
    ------
    WireError
        If it is.
    """
    if order.client < 0 and not order.name:
        return
    if order.name != name or (number is not None and order.client != number):
        raise WireError(f"this is {name}, but {order.name!r} was asked.")
