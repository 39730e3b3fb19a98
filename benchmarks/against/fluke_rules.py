"""fluke's algorithms on the problem, in its own loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.algorithms.ditto import DittoClient
from fluke.algorithms.feddyn import FedDyn, FedDynClient, FedDynServer
from fluke.algorithms.fednova import FedNovaClient, FedNovaServer
from fluke.algorithms.fedprox import FedProxClient
from fluke.algorithms.scaffold import SCAFFOLDClient, SCAFFOLDServer
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from problem import (
    BATCH,
    CLASSES,
    EPOCHS,
    EVERYBODY,
    ROUNDS,
    STEP,
    Loader,
    Problem,
    Weights,
    first_weights,
    load,
    network,
    read,
)


class Batches(FastDataLoader):
    """fluke's loader with the problem's batches."""

    def __init__(self, problem: Problem, client: int) -> None:
        self.loader = Loader(problem, client)
        tensors = map(torch.from_numpy, problem.data(client))
        super().__init__(*tensors, num_labels=CLASSES, batch_size=BATCH)

    def __iter__(self) -> Any:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


class Watch:
    """Notes the weights at the end of every round, and lets loaders go on with the next."""

    def __init__(self, server: Any, own_models: bool) -> None:
        self.server, self.own_models, self.after = server, own_models, []

    def end_round(self, round: int) -> None:
        model = getattr(self.server, "cld_mdl", self.server.model)
        clients = self.server.clients
        own = [read(one.personalized_model) for one in clients] if self.own_models else []
        self.after.append(np.concatenate([read(model), *own]))
        for client in clients:
            client.train_set.loader.enter(min(round + 1, ROUNDS))


def played_by(
    client_kind: type,
    server_kind: type = Server,
    algorithm: type = CentralizedFL,
    weighted: bool = True,
    own_models: bool = False,
    server_options: dict[str, float] | None = None,
    **options: float,
) -> Callable[[Problem], list[Weights]]:
    """Return what plays three rounds of one of fluke's algorithms."""

    def play(problem: Problem) -> list[Weights]:
        FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
        net = network()
        load(net, first_weights())
        clients = [
            client_kind(
                index=one,
                train_set=Batches(problem, one),
                test_set=None,
                optimizer_cfg=OptimizerConfigurator(DDict(name="SGD", lr=STEP)),
                loss_fn=torch.nn.CrossEntropyLoss(),
                local_epochs=EPOCHS,
                clipping=0,
                **({"model": copy.deepcopy(net)} if own_models else {}),
                **options,
            )
            for one in EVERYBODY
        ]
        server = server_kind(net, None, clients, weighted=weighted, **(server_options or {}))
        cohorts = iter(problem.cohorts)
        server.get_eligible_clients = lambda share: [clients[one] for one in next(cohorts)]
        loop = algorithm(problem.clients, None, {}, clients=clients, server=server)
        watch = Watch(server, own_models)
        loop.attach(watch)
        loop.run(ROUNDS, 1.0)
        return watch.after

    return play


class TurnedFedDynClient(FedDynClient):
    """fluke's client with the sum of its own changes in place of α times its negative."""

    def fit(self, override_local_epochs: int = 0) -> float:
        before = self.prev_grads.clone()
        loss = super().fit(override_local_epochs)
        self.prev_grads = before - (self.prev_grads - before) / self.hyper_params.alpha
        return loss


class WholeFedNovaServer(FedNovaServer):
    """fluke's server with the part of the received model that its weights leave out."""

    def aggregate(self, eligible: Any, client_models: Any) -> None:
        received = read(self.model)
        shares = np.array(self._get_client_weights(eligible))
        steps = np.array([client.a for client in eligible])
        super().aggregate(eligible, client_models)
        left = 1 - (shares * (shares @ steps) / steps).sum()
        load(self.model, (read(self.model) + left * received).astype(np.float32))


fedavg = played_by(Client)
fedprox = played_by(FedProxClient, mu=0.5)
fednova = played_by(FedNovaClient, FedNovaServer)
fednova_mended = played_by(FedNovaClient, WholeFedNovaServer)
scaffold = played_by(SCAFFOLDClient, SCAFFOLDServer, weighted=False)
ditto = played_by(DittoClient, own_models=True, tau=EPOCHS, lam=1.0)
feddyn = played_by(FedDynClient, FedDynServer, FedDyn, alpha=0.1)
feddyn_mended = played_by(TurnedFedDynClient, FedDynServer, FedDyn, alpha=0.1)
