"""FedAvg in FedLab's standalone simulation: one client after the other, with torch's threads."""

from __future__ import annotations

import functools
import logging

import torch
import vision  # noqa: F401 - first, for what follows imports torchvision
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch_client import Batches, load, network, read
from workload import Record, Workload, started


class Data:
    """FedLab's way to hand out loaders."""

    def __init__(self, work: Workload) -> None:
        self._loader = functools.cache(lambda client: Batches(work, client))

    def get_dataloader(self, client: int, batch_size: int) -> Batches:
        return self._loader(client)


class FixedClients(SyncServerHandler):
    """FedLab's server with the workload's clients."""

    work: Workload

    def sample_clients(self) -> list[int]:
        return self.work.selected[self.round].tolist()


class Timed(StandalonePipeline):
    record: Record

    def evaluate(self) -> None:
        self.record.round_done()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    work, record, rounds = started()
    settings = work.settings
    torch.set_num_threads(settings.processes)
    net = network(settings)
    load(net, work.weights)
    server = FixedClients(net, rounds, settings.per_round / settings.clients)
    server.work = work
    trainer = SGDSerialClientTrainer(net, settings.clients)
    trainer.setup_dataset(Data(work))
    trainer.setup_optim(settings.epochs, settings.batch_size, settings.learning_rate)
    pipeline = Timed(server, trainer)
    pipeline.record = record
    pipeline.main()
    record.finish(read(server.model))
