"""Our strategies as Flower's: for people who have a ServerApp of their own."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from numpy.typing import NDArray

from flamma import metrics
from flamma.engines.flower.arrays import NamedArrays, WireError, mean_of_whole
from flamma.engines.flower.introductions import introductions, read_score, read_update
from flamma.engines.flower.own import STRATEGY, TERMS
from flamma.engines.flower.roster import why_failed
from flamma.engines.flower.wire import ClientError
from flamma.errors import FlammaError
from flamma.experiments.config import make_config
from flamma.federation import certificate, describe
from flamma.seeding import stream
from flamma.strategies.base import Offer, State
from flamma.types import Params, Population, Report

SHOWN = ("accuracy", "accuracy_variance", "worst_10", "loss", "clients_scored")
"""What Flower's own result has of an evaluation; the history has all."""

Validate = Callable[[ArrayRecord], tuple[float, float]]
Records = dict[str, Any]


class FlowerStrategy(Strategy):
    """Any registered strategy in ``strategy.start(grid=..., initial_arrays=..., num_rounds=...)``.

    Parameters
    ----------
    name : str
        One of ``flamma list``.
    per_round : int
        How many clients are selected in a round.
    seed : int
        Of the selection.
    epochs, learning_rate, batch_size
        What clients go by where the strategy does not say otherwise.
    clients : int, optional
        How many clients to wait for before the first round; by default those who are there when
        there are at least ``per_round``.
    trainable : collection of str, optional
        The names of the arrays that are trained; by default all of real numbers but running
        means and variances. The others are averaged, but no distance counts them.
    accuracy, loss : str
        What clients call the accuracy (a share in [0, 1]) and the loss in answers to
        ``@app.evaluate()``.
    validate : callable, optional
        Scores arrays on data of the server's own, (loss, accuracy in percent), for strategies
        that need it.
    timeout : float
        Seconds to wait for clients to come, and for their answers before the first round.
    **options
        The strategy's own, such as ``decay_start``. Costs that clients do not tell, the server
        learns from their play, whatever ``server_costs`` says.

    Attributes
    ----------
    history : list of dict
        A record of each round as in ``rounds.jsonl``: who was selected, who failed and why, the
        decay factor, the epochs, the certificate, and the evaluation.

    Raises
    ------
    FlammaError
        If an option cannot work.
    """

    _state: State
    _offer: Offer
    _form: NamedArrays

    def __init__(
        self,
        name: str,
        per_round: int,
        *,
        seed: int = 0,
        epochs: int = 5,
        learning_rate: float = 0.05,
        batch_size: int = 32,
        clients: int | None = None,
        trainable: Collection[str] | None = None,
        accuracy: str = "eval_acc",
        loss: str = "eval_loss",
        validate: Validate | None = None,
        timeout: float = 3600.0,
        **options: Any,
    ) -> None:
        self.name = name
        self.history: list[Records] = []
        self._tables: Records = {
            "per_round": per_round,
            "seed": seed,
            "data": {"clients": max(per_round, clients or 1)},
            "training": {
                "epochs": epochs,
                "learning_rate": learning_rate,
                "batch_size": batch_size,
            },
            "strategy": {"name": name, **options},
            "engine": {"name": "flower"},
        }
        self._config = make_config(self._tables)
        self._expected = clients
        self._trainable = trainable
        self._accuracy, self._loss = accuracy, loss
        self._validate = validate
        self._timeout = timeout
        self._nodes: list[int] = []

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Learn who the clients are, warm up if the strategy does, and go through the rounds."""
        self._prepare(grid, initial_arrays, num_rounds)
        if self._state.round < 0:
            messages = self.configure_train(0, initial_arrays, train_config or ConfigRecord(), grid)
            replies = list(grid.send_and_receive(messages, timeout=timeout))
            warm, _ = self.aggregate_train(0, replies)
            initial_arrays = initial_arrays if warm is None else warm
            self.history.clear()
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select clients and tell each of its terms."""
        if not self._nodes:
            raise FlammaError("begin with strategy.start(...), which learns who the clients are.")
        number = self._state.round + 1
        there = set(grid.get_node_ids())
        present = np.array([k for k, node in enumerate(self._nodes) if node in there], dtype=int)
        rng = stream(self._config.seed, "select", number)
        self._offer = self._strategy.offer(self._state, present, rng)
        how = ConfigRecord({"config": self._config.as_toml()})
        messages = []
        for terms in self._offer.terms:
            told = {k: v for k, v in asdict(terms).items() if v is not None}
            content = RecordDict({"arrays": arrays, "config": config})
            content[TERMS], content[STRATEGY] = ConfigRecord(told), how
            messages.append(Message(content, self._nodes[terms.client], MessageType.TRAIN))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the usable answers in the order of the clients; the others are recorded."""
        offer, whole = self._offer, {}
        reports = []
        for reply in replies:
            node = reply.metadata.src_node_id
            client = self._nodes.index(node) if node in self._nodes else -1
            try:
                report, counts = self._read(client, reply, offer)
                whole[client] = counts
            except WireError as error:
                reason = f"refused: {error}"
                report = Report(client, None, 0, 0, failure=reason)
            reports.append(report)
        judge = None if self._validate is None else self._judge
        self._state, outcome = self._strategy.aggregate(self._state, offer, reports, judge)
        used = [
            r
            for r in sorted(reports, key=lambda r: r.client)
            if r.params is not None
            and r.client in outcome.selected
            and r.client not in outcome.failed
        ]
        if used and self._form.whole:
            weights = [float(r.samples) for r in used]
            self._whole = mean_of_whole([whole[r.client] for r in used], weights)
        record = {**describe(outcome), **certificate(offer, outcome, self._costs)}
        self.history.append(record)
        for client, reason in outcome.failed.items():
            log(WARNING, "client %s of round %s: %s", self._names[client], outcome.round, reason)
        told: dict[str, int | float] = {
            "decay_factor": outcome.decay_factor,
            "epochs_total": int(record["epochs_total"]),
            "failed": len(outcome.failed),
            "abstained": len(outcome.abstained),
        }
        found = {k: v for k, v in record.items() if k in ("follower_gap", "leader_regret")}
        told |= {k: float(v) for k, v in found.items() if v is not None}
        return self._arrays(self._state.params), MetricRecord(dict(told))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let everybody who is there judge the model."""
        there = set(grid.get_node_ids())
        return [
            Message(RecordDict({"arrays": arrays, "config": config}), node, MessageType.EVALUATE)
            for node in self._nodes
            if node in there
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return accuracy and fairness over the clients, and over how many of them."""
        accuracy = np.full(len(self._nodes), math.nan)
        loss, samples = accuracy.copy(), np.zeros(len(self._nodes), dtype=np.int64)
        unscored = dict.fromkeys(range(len(self._nodes)), "no answer")
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in self._nodes:
                continue
            client = self._nodes.index(node)
            try:
                found = read_score(reply, self._accuracy, self._loss)
                accuracy[client], loss[client], samples[client] = found
                unscored.pop(client, None)
            except ClientError as error:
                unscored[client] = str(error)
            except WireError as error:
                unscored[client] = f"refused: {error}"
        summary = metrics.summarise(accuracy, samples)
        finite = {name: float(value) for name, value in summary.items() if math.isfinite(value)}
        if self.history:
            self.history[-1] |= finite
            if unscored:
                self.history[-1]["unscored"] = {str(k): why for k, why in unscored.items()}
        for client, reason in unscored.items():
            log(WARNING, "client %s gave no score: %s", self._names[client], reason)
        scored = loss[~np.isnan(accuracy)]
        if scored.size and np.isfinite(scored).all():
            finite["loss"] = float(scored.mean())
        shown = {name: value for name, value in finite.items() if name in SHOWN}
        return MetricRecord({**shown, "clients": len(self._nodes)})

    def summary(self) -> None:
        """Say what goes on."""
        plan = self._config.plan
        log(
            INFO,
            "\t├──> %s, %s clients a round, seed %s",
            self.name,
            plan.per_round,
            self._config.seed,
        )
        log(INFO, "\t└──> options: %s", json.dumps(self._config.as_tables()["strategy"]))

    def _prepare(self, grid: Grid, arrays: ArrayRecord, rounds: int) -> None:
        end = time.monotonic() + self._timeout
        needed = self._expected or self._config.per_round
        while len(nodes := sorted(grid.get_node_ids())) < needed:
            if time.monotonic() > end:
                raise FlammaError(f"only {len(nodes)} of {needed} clients came.")
            time.sleep(0.5)
        self._nodes, self._names, samples, self._costs = introductions(grid, nodes, self._timeout)
        self._tables |= {"rounds": rounds, "data": {"clients": len(nodes)}}
        self._config = make_config(self._tables)
        self._strategy = self._config.build_strategy()
        if self._strategy.needs_validation and self._validate is None:
            raise FlammaError(f"{self.name} needs validate=..., which scores arrays.")
        self._form = NamedArrays.of(arrays, self._trainable)
        params, self._whole = self._form.flatten(arrays)
        population = Population(samples, self._costs, self._form.trainable_size)
        self._state = self._strategy.init(params, population)
        self._offer = Offer(0, ())
        self.history.clear()

    def _arrays(self, params: Params) -> ArrayRecord:
        return self._form.restore(params, self._whole)

    def _judge(self, params: Params) -> tuple[float, float]:
        assert self._validate is not None
        return self._validate(self._arrays(params))

    def _read(
        self, client: int, reply: Message, offer: Offer
    ) -> tuple[Report, dict[str, NDArray[Any]]]:
        if reply.has_error():
            return Report(client, None, 0, 0, failure=why_failed(reply)), {}
        terms = next((terms for terms in offer.terms if terms.client == client), None)
        if terms is None:
            raise WireError("nobody asked it")
        return read_update(client, reply, self._form, self._strategy.epoch_range(terms))


class FlammaStrategy(FlowerStrategy):
    """The paper's strategy: ``FlowerStrategy("flamma", ...)``."""

    def __init__(self, per_round: int, **options: Any) -> None:
        super().__init__("flamma", per_round, **options)
