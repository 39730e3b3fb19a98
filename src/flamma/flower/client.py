"""The client's side of a Flower app of your own: a few lines in its ``@app.train()``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from flamma.engines.flower.messages import MessageError
from flamma.engines.flower.payload import TERMS_RECORD, read_configuration, read_terms
from flamma.types import LocalWork, Profile

STRATEGY_RECORD, INTRODUCTION_RECORD = "flamma.strategy", "flamma"
"""The records of the strategy's configuration, and of a client's introduction."""

EPOCHS_METRIC, LOSS_METRIC, SAMPLES_METRIC = "flamma.epochs", "flamma.loss", "num-examples"
"""The metrics of an answer: epochs done, loss of the received model, training samples."""

_Batch = TypeVar("_Batch")


def respond(message: Message, cost: float = 0.1, samples: int = 1) -> LocalWork:
    """Return what is best for this client to do, given the server's terms and its own cost.

    Parameters
    ----------
    message : Message
        The message that ``@app.train()`` was called with.
    cost : float
        What an epoch costs this client, in units of utility per squared epoch. The server is
        not told.
    samples : int
        How many training samples the client has.

    Returns
    -------
    LocalWork
        ``epochs`` and ``learning_rate``. Its ``terms`` have ``batches`` in a warm-up, and the
        ``objective``: its ``proximal`` weight and, with some strategies, its ``bound`` or ``tilt``.
        If it ``abstains``, training does not pay for this client.

    Raises
    ------
    MessageError
        If the server does not use one of our strategies.
    """
    terms = message.content.get(TERMS_RECORD)
    strategy = message.content.get(STRATEGY_RECORD)
    if not isinstance(terms, ConfigRecord) or not isinstance(strategy, ConfigRecord):
        raise MessageError(
            "the message has no terms: use FlammaStrategy or FlowerStrategy in the ServerApp."
        )
    found = read_terms(terms)
    config = read_configuration(str(strategy.get("config", "")))
    return config.strategy.respond(found, Profile(found.client, cost, samples))


def batches(task: LocalWork, loader: Iterable[_Batch]) -> Iterator[_Batch]:
    """Yield the batches to train on: the loader's once per epoch, or a few in a warm-up.

    Examples
    --------
    >>> from flamma.types import Terms
    >>> task = LocalWork(Terms(client=0, round=1), epochs=2, learning_rate=0.1)
    >>> list(batches(task, "ab"))
    ['a', 'b', 'a', 'b']
    """
    if task.terms.batches is None:
        for _ in range(task.epochs):
            yield from loader
        return
    left = task.terms.batches
    while left > 0:
        before = left
        for batch in loader:
            yield batch
            left -= 1
            if left == 0:
                return
        if left == before:  # an empty loader
            return


def reply(
    message: Message,
    task: LocalWork,
    arrays: ArrayRecord,
    samples: int,
    loss: float = math.nan,
    **metrics: float,
) -> Message:
    """Return the answer to a training message: the weights, and what was done for them.

    ``loss`` is that of the *received* model on the client's training data; q-FFL needs it. A
    task that abstains or only evaluates is answered without weights.
    """
    told = {SAMPLES_METRIC: samples, EPOCHS_METRIC: task.epochs, LOSS_METRIC: loss, **metrics}
    content = RecordDict({"metrics": MetricRecord(dict(told))})
    if task.terms.train and not task.abstains:
        content["arrays"] = arrays
    return Message(content, reply_to=message)


def introduce(
    message: Message, context: Context, samples: int, cost: float | None = None
) -> Message:
    """Return the answer to ``@app.query()``: who this client is, and how much data it has.

    Its name is ``name`` of the node's configuration or else its ``partition-id``, so that runs do
    not depend on Flower's random node ids. The server is told a cost only if it is given here.
    """
    node = context.node_config
    name = str(node.get("name", node.get("partition-id", "")))
    record = ConfigRecord({"name": name, "samples": samples})
    if cost is not None:
        record["cost"] = cost
    return Message(RecordDict({INTRODUCTION_RECORD: record}), reply_to=message)
