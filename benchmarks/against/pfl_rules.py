"""pfl-research's algorithms on the problem, in its own loop."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.bridge.pytorch.scaffold import PyTorchSCAFFOLDBridge
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
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
    network,
    read,
)
from torch.nn.functional import cross_entropy


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.layers(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        return {}


class User(PyTorchTensorDataset):
    """A client in a round, whose every epoch has the problem's batches."""

    def __init__(self, problem: Problem, number: int, client: int) -> None:
        tensors = tuple(map(torch.from_numpy, problem.data(client)))
        super().__init__(tensors, user_id=str(client))
        self.loader = Loader(problem, client).enter(number)

    def iter(self, batch_size: int | None) -> Any:
        # In the first round the model is judged, too, with all samples at once. That must not take
        # an epoch's batches.
        return iter(self.loader if batch_size == BATCH else [self.raw_data])


class Watch(TrainingProcessCallback):
    """Notes the weights after every round."""

    def __init__(self, net: Net) -> None:
        self.net, self.after = net, []

    def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.after.append(read(self.net))
        return False, Metrics()


def play(problem: Problem, algorithm: Any, params: type, weighted: bool, **options: Any) -> Any:
    """Return the weights after each of three rounds."""
    asyncio.set_event_loop(asyncio.new_event_loop())
    everyone = [(n, c) for n, cohort in enumerate(problem.cohorts, 1) for c in cohort]
    net = Net()
    users = FederatedDataset(lambda who: User(problem, *who), iter(everyone).__next__)
    load(net, first_weights())
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    watch = Watch(net)
    algorithm.run(
        algorithm_params=params(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS + 2,
            train_cohort_size=len(problem.cohorts[0]),
            val_cohort_size=0,
            **options,
        ),
        backend=SimulatedBackend(
            training_data=users,
            val_data=users,
            postprocessors=[WeightByDatapoints()] if weighted else [],
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=EPOCHS, local_learning_rate=STEP, local_batch_size=BATCH
        ),
        callbacks=[watch],
    )
    return watch.after


def fedavg(problem: Problem) -> list[Weights]:
    return play(problem, FederatedAveraging(), NNAlgorithmParams, True)


def fedprox(problem: Problem) -> list[Weights]:
    return play(problem, FedProx(), FedProxParams, True, mu=0.5)


def scaffold(problem: Problem) -> list[Weights]:
    """Play option II."""
    return play(
        problem,
        SCAFFOLD(),
        SCAFFOLDParams,
        False,
        population=problem.clients,
        use_gradient_as_control_variate=False,
        user_state_storage=InMemoryUserStateStorage(),
    )


def scaffold_mended(problem: Problem) -> list[Weights]:
    """Play it with c - c_k of the right sign: all that they store has the sign of an update."""
    train = PyTorchSCAFFOLDBridge.do_control_variate_sgd

    def exchanged(model: Any, data: Any, params: Any, local_c: Any, server_c: Any) -> None:
        train(model, data, params, local_c=server_c, server_c=local_c)

    with mock.patch.object(PyTorchSCAFFOLDBridge, "do_control_variate_sgd", exchanged):
        return scaffold(problem)
