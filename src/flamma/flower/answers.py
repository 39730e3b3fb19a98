"""Reading the answers of clients in a Flower app: updates and scores, checked before use."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from flamma.engines.flower.codec import LARGEST_LOSS
from flamma.engines.flower.messages import MessageError
from flamma.engines.flower.payload import read_reply, real_number
from flamma.flower.client import EPOCHS_METRIC, LOSS_METRIC, SAMPLES_METRIC
from flamma.flower.handshake import ConnectedClients
from flamma.flower.named_arrays import NamedArrays
from flamma.records import RoundRecord
from flamma.types import MOST_SAMPLES, Report, Scores

Record = TypeVar("Record", ArrayRecord, MetricRecord)

NO_EPOCHS = (
    f"{EPOCHS_METRIC} is missing: let @app.train() of the clients call respond and reply of "
    f"flamma.flower"
)
"""What is wrong with the answers if only the server of an app was changed."""


def read_update(
    client: int, content: RecordDict, form: NamedArrays, epoch_range: tuple[int, int]
) -> tuple[Report, dict[str, NDArray[Any]]]:
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
    epochs = _epochs(told, *epoch_range)
    if not any(isinstance(part, ArrayRecord) for part in content.values()):
        if epochs:
            raise MessageError(f"it says that it did {epochs} epochs, but sent no arrays")
        return Report(client, None, samples, 0, loss), {}
    params, whole = form.flatten(_only(content, ArrayRecord))
    return Report(client, params, samples, epochs, loss), whole


def read_metrics(content: RecordDict, accuracy: str, loss: str) -> tuple[float, float, int]:
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


def read_scores(
    replies: Iterable[Message], clients: ConnectedClients, accuracy: str, loss: str
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
            found = read_reply(reply, lambda content: read_metrics(content, accuracy, loss))
            share[client], losses[client], samples[client] = found
            missing.pop(client, None)
        except MessageError as error:
            missing[client] = error.reason
    return Scores(share, losses, samples, math.nan, math.nan, missing)


def round_metrics(record: RoundRecord) -> MetricRecord:
    """Return what Flower is told of a round."""
    told: dict[str, int | float] = {
        "decay_factor": record.decay_factor,
        "epochs_total": record.epochs_total,
        "failed": len(record.failed),
        "abstained": len(record.abstained),
    }
    if record.certificate is not None:
        told["follower_gap"] = record.certificate.follower_gap
        told["leader_regret"] = record.certificate.leader_regret
    return MetricRecord(dict(told))


def _epochs(told: MetricRecord, fewest: int, most: int) -> int:
    """Return the epochs of a client; one that does not know FLamma does a fixed number as told."""
    if EPOCHS_METRIC in told:
        return _whole_number(told, EPOCHS_METRIC)
    if fewest != most:
        raise MessageError(NO_EPOCHS)
    return fewest


def _only(content: RecordDict, kind: type[Record]) -> Record:
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
