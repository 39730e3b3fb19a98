"""FedLab's servers and trainers on the problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fedlab.contrib.algorithm.ditto import DittoSerialClientTrainer, DittoServerHandler
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.algorithm.feddyn import FedDynSerialClientTrainer, FedDynServerHandler
from fedlab.contrib.algorithm.fednova import FedNovaServerHandler
from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer, FedProxServerHandler
from fedlab.contrib.algorithm.powerofchoice import Powerofchoice
from fedlab.contrib.algorithm.qfedavg import qFedAvgClientTrainer, qFedAvgServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from problem import (
    BATCH,
    EPOCHS,
    ROUNDS,
    STEP,
    Loader,
    Problem,
    Weights,
    first_weights,
    load,
    loss_of,
    network,
    read,
    trained,
)


class Data:
    """FedLab's way to hand out loaders, of the round that goes on."""

    def __init__(self, problem: Problem) -> None:
        self.loaders = [Loader(problem, client) for client in range(problem.clients)]
        self.number = 1

    def get_dataloader(self, client: int, batch_size: int) -> Loader:
        return self.loaders[client].enter(self.number)


def server_of(kind: type, problem: Problem, *options: Any) -> Any:
    """Return a server that starts with the first weights."""
    model = network()
    load(model, first_weights())
    server = kind(model, ROUNDS, len(problem.cohorts[0]) / problem.clients)
    server.num_clients = problem.clients
    if options:
        server.setup_optim(*options)
    return server


def with_trainer(
    server_kind: type,
    trainer_kind: type,
    server_options: tuple[float, ...] = (),
    trainer_options: tuple[float, ...] = (),
) -> Callable[[Problem], list[Weights]]:
    """Return what plays three rounds of a server and its serial trainer."""

    def play(problem: Problem) -> list[Weights]:
        server = server_of(server_kind, problem, *server_options)
        trainer = trainer_kind(network(), problem.clients)
        data = Data(problem)
        trainer.setup_dataset(data)
        trainer.setup_optim(EPOCHS, BATCH, STEP, *trainer_options)
        after = []
        for data.number, cohort in enumerate(problem.cohorts, start=1):
            trainer.local_process(server.downlink_package, list(cohort))
            for package in trainer.uplink_package:
                server.load(package)
            after.append(read(server.model))
        return after

    return play


fedavg = with_trainer(FedAvgServerHandler, FedAvgSerialClientTrainer)
fedprox = with_trainer(FedProxServerHandler, FedProxSerialClientTrainer, (), (0.5,))
scaffold = with_trainer(ScaffoldServerHandler, ScaffoldSerialClientTrainer, (0.7,))
ditto = with_trainer(DittoServerHandler, DittoSerialClientTrainer)
feddyn = with_trainer(FedDynServerHandler, FedDynSerialClientTrainer, (0.1,), (0.1,))


class WholeChange(FedDynServerHandler):
    """FedLab's server with the sum of all clients' changes in h, as the paper has it."""

    def global_update(self, buffer: Any) -> None:
        extra = (len(buffer) - 1) * self.model_parameters
        self.h = self.h + self.alpha / self.num_clients * extra
        super().global_update(buffer)


class Differentiated(FedDynSerialClientTrainer):
    """FedLab's trainer with a regulariser that has a gradient."""

    @property
    def model_parameters(self) -> torch.Tensor:
        return torch.cat([parameter.reshape(-1) for parameter in self._model.parameters()])

    def train(self, client: int, received: torch.Tensor, loader: Loader) -> list[torch.Tensor]:
        model = super().train(client, received, loader)[0]
        self.L[client] = self.L[client].detach()
        return [model.detach()]


feddyn_mended = with_trainer(WholeChange, Differentiated, (0.1,), (0.1,))


def qffl(problem: Problem) -> list[Weights]:
    """Play q-FedAvg; its trainer needs the step size as an attribute, which it does not set."""
    server, after, data = server_of(qFedAvgServerHandler, problem), [], Data(problem)
    for data.number, cohort in enumerate(problem.cohorts, start=1):
        for client in cohort:
            trainer = qFedAvgClientTrainer(network())
            trainer.setup_dataset(data)
            trainer.setup_optim(EPOCHS, BATCH, STEP, 0.5)
            trainer.lr = STEP
            trainer.local_process(server.downlink_package, client)
            server.load(trainer.uplink_package)
        after.append(read(server.model))
    return after


def fednova(problem: Problem) -> list[Weights]:
    """Play FedNova's server with models of plain SGD."""
    server, after = server_of(FedNovaServerHandler, problem, "weighted_scale"), []
    for number, cohort in enumerate(problem.cohorts, start=1):
        received = read(server.model)
        for client in cohort:
            model, _ = trained(problem, received, number, client)
            steps = sum(map(len, problem.epochs_of(number, client)))
            server.load([torch.from_numpy(model), torch.tensor([float(steps)])])
        after.append(read(server.model))
    return after


def power_of_choice(problem: Problem) -> list[Weights]:
    """Play Power-of-Choice with everybody a candidate, and three selected."""
    server, after = server_of(Powerofchoice, problem), []
    server.sample_ratio = 0.5
    for number, cohort in enumerate(problem.cohorts, start=1):
        received = read(server.model)
        losses = [loss_of(problem, received, client) for client in cohort]
        for client in server.sample_clients(list(cohort), losses):
            model, _ = trained(problem, received, number, client)
            server.load([torch.from_numpy(model)])
        after.append(read(server.model))
    return after
