"""The handshake with the clients of a Flower app: who they are, before the first round."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from logging import ERROR, INFO, WARNING
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from flamma.clients.trust import Trust, TrustLimits
from flamma.engines.flower.codec import LARGEST_LOSS
from flamma.engines.flower.inflation import SMALL_REPLY_BYTES, guarded
from flamma.engines.flower.messages import MessageError
from flamma.engines.flower.payload import (
    TERMS_RECORD,
    one_line_of,
    pack_terms,
    read_reply,
    real_number,
    take,
)
from flamma.errors import FlammaError
from flamma.experiments.config import make_config
from flamma.experiments.loop import check_trained, why_empty
from flamma.federation import certified
from flamma.flower.arrays import ModelArrays, NamedArrays, Whole
from flamma.flower.client import (
    EPOCHS_METRIC,
    INTRODUCTION_RECORD,
    LOSS_METRIC,
    SAMPLES_METRIC,
    STRATEGY_RECORD,
)
from flamma.flower.refusals import check_own_app
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.metrics import evaluate, shown_in
from flamma.records import RoundRecord
from flamma.seeding import stream
from flamma.strategies.base import Offer, ServerSide, State
from flamma.types import MOST_SAMPLES, Broadcast, Floats, Ints, Population, Scores, Update

_NODE_POLL_SECONDS = 0.5
"""Seconds between two checks for nodes before the first round."""


@dataclass(frozen=True, eq=False)
class _ConnectedClients:
    """The clients in the order of their names: node ids, names, training samples and costs.

    A cost is NaN where a client does not tell it; ``costs`` is None if none of them does.
    ``introduced`` is whether they said who they are; if not, the samples are not known.
    """

    nodes: tuple[int, ...]
    names: tuple[str, ...]
    samples: Ints
    costs: Floats | None
    introduced: bool = True

    def client(self, node: int) -> int:
        """Return a node's client, -1 if it is not one of them."""
        return self.nodes.index(node) if node in self.nodes else -1


def _wait_for_nodes(grid: Grid, expected: int, timeout: float) -> list[int]:
    """Return the connected nodes in order once there are as many as expected.

    Raises
    ------
    FlammaError
        If there are fewer when the time is up.
    """
    end = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < expected:
        if time.monotonic() > end:
            raise FlammaError(f"only {len(nodes)} of {expected} clients came.")
        time.sleep(_NODE_POLL_SECONDS)
    return nodes


def _shake_hands(grid: Grid, nodes: list[int], timeout: float) -> _ConnectedClients:
    """Ask all nodes who they are.

    If some do not answer, or two give the same name, the clients are taken in the order of
    Flower's node ids, and a warning says that the next run may have another order.
    """
    messages = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
    told: dict[int, tuple[str, int, float]] = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        try:
            told[reply.metadata.src_node_id] = read_reply(reply, _read_introduction)
        except MessageError as error:
            log(WARNING, "node %s did not say who it is: %s", reply.metadata.src_node_id, error)
    names = {name for name, _, _ in told.values()}
    if len(names) < len(nodes):
        log(WARNING, "clients did not say who they are (@app.query()): the order may change")
        equal = np.ones(len(nodes), dtype=np.int64)
        return _ConnectedClients(tuple(nodes), tuple(map(str, nodes)), equal, None, False)
    order = sorted(nodes, key=lambda node: (len(told[node][0]), told[node][0]))
    costs = np.array([told[node][2] for node in order])
    return _ConnectedClients(
        tuple(order),
        tuple(told[node][0] for node in order),
        np.array([told[node][1] for node in order], dtype=np.int64),
        costs if np.isfinite(costs).any() else None,
    )


def _believed(clients: _ConnectedClients, limits: TrustLimits) -> tuple[_ConnectedClients, Trust]:
    """Return the clients with the samples that they count for, and what looks at their answers."""
    if not clients.introduced:
        return clients, Trust(limits)
    most = limits.most_samples(clients.names, clients.samples)
    for place in np.flatnonzero(clients.samples > most):
        who = (clients.names[place], clients.samples[place], most[place])
        log(WARNING, "client %s says that it has %s samples, and counts for %s", *who)
    return replace(clients, samples=np.minimum(clients.samples, most)), Trust(limits, most)


def _read_introduction(content: RecordDict) -> tuple[str, int, float]:
    """Return the name, samples and cost that a client gives; the cost is NaN if it is not usable.

    Raises
    ------
    MessageError
        If it is not an introduction with a name and a number of samples.
    """
    record = content.get(INTRODUCTION_RECORD)
    if not isinstance(record, ConfigRecord):
        raise MessageError("there is no introduction in it")
    name, samples = take(record, "name", str), take(record, "samples", int)
    if not name or name != one_line_of(name):
        raise MessageError(f"{one_line_of(name)!r} is not a name")
    if not 0 < samples <= MOST_SAMPLES:
        raise MessageError(f"it says that it has {samples} samples")
    cost = real_number(record.get("cost"))
    return (
        name,
        samples,
        cost if isinstance(cost, float) and SMALLEST_COST <= cost <= LARGEST_COST else math.nan,
    )


# Reading the answers of clients in a Flower app: updates and scores, checked before use.

_Record = TypeVar("_Record", ArrayRecord, MetricRecord)

_NO_EPOCHS = (
    f"{EPOCHS_METRIC} is missing: let @app.train() of the clients call respond and reply of "
    f"flamma.flower"
)
"""What is wrong with the answers if only the server of an app was changed."""


def _read_update(
    client: int, content: RecordDict, form: NamedArrays, epoch_range: tuple[int, int]
) -> tuple[Update, Whole]:
    """Return a client's answer to its terms, and the arrays of it that are not averaged as floats.

    Raises
    ------
    MessageError
        If it is not a valid answer.
    """
    told = _only(content, MetricRecord)
    samples = _whole_number(told, SAMPLES_METRIC)
    said = real_number(told.get(LOSS_METRIC))
    loss = said if isinstance(said, float) else math.nan
    if loss > LARGEST_LOSS:
        raise MessageError(f"it says that the loss is {loss:g}")
    epochs, most = epoch_range
    if EPOCHS_METRIC in told:
        epochs = _whole_number(told, EPOCHS_METRIC)
    elif epochs != most:  # a client that does not know FLamma does a fixed number as told
        raise MessageError(_NO_EPOCHS)
    if not any(isinstance(part, ArrayRecord) for part in content.values()):
        if epochs:
            raise MessageError(f"it says that it did {epochs} epochs, but sent no arrays")
        return Update(client, None, samples, 0, loss), {}
    params, whole = form.flatten(_only(content, ArrayRecord))
    return Update(client, params, samples, epochs, loss), whole


def _read_metrics(content: RecordDict, accuracy: str, loss: str) -> tuple[float, float, int]:
    """Return accuracy in percent, loss and samples of an answer that has them by these names.

    Raises
    ------
    MessageError
        If the accuracy is missing or not in [0, 1], or the samples are missing.
    """
    told = _only(content, MetricRecord)
    share, lost = real_number(told.get(accuracy)), real_number(told.get(loss, math.nan))
    if not isinstance(share, float) or not isinstance(lost, float):
        raise MessageError(f"there is no {accuracy} in it")
    if not 0 <= share <= 1:
        raise MessageError(f"it says that the accuracy is {share:g}, which is not in [0, 1]")
    if loss in told and not math.isfinite(lost):
        raise MessageError(f"it says that the loss is {lost:g}")
    return 100.0 * share, lost, _whole_number(told, SAMPLES_METRIC)


def _read_scores(
    replies: Iterable[Message], clients: _ConnectedClients, accuracy: str, loss: str
) -> Scores:
    """Return the scores of all clients; of those without a usable answer, the reason."""
    count = len(clients.nodes)
    share = np.full(count, math.nan)
    losses, samples = share.copy(), np.zeros(count, dtype=np.int64)
    missing = dict.fromkeys(range(count), "no answer")
    for reply in replies:
        client = clients.client(reply.metadata.src_node_id)
        if client < 0:
            continue
        try:
            found = read_reply(reply, lambda content: _read_metrics(content, accuracy, loss))
            share[client], losses[client], samples[client] = found
            missing.pop(client, None)
        except MessageError as error:
            missing[client] = error.reason
    return Scores(share, losses, samples, math.nan, math.nan, missing)


def _round_metrics(record: RoundRecord) -> MetricRecord:
    """Return what Flower is told of a round."""
    told: dict[str, int | float] = {
        "decay_factor": record.offer.decay_factor,
        "epochs_total": record.outcome.epochs_total,
        "failed": len(record.outcome.failed),
        "abstained": len(record.outcome.abstained),
    }
    if record.game is not None and record.game.certificate is not None:
        told["follower_gap"] = record.game.certificate.follower_gap
        told["leader_regret"] = record.game.certificate.leader_regret
    return MetricRecord(dict(told))


def _only(content: RecordDict, kind: type[_Record]) -> _Record:
    found = [record for record in content.values() if isinstance(record, kind)]
    if len(found) != 1:
        raise MessageError(
            f"it has {len(found)} records of the kind {kind.__name__} instead of one"
        )
    return found[0]


def _whole_number(record: MetricRecord, name: str) -> int:
    value = record.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or abs(value) > MOST_SAMPLES:
        raise MessageError(f"{name} is {'missing' if value is None else 'not a whole number'}")
    return value


# The server's side of a Flower app of your own: our strategies as Flower's.

_ScoreArrays = Callable[[ArrayRecord], tuple[float, float]]
"""Scores arrays on data of the server's own: (loss, accuracy in percent)."""


class FlowerStrategy(Strategy):
    """Any registered strategy in ``strategy.start(grid=..., initial_arrays=..., num_rounds=...)``.

    Parameters
    ----------
    name : str
        One of ``flamma list``.
    per_round : int
        How many clients are selected in a round.
    seed : int
        The seed of the selection.
    epochs, learning_rate, batch_size
        What clients go by where the strategy does not say otherwise.
    clients : int, optional
        How many clients to wait for before the first round; by default ``per_round``.
    trainable : collection of str, optional
        The names of the arrays that are trained; by default all floating-point arrays but running
        means and variances. The others are averaged, but distances do not count them.
    accuracy, loss : str
        What clients call the accuracy (from 0 to 1) and the loss in answers to
        ``@app.evaluate()``.
    validate : callable, optional
        Scores arrays on data of the server's own, (loss, accuracy in percent), for strategies
        that need it.
    timeout : float
        Seconds to wait for clients to connect, and for their answers before the first round.
    samples : mapping of str to int, optional
        How many samples clients have, by the names that they introduce themselves with: they count
        for no more, whatever they say.
    samples_ratio : float
        All other clients count for at most this many times the median of all clients' samples.
    update_ratio, longest_update : float
        An update longer than this many times the median length of updates is refused, and one
        longer than ``longest_update`` in any case; 0 for no limit.
    **options
        The strategy's own, such as ``decay_start``. The server learns costs that clients do not
        tell from their responses, whatever ``server_costs`` says.

    Attributes
    ----------
    history : list of RoundRecord
        The record of each round, as in ``rounds.jsonl``: who was selected, who failed and why,
        the decay factor, the epochs, the certificate, and the evaluation.

    Raises
    ------
    FlammaError
        If an option cannot work.
    DivergedError, EmptyRunError
        By ``start``, if the run diverged, or no update of any client was used in any round.
    """

    _state: State
    _offer: Offer
    _model: ModelArrays
    _trust: Trust
    _known: _ConnectedClients | None = None

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
        validate: _ScoreArrays | None = None,
        timeout: float = 3600.0,
        samples: Mapping[str, int] | None = None,
        samples_ratio: float = 10.0,
        update_ratio: float = 1000.0,
        longest_update: float = 0.0,
        **options: Any,
    ) -> None:
        self.name = name
        self._limits = TrustLimits(samples_ratio, update_ratio, longest_update, samples or {})
        self.history: list[RoundRecord] = []
        self._config = make_config(
            {
                "per_round": per_round,
                "seed": seed,
                "data": {"clients": max(per_round, clients or 1)},
                "training": {
                    "epochs": epochs,
                    "learning_rate": learning_rate,
                    "batch_size": batch_size,
                },
                "strategy": {"name": name, **options},
                "engine": "flower",
            }
        )
        check_own_app(self._config.strategy)
        self._expected = clients or per_round
        self._trainable = trainable
        self._accuracy, self._loss = accuracy, loss
        self._validate = validate
        self._timeout = timeout

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
        largest = 2 * sum(len(array.data) for array in initial_arrays.values())
        with guarded(largest + SMALL_REPLY_BYTES):
            self._prepare(grid, initial_arrays, num_rounds)
            if self._state.round < 0:
                config = train_config or ConfigRecord()
                messages = self.configure_train(0, initial_arrays, config, grid)
                replies = list(grid.send_and_receive(messages, timeout=timeout))
                warm, _ = self.aggregate_train(0, replies)
                initial_arrays = initial_arrays if warm is None else warm
                self.history.clear()
            result = super().start(
                grid,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
            )
        finite = bool(np.isfinite(self._state.served).all())
        rate = self._config.training.learning_rate
        check_trained(self.history, learning_rate=rate, finite=finite)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select clients and send each its terms."""
        connected, nodes = set(grid.get_node_ids()), self._clients.nodes
        present = np.array([k for k, node in enumerate(nodes) if node in connected], dtype=int)
        rng = stream(self._config.seed, "select", self._state.round + 1)
        self._offer = self._config.strategy.offer(self._state, present, rng)
        how = ConfigRecord({"config": self._config.as_toml()})
        state = self._state
        if state.served is not state.params:  # clients train another model than is served
            arrays = self._model.arrays(state.params)
        own = self._model.sender(self._broadcast, arrays)
        messages = []
        for terms in self._offer.terms:
            content = RecordDict({"arrays": own(terms.client), "config": config})
            content[TERMS_RECORD], content[STRATEGY_RECORD] = pack_terms(terms), how
            messages.append(Message(content, nodes[terms.client], MessageType.TRAIN))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the usable answers in the order of the clients, and record the round."""
        reports: list[Update] = []
        whole: dict[int, Whole] = {}
        for reply in replies:
            client = self._clients.client(reply.metadata.src_node_id)
            try:
                report, whole[client] = self._read(client, reply)
            except MessageError as error:
                report = Update.missing(client, error.reason)
            reports.append(report)
        reports = self._trust.screened(reports, self._offer.terms, self._broadcast.model)
        score = self._validate
        server = ServerSide(
            None if score is None else lambda params: score(self._model.arrays(params))
        )
        self._state, record = self._config.strategy.aggregate(
            self._state, self._offer, reports, server
        )
        record = certified(record, self._offer, self._clients.costs)
        self.history.append(record)
        self._model = self._model.after(record, reports, whole)
        for client, reason in record.outcome.failed.items():
            name = self._clients.names[client]
            log(WARNING, "client %s of round %s: %s", name, record.round, reason)
        if not record.used:
            log(ERROR, "round %s is empty: %s", record.round, why_empty([record]))
        return self._model.arrays(self._state.served), _round_metrics(record)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every connected client to evaluate the model, its own where each has one."""
        connected, own = set(grid.get_node_ids()), self._model.sender(self._broadcast, arrays)
        return [
            Message(
                RecordDict({"arrays": own(client), "config": config}), node, MessageType.EVALUATE
            )
            for client, node in enumerate(self._clients.nodes)
            if node in connected
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return accuracy and fairness over the clients, and how many of them were scored."""
        scores = _read_scores(replies, self._clients, self._accuracy, self._loss)
        for client, reason in scores.missing.items():
            log(WARNING, "client %s gave no score: %s", self._clients.names[client], reason)
        evaluation = evaluate(replace(scores, personal=self._broadcast.per_client is not None))
        if self.history:
            self.history[-1] = replace(self.history[-1], evaluation=evaluation)
        shown = {name: evaluation[name] for name in [*shown_in("show"), "clients_scored"]}
        told = {name: value for name, value in shown.items() if value is not None}
        return MetricRecord({**told, "clients": len(self._clients.nodes)})

    def summary(self) -> None:
        """Log the strategy and its options."""
        per_round, seed = self._config.per_round, self._config.seed
        log(INFO, "\t├──> %s, %s clients a round, seed %s", self.name, per_round, seed)
        log(INFO, "\t└──> options: %s", json.dumps(self._config.as_tables()["strategy"]))

    @property
    def _clients(self) -> _ConnectedClients:
        if self._known is None:
            raise FlammaError("begin with strategy.start(...), which learns who the clients are.")
        return self._known

    def _prepare(self, grid: Grid, arrays: ArrayRecord, rounds: int) -> None:
        nodes = _wait_for_nodes(grid, self._expected, self._timeout)
        self._known = _shake_hands(grid, nodes, self._timeout)
        self._config = self._config.with_settings({"rounds": rounds, "data.clients": len(nodes)})
        if self._config.strategy.wants_validation and self._validate is None:
            raise FlammaError(f"{self.name} needs validate=..., which scores arrays.")
        form = NamedArrays.of(arrays, self._trainable)
        params, whole = form.flatten(arrays)
        self._model = ModelArrays(form, whole)
        self._known, self._trust = _believed(self._known, self._limits)
        population = Population(
            self._known.samples,
            self._known.costs,
            form.trainable_size,
            trainable_sizes=form.trainable_sizes,
        )
        self._state = self._config.strategy.init(params, population)
        self._offer = Offer(0, ())
        self.history.clear()

    @property
    def _broadcast(self) -> Broadcast:
        return self._config.strategy.broadcast(self._state)

    def _read(self, client: int, reply: Message) -> tuple[Update, Whole]:
        terms = next((terms for terms in self._offer.terms if terms.client == client), None)
        if terms is None:
            raise MessageError("it was not asked")
        epoch_range = self._config.strategy.epoch_range(terms)
        return read_reply(
            reply, lambda content: _read_update(client, content, self._model.form, epoch_range)
        )


class FlammaStrategy(FlowerStrategy):
    """The paper's strategy: ``FlowerStrategy("flamma", ...)``."""

    def __init__(self, per_round: int, **options: Any) -> None:
        super().__init__("flamma", per_round, **options)
