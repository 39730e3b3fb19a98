"""Workers on devices: who takes which, and that this process leaves the GPUs to its workers."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from engines.federations import federation, make, tasks
from flamma.errors import ConfigError
from flamma.simulation import executor, pool, runner
from flamma.simulation.executor import wants_cuda, worker_device, workers_per_device
from flamma.simulation.runner import ClientRunner


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [
        ("cpu", 0, ["cpu", "cpu", "cpu"]),
        ("cuda", 1, ["cuda:0", "cuda:0", "cuda:0"]),
        ("cuda", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 8, ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda:3", 8, ["cuda:3", "cuda:3", "cuda:3"]),
    ],
)
def test_workers_take_gpus_in_turn(device, gpus, expected):
    assert [worker_device(worker, device, gpus) for worker in range(3)] == expected
    busiest = max(map(expected.count, expected))
    assert workers_per_device(3, device, gpus) == busiest


def test_auto_is_the_gpu_if_there_is_one(monkeypatch):
    monkeypatch.setattr(executor, "gpu_count", lambda: 1)
    assert [wants_cuda(d) for d in ("auto", "cuda", "cuda:1", "cpu", "mps")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    monkeypatch.setattr(executor, "gpu_count", lambda: 0)
    assert not wants_cuda("auto")


@pytest.fixture
def two_gpus(monkeypatch):
    """Let this machine have two GPUs, which are its CPU under other names."""
    monkeypatch.setattr(executor, "gpu_count", lambda: 2)
    for module in (pool, runner):
        monkeypatch.setattr(module, "gpu_count", lambda: 2)
    taken = []

    def stands_in(worker, device, gpus):
        taken.append(worker_device(worker, device, gpus))
        return f"cpu:{worker % gpus}"

    monkeypatch.setattr(pool, "worker_device", stands_in)
    return taken


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
@pytest.mark.parametrize("trainer", ["auto", "torch", "stacked"])
def test_every_gpu_has_a_worker_that_trains_and_scores(two_gpus, trainer):
    data = federation([9, 12, 7, 20])
    with ClientRunner(data, make("mlp"), seed=0, device="cpu", trainer="torch") as alone:
        params = alone.initial_params
        expected = alone.train(params, tasks([0, 1, 2, 3]))
        scores = alone.evaluate(params)
    with ClientRunner(data, make("mlp"), seed=0, processes=2, trainer=trainer) as workers:
        assert two_gpus == ["cuda:0", "cuda:1"]
        assert workers.trainer == ("stacked" if trainer == "auto" else trainer)
        assert not torch.cuda.is_initialized()
        found = workers.train(params, tasks([0, 1, 2, 3]))
        assert np.array_equal(workers.evaluate(params).accuracy, scores.accuracy)
        workers._pool._workers[1].kill()
        again = workers.train(params, tasks([0, 1, 2, 3]))
    assert two_gpus == ["cuda:0", "cuda:1", "cuda:1"]
    for one, two, three in zip(expected, found, again, strict=True):
        assert not two.failure
        np.testing.assert_allclose(one.params, two.params, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(one.params, three.params, rtol=1e-4, atol=1e-6)


def test_gpus_that_workers_cannot_use_are_used_by_this_process(monkeypatch):
    monkeypatch.setattr(runner, "wants_cuda", lambda device: True)
    monkeypatch.setattr(pool.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(runner, "pick_device", lambda device: "cpu:0")
    data, how = federation([9, 9]), {"processes": 2, "device": "cuda", "trainer": "stacked"}
    with pytest.warns(UserWarning, match="using one process: this process uses the GPU already"):
        alone = ClientRunner(data, make("mlp"), seed=0, **how)
    with alone:
        assert (alone.processes, alone.trainer) == (1, "stacked")
        assert not any(r.failure for r in alone.train(alone.initial_params, tasks([0, 1])))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_with_workers_too():
    with pytest.raises(ConfigError, match=r"training\.device 'cuda' cannot be used here"):
        ClientRunner(federation([9, 9]), make("mlp"), seed=0, processes=2, device="cuda")


@pytest.mark.parametrize("processes", [1, 2])
def test_stacked_clients_train_in_processes_as_in_one(processes):
    data = federation([9, 12, 7, 20])
    with ClientRunner(data, make("mlp"), seed=0, trainer="torch") as one:
        expected = one.train(one.initial_params, tasks([0, 1, 2, 3]))
    with ClientRunner(
        data, make("mlp"), seed=0, trainer="stacked", processes=processes, precision="float32"
    ) as many:
        assert many.processes == processes
        found = many.train(many.initial_params, tasks([0, 1, 2, 3]))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a.params, b.params, rtol=1e-4, atol=1e-6)
