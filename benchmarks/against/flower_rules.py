"""Flower's servers on the problem, with models of plain SGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.supercore.task_identity import TaskIdentity
from problem import STEP, Problem, Weights, first_weights, loss_of, trained

for _name in ("_task_id", "_run_id", "_node_id"):
    setattr(TaskIdentity, _name, 1)  # messages are made outside of a running app


def played_by(make: Callable[[], Any]) -> Callable[[Problem], list[Weights]]:
    """Return what plays three rounds of a strategy of Flower's."""

    def play(problem: Problem) -> list[Weights]:
        strategy, weights, after = make(), first_weights(), []
        for number, cohort in enumerate(problem.cohorts, start=1):
            strategy.current_arrays = ArrayRecord({"w": Array(weights)})
            replies = [reply(problem, weights, number, client) for client in cohort]
            found, _ = strategy.aggregate_train(number, replies)
            weights = found["w"].numpy().astype("float32")
            after.append(weights)
        return after

    return play


def reply(problem: Problem, weights: Weights, number: int, client: int) -> Message:
    """Return a client's answer: its model, its samples, and the loss of the received model."""
    model, _ = trained(problem, weights, number, client)
    told = {"num-examples": problem.sizes[client], "train_loss": loss_of(problem, weights, client)}
    content = {"arrays": ArrayRecord({"w": Array(model)}), "metrics": MetricRecord(told)}
    return Message(RecordDict(content), 1, "train")


fedavg = played_by(flower.FedAvg)
qffl = played_by(lambda: flower.QFedAvg(client_learning_rate=STEP, q=0.5))
median = played_by(flower.FedMedian)
trimmed_mean = played_by(lambda: flower.FedTrimmedAvg(beta=0.2))
krum = played_by(lambda: flower.Krum(num_malicious_nodes=1))
