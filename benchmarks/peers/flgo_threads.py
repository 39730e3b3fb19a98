"""FedAvg in FLGo: its pool of threads, each with one thread of torch.

Of its parallel modes, Ray wants a GPU here, and processes would pickle all clients for each one.
FLGo finds its data through a task folder and a benchmark package with a module ``core``; the
folder is written to OUT, and this script itself takes the place of the module.
"""

from __future__ import annotations

import json
import sys

import vision  # noqa: F401 - first, for what follows imports torchvision
from flgo import convert_model, init
from flgo.algorithm import fedbase
from flgo.benchmark.base import BasicTaskPipe
from flgo.benchmark.toolkits.cv.classification import GeneralCalculator
from torch.utils.data import TensorDataset
from torch_client import Batches, load, network, read
from workload import Record, Workload, started

BENCHMARK = "workload_of_peers"


class Data(TensorDataset):
    """A client's samples, and the loader that goes on with its batches from round to round."""

    def __init__(self, work: Workload, client: int) -> None:
        self.batches = Batches(work, client)
        super().__init__(*self.batches.tensors)


class TaskPipe(BasicTaskPipe):
    def load_data(self, running_time_option: dict) -> dict:
        work = Workload(self.feddata["folder"])
        names = self.feddata["client_names"]
        return {name: {"train": Data(work, one)} for one, name in enumerate(names)}


class TaskCalculator(GeneralCalculator):
    """FLGo's loss and optimizer with the workload's batches."""

    def get_dataloader(self, dataset: Data, *args, **kwargs) -> Batches:
        return dataset.batches


class FixedClientsServer(fedbase.BasicServer):
    """FLGo's server with the workload's clients; FLGo looks for "Server" in its name."""

    work: Workload
    record: Record

    def sample(self) -> list[int]:
        return self.work.selected[self.current_round - 1].tolist()

    def iterate(self) -> bool:
        updated = super().iterate()
        self.record.round_done()
        return updated


class FedAvg:
    Server, Client = FixedClientsServer, fedbase.BasicClient


if __name__ == "__main__":
    work, record, rounds = started()
    settings = work.settings
    task = record.out / "task"
    (task / "record").mkdir(parents=True)
    clients = [f"Client{one}" for one in range(settings.clients)]
    data = {"client_names": clients, "folder": sys.argv[1]}
    (task / "data.json").write_text(json.dumps(data))
    (task / "info").write_text(json.dumps({"benchmark": BENCHMARK}))
    sys.modules[f"{BENCHMARK}.core"] = sys.modules[__name__]
    server = init(
        str(task),
        FedAvg,
        option={
            "num_rounds": rounds,
            "proportion": settings.per_round / settings.clients,
            "aggregate": "other",  # weighted by samples, which is FedAvg
            "num_epochs": settings.epochs,
            "batch_size": settings.batch_size,
            "learning_rate": settings.learning_rate,
            "train_holdout": 0.0,
            "eval_interval": -1,
            "torch_num_threads": 1,
            "num_parallels": settings.processes,
            "parallel_type": "t",
            "no_log_console": True,
            "no_tqdm": True,
        },
        model=convert_model(lambda: network(settings)),
    )
    server.work, server.record = work, record
    load(server.model, work.weights)
    server.run()
    record.finish(read(server.model))
