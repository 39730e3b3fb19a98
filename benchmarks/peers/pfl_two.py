"""FedAvg in pfl-research: two workers of its simulated backend, joined by torch.distributed."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def work_as(rank: int) -> None:
    import asyncio

    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from torch.nn.functional import cross_entropy
    from torch_client import Batches, load, network, read
    from workload import started

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    asyncio.set_event_loop(asyncio.new_event_loop())
    work, record, rounds = started()
    settings = work.settings

    class User(PyTorchTensorDataset):
        """A client whose every epoch has the workload's batches."""

        def __init__(self, number: int, client: int) -> None:
            self.batches = Batches(work, client, since=number)
            super().__init__(self.batches.tensors)

        def iter(self, batch_size):
            return iter(self.batches)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network(settings)

        def loss(self, x, y):
            return cross_entropy(self.layers(x), y)

        def metrics(self, x, y):
            return {}

    class Timed(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            record.round_done()
            return False, Metrics()

    everyone = [(n, c) for n, row in enumerate(work.selected.tolist(), 1) for c in row]
    users = FederatedDataset(lambda who: User(*who), iter(everyone).__next__)
    net = Net()
    load(net, work.weights)
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    algorithm = FederatedAveraging()
    algorithm._current_central_iteration = 1  # the 0th is always judged, which the others do not
    algorithm.run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 2,
            train_cohort_size=settings.per_round,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=settings.epochs,
            local_learning_rate=settings.learning_rate,
            local_batch_size=settings.batch_size,
        ),
        callbacks=[Timed()],
    )
    if rank == 0:
        record.finish(read(net))


if __name__ == "__main__":
    if "PFL_WORKER_RANK" in os.environ:
        work_as(int(os.environ["PFL_WORKER_RANK"]))
    else:
        addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
        ranks = [
            {"PFL_WORKER_RANK": str(rank), "PFL_WORKER_ADDRESSES": addresses} for rank in range(2)
        ]
        workers = [subprocess.Popen([sys.executable, *sys.argv], env=os.environ | r) for r in ranks]
        sys.exit(max(worker.wait() for worker in workers))
