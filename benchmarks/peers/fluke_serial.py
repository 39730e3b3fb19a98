"""FedAvg in fluke: one client after the other, with torch's threads."""

from __future__ import annotations

import torch
import vision  # noqa: F401 - first, for what follows imports torchvision
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from torch_client import Batches, load, network, read
from workload import Record, Workload, started


class Loader(FastDataLoader):
    """fluke's loader with the workload's batches."""

    def __init__(self, work: Workload, client: int) -> None:
        self.batches = Batches(work, client)
        size = work.settings.batch_size
        super().__init__(*self.batches.tensors, num_labels=10, batch_size=size)

    def __iter__(self):
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class FixedClients(Server):
    """fluke's server with the workload's clients."""

    work: Workload
    number = 0

    def get_eligible_clients(self, eligible_perc: float) -> list[Client]:
        self.number += 1
        return [self.clients[one] for one in self.work.selected[self.number - 1]]


class Timed:
    def __init__(self, record: Record) -> None:
        self.record = record

    def end_round(self, round: int) -> None:
        self.record.round_done()


if __name__ == "__main__":
    work, record, rounds = started()
    settings = work.settings
    torch.set_num_threads(settings.processes)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    net = network(settings)
    load(net, work.weights)
    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=settings.learning_rate))
    clients = [
        Client(
            index=one,
            train_set=Loader(work, one),
            test_set=None,
            optimizer_cfg=optimizer,
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=settings.epochs,
            persistency=False,
        )
        for one in range(settings.clients)
    ]
    server = FixedClients(net, None, clients, weighted=True)
    server.work = work
    algorithm = CentralizedFL(settings.clients, None, {}, clients=clients, server=server)
    algorithm.attach(Timed(record))
    algorithm.run(rounds, settings.per_round / settings.clients)
    record.finish(read(server.model))
