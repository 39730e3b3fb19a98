"""FLGo's servers and clients on the problem, with the transport between them replaced."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flgo.algorithm.fedbase import BasicServer
from flgo.utils.fmodule import FModule
from problem import (
    EVERYBODY,
    STEP,
    Loader,
    Problem,
    Weights,
    first_weights,
    load,
    loss_of,
    network,
    read,
)


class Net(FModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Calculator:
    """The loss and the optimizer that FLGo asks a task for."""

    @staticmethod
    def get_optimizer(model: Net, lr: float, weight_decay: float, momentum: float) -> Any:
        return torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay)

    @staticmethod
    def compute_loss(model: Net, data: Any) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.cross_entropy(model(data[0]), data[1])}


def client_of(kind: type, problem: Problem, client: int, options: dict[str, float]) -> Any:
    """Return a client of FLGo's without what its constructor wants of a task."""
    made = object.__new__(kind)
    made.__dict__ |= {"id": client, "device": torch.device("cpu"), "_cache_vars": []}
    made.__dict__ |= {"learning_rate": STEP, "momentum": 0.0, "weight_decay": 0.0, "clip_grad": 0.0}
    made.__dict__ |= {"calculator": Calculator(), "datavol": problem.sizes[client]}
    made.train_data = range(problem.sizes[client])
    made.test = lambda model, _flag: {"loss": loss_of(problem, read(model), client)}
    made.initialize()
    made.__dict__ |= options
    return made


def server_of(kind: type, problem: Problem, clients: list[Any], options: dict[str, float]) -> Any:
    """Return a server of FLGo's, likewise."""
    made = object.__new__(type("Server", (kind,), {"available_clients": list(EVERYBODY)}))
    model = Net()
    load(model, first_weights())
    made.__dict__ |= {"model": model, "device": torch.device("cpu"), "clients": clients}
    made.__dict__ |= {"num_clients": problem.clients, "learning_rate": STEP, "proportion": 1.0}
    made.__dict__ |= {"option": {"learning_rate": STEP}, "aggregation_option": "other"}
    made.init_algo_para = lambda chosen: made.__dict__.update(chosen)
    made.gv = SimpleNamespace(logger=SimpleNamespace(info=lambda text: None))
    made.initialize()
    made.__dict__ |= options
    return made


def played_by(
    name: str, weighted: bool = True, own_models: bool = False, **options: float
) -> Callable[[Problem], list[Weights]]:
    """Return what plays three rounds of one of FLGo's algorithms."""

    def play(problem: Problem) -> list[Weights]:
        module = importlib.import_module(f"flgo.algorithm.{name}")
        clients = [client_of(module.Client, problem, one, options) for one in EVERYBODY]
        server = server_of(module.Server, problem, clients, options)
        server.aggregation_option = "other" if weighted else "uniform"
        after = []
        for number, cohort in enumerate(problem.cohorts, start=1):
            one_round(server, problem, number, cohort)
            own = [read(client.model) for client in clients] if own_models else []
            after.append(np.concatenate([read(server.model), *own]))
        return after

    return play


def one_round(server: Any, problem: Problem, number: int, cohort: tuple[int, ...]) -> None:
    """Let the clients of a cohort, or those that the server selects of it, answer the server."""
    server.current_round, selects = number, type(server).__base__
    if selects is BasicServer or "sample" not in vars(selects):
        server.sample = lambda: list(cohort)

    def communicate(selected: list[int]) -> dict[str, list[Any]]:
        server.received_clients = selected
        answers = []
        for client in selected:
            receiver = server.clients[client]
            batches = [
                one for epoch in Loader(problem, client).enter(number).epochs for one in epoch
            ]
            receiver.num_steps, receiver.get_batch_data = len(batches), iter(batches).__next__
            package = copy.deepcopy(server.pack(client))
            answers.append(receiver.reply(package))
        return {key: [answer[key] for answer in answers] for key in answers[0]}

    server.communicate = communicate
    server.iterate()


fedavg = played_by("fedavg")
fedprox = played_by("fedprox", mu=0.5)
qffl = played_by("qfedavg", q=0.5)
fednova = played_by("fednova")
scaffold = played_by("scaffold", eta=0.7)
feddyn = played_by("feddyn", alpha=0.1)
ditto = played_by("ditto", own_models=True, mu=1.0)
afl = played_by("afl", learning_rate_lambda=0.1)
fedfv = played_by("fedfv", alpha=0.1, tau=1)
fedmgda = played_by("fedmgda", eta=0.5, epsilon=0.1)
power_of_choice = played_by("powerofchoice", False, d=6, clients_per_round=3)
