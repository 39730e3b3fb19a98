"""The runner of clients: the same bits whatever the processes, and scores as by a plain loop."""

from __future__ import annotations

import math
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flamma.errors import ConfigError, FlammaError
from flamma.models import FlatModel, build_model
from flamma.seeding import stream
from flamma.simulation import executor, pool, runner
from flamma.simulation.executor import one_thread, wants_cuda, worker_device, workers_per_device
from flamma.simulation.runner import ClientRunner
from flamma.training import TorchTrainer
from flamma.training.torch_trainer import SAMPLES_SCORED_AT_ONCE
from flamma.types import NO_VECTORS, Objective, TaskVectors
from flat_work import on_terms, work
from simulation.federations import CLASSES, FEATURES, federation, make, make_faulty, tasks

IMAGES = (2, 16, 16)


def noisy(shape, classes):
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3),
        nn.BatchNorm2d(4),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(4 * 14 * 14, classes),
    )


@pytest.mark.parametrize(
    "make_model", [make("lenet5", IMAGES), make(noisy, IMAGES)], ids=["lenet5", "noisy"]
)
def test_the_bits_do_not_depend_on_the_processes(make_model):
    # A process that has used several threads before it forks is the hard case.
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.randn(700, 700, requires_grad=True).mm(torch.randn(700, 700)).sum().backward()
    sizes = [40, 1, 9, 33, 70, 8]
    data = federation(
        sizes,
        held=[3, 0, 500, 60, 1, 9],
        shape=IMAGES,
        test=SAMPLES_SCORED_AT_ONCE + 20,
        validation=30,
    )
    mixed = [
        work(client, 4, 1 + client % 3, 0.05, proximal=0.1 * (client % 2), report_loss="received")
        for client in (3, 0, 5, 1, 4, 2)
    ]
    results = []
    for processes in (1, 2, 3):
        with ClientRunner(
            data, make_model, seed=5, batch_size=8, momentum=0.9, processes=processes
        ) as runner:
            assert runner.processes == processes
            params = runner.initial_params
            reports = runner.train(params, mixed)
            assert [report.client for report in reports] == [3, 0, 5, 1, 4, 2]
            assert not any(report.failure for report in reports)
            scores = runner.evaluate(reports[0].params)
            results.append(
                (
                    [report.params.tobytes() for report in reports],
                    [(r.client, r.samples, r.epochs, r.loss) for r in reports],
                    scores.accuracy.tobytes(),
                    scores.loss.tobytes(),
                    (scores.test_accuracy, scores.test_loss),
                    runner.validate(reports[0].params),
                )
            )
            again = runner.train(params, mixed[:2])
            assert [r.params.tobytes() for r in again] == results[-1][0][:2]
    assert results[0] == results[1] == results[2]
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)


@pytest.mark.parametrize("trainer", ["lanes", "torch"])
def test_vectors_reach_their_tasks_in_any_process(trainer):
    data = federation([40, 9, 33, 8, 21])
    rng, given = np.random.default_rng(1), tasks([3, 0, 2, 1, 4], proximal=0.5)
    given[2] = on_terms(given[2], objective=Objective(tilt=1.0), report_loss="trained")
    given[4] = on_terms(given[4], train=False)

    def draw():
        return rng.standard_normal(CLASSES * (FEATURES + 1)).astype(np.float32)

    own = [
        TaskVectors(correction=draw()),
        NO_VECTORS,
        TaskVectors(received=draw(), start=draw()),
        TaskVectors(draw(), draw(), draw()),
        TaskVectors(start=draw()),
    ]
    results = []
    for processes in (1, 2):
        with ClientRunner(
            data, make("logistic"), seed=5, batch_size=8, processes=processes, trainer=trainer
        ) as runner:
            params = runner.initial_params
            reports = runner.train(params, given, own)
            alone = [runner.train(params, [t], [v])[0] for t, v in zip(given, own, strict=True)]
            [without] = runner.train(params, given[1:2])
            with pytest.raises(ValueError, match="shorter"):
                runner.train(params, given, own[1:])
        assert not any(report.failure for report in reports)
        trained = [None if r.params is None else r.params.tobytes() for r in reports]
        assert trained[1] == without.params.tobytes()
        assert trained == [None if r.params is None else r.params.tobytes() for r in alone]
        results.append((trained, [repr(report.loss) for report in reports]))
        evaluated = reports[4]
        assert (evaluated.params, evaluated.epochs) == (None, 0)
        assert math.isfinite(evaluated.loss)
    assert results[0] == results[1]
    assert len(set(results[0][0])) == 5


def test_a_client_trains_with_its_own_stream():
    data = federation([12, 20])
    with ClientRunner(data, make("logistic"), seed=11, batch_size=8, trainer="torch") as runner:
        trainer = TorchTrainer(make("logistic"), batch_size=8)
        [task] = tasks([1], round=3, epochs=2)
        [report] = runner.train(runner.initial_params, [task])
        expected, _ = trainer.train(
            runner.initial_params,
            data.train_x[12:32],
            data.train_y[12:32],
            task,
            stream(11, "train", 3, 1),
        )
    assert report.params.tobytes() == expected.tobytes()
    assert (report.client, report.samples, report.epochs, report.failure) == (1, 20, 2, "")
    assert math.isnan(report.loss)
    assert report.seconds > 0


@pytest.mark.parametrize("processes", [1, 2])
def test_reports_are_in_the_order_of_the_tasks_and_share_no_memory(processes):
    data = federation([5, 50, 20, 10])
    with ClientRunner(data, make("logistic"), seed=0, processes=processes) as runner:
        reports = runner.train(runner.initial_params, tasks([2, 0, 3, 1]))
        kept = [report.params.copy() for report in reports]
        runner.train(reports[0].params, tasks([1, 0, 2, 3], round=2))
    assert [report.client for report in reports] == [2, 0, 3, 1]
    assert [report.samples for report in reports] == [20, 5, 10, 50]
    assert all(np.array_equal(r.params, k) for r, k in zip(reports, kept, strict=True))
    assert len({k.tobytes() for k in kept}) == 4


def test_the_largest_tasks_come_first():
    seen = []

    class Notes(nn.Linear):
        def forward(self, x):
            if not seen or seen[-1] != x.shape[0]:
                seen.append(x.shape[0])
            return super().forward(x)

    data = federation([5, 50, 20, 30])
    with ClientRunner(data, lambda: Notes(FEATURES, CLASSES), seed=0, batch_size=100) as runner:
        tasks = [work(client, 1, epochs) for client, epochs in [(0, 1), (1, 1), (2, 4), (3, 2)]]
        runner.train(runner.initial_params, tasks)
    assert seen == [20, 30, 50, 5]


@pytest.mark.parametrize("processes", [1, 2])
def test_who_abstains_or_has_nothing_does_not_train(processes):
    data = federation([10, 0, 10])
    with ClientRunner(data, make("logistic"), seed=0, processes=processes) as runner:
        abstains = work(client=0, round=1, epochs=0, learning_rate=0.1)
        reports = runner.train(runner.initial_params, [abstains, *tasks([1, 2])])
        assert runner.train(runner.initial_params, []) == []
    first, empty, last = reports
    assert (first.abstained, first.params, first.epochs, first.failure) == (True, None, 0, "")
    assert (empty.params, empty.samples, empty.failure) == (None, 0, "no training data")
    assert last.params is not None


@pytest.mark.parametrize("processes", [1, 2])
def test_weights_that_are_not_finite_come_back_as_they_are(processes):
    data = federation([10, 10])
    with ClientRunner(data, make("logistic"), seed=0, processes=processes) as runner:
        [report] = runner.train(runner.initial_params, tasks([0], learning_rate=math.inf))
    assert report.failure == ""
    assert not np.isfinite(report.params).all()


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("test", [None, 40])
@pytest.mark.parametrize(
    "held",
    [
        [3, 4, 5],
        [0, 4, 1],
        [3, 0, 0],
        [0, 0, 7],
        [0, 0, 0],
        [SAMPLES_SCORED_AT_ONCE, 2 * SAMPLES_SCORED_AT_ONCE + 3, 1],
    ],
)
def test_scores_equal_a_loop_over_clients(held, test, processes):
    data = federation([4, 4, 4], held=held, test=test, validation=11)
    build = make("mlp", hidden=[6])
    with ClientRunner(data, build, seed=0, processes=processes) as runner:
        params = np.random.default_rng(1).standard_normal(runner.layout.size).astype(np.float32)
        scores = runner.evaluate(params)
        validation = runner.validate(params)
    model = FlatModel(build())
    model.load(params)

    def naive(x, y):
        if y.size == 0:
            return math.nan, math.nan
        with torch.no_grad():
            logits = model.module(torch.tensor(x))
        right = (logits.argmax(1).numpy() == y).mean()
        return cross_entropy(logits, torch.tensor(y)).item(), 100 * right

    offsets = data.held_offsets
    expected = [
        naive(data.held_x[start:stop], data.held_y[start:stop]) for start, stop in pairwise(offsets)
    ]
    np.testing.assert_allclose(scores.loss, [loss for loss, _ in expected], rtol=1e-5)
    np.testing.assert_allclose(scores.accuracy, [right for _, right in expected], rtol=1e-12)
    assert scores.samples.tolist() == held
    loss, right = naive(data.test_x, data.test_y)
    np.testing.assert_allclose((scores.test_loss, scores.test_accuracy), (loss, right), rtol=1e-5)
    np.testing.assert_allclose(validation, naive(data.validation_x, data.validation_y), rtol=1e-5)


def test_without_a_validation_set_there_is_nothing_to_say():
    with ClientRunner(federation([4]), make("logistic"), seed=0) as runner:
        assert all(map(math.isnan, runner.validate(runner.initial_params)))


@pytest.mark.parametrize("processes", [1, 2])
def test_the_server_trains_on_its_validation_set_with_a_stream_of_its_own(processes):
    data = federation([4, 4], validation=23)
    [task] = tasks([-1], round=5, epochs=3)
    build = make("mlp", hidden=[6])
    with ClientRunner(data, build, seed=9, processes=processes, trainer="torch") as runner:
        params = runner.initial_params
        found = runner.train_server(params, task)
        assert found.tobytes() == runner.train_server(params, task).tobytes()
        assert found.tobytes() != runner.train_server(params, on_terms(task, round=6)).tobytes()
        assert params.tobytes() == runner.initial_params.tobytes()
    trainer = TorchTrainer(build, batch_size=32)
    with one_thread():
        expected, _ = trainer.train(
            params, data.validation_x, data.validation_y, task, stream(9, "server", 5)
        )
    assert found.tobytes() == expected.tobytes()


def test_the_servers_training_returns_what_is_trained():
    data = federation([4], shape=(1, 16, 16), validation=12)
    build = make("resnet18", shape=(1, 16, 16), width=0.01, norm="batch")
    with ClientRunner(data, build, seed=0) as runner:
        found = runner.train_server(runner.initial_params, *tasks([-1]))
        assert found.size == runner.layout.trainable_size < runner.layout.size
        assert np.isfinite(found).all()


def test_without_a_validation_set_the_server_cannot_train():
    with (
        ClientRunner(federation([4]), make("logistic"), seed=0) as runner,
        pytest.raises(FlammaError, match="no validation set to train on"),
    ):
        runner.train_server(runner.initial_params, *tasks([-1]))


def test_the_runner_starts_from_the_models_weights_and_leaves_the_model_alone():
    module = make("logistic")()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    data = federation([10, 10])
    runners = [ClientRunner(data, lambda: module, seed=0) for _ in range(2)]
    params = runners[0].initial_params
    assert np.array_equal(params, torch.cat([b.flatten() for b in before]).numpy())
    params += 1
    assert not np.array_equal(runners[0].initial_params, params)
    first, second = (runner.train(runner.initial_params, tasks([0, 1])) for runner in runners)
    assert first[1].params.tobytes() == second[1].params.tobytes()
    assert all(torch.equal(p, b) for p, b in zip(module.parameters(), before, strict=True))
    assert runners[0].layout.names == ("1.weight", "1.bias")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch size must be at least 1"),
        ({"batch_size": 2**63}, "batch size is too large"),
        ({"device": "nonsense"}, "training.device 'nonsense' cannot be used here"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"processes": 0}, "at least 1 process"),
        ({"time_limit": 0.0}, "time limit must be a positive"),
        ({"time_limit": math.nan}, "time limit must be a positive"),
    ],
)
def test_numbers_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ClientRunner(federation([4]), make("logistic"), seed=0, **options)


@pytest.mark.parametrize("processes", [1, 2])
def test_weights_of_another_size_are_refused(processes):
    with (
        ClientRunner(federation([4]), make("logistic"), seed=0, processes=processes) as runner,
        pytest.raises(FlammaError, match="weights of shape"),
    ):
        runner.train(runner.initial_params[:-1], tasks([0]))


def test_weights_of_another_size_are_not_scored():
    with (
        ClientRunner(federation([4]), make("logistic"), seed=0) as runner,
        pytest.raises(FlammaError, match="weights of shape"),
    ):
        runner.evaluate(np.zeros(3, dtype=np.float32))


def test_an_error_of_the_model_in_evaluation_is_raised_here():
    data = federation([10, 10], held=300)
    data.held_x[450, 0] = 2000.0
    with ClientRunner(data, make_faulty, seed=0, processes=2) as runner:
        with pytest.raises(ValueError, match="this sample is broken"):
            runner.evaluate(runner.initial_params)
        # And the runner is not the worse for it.
        assert not runner.train(runner.initial_params, tasks([0]))[0].failure


@pytest.mark.slow  # it measures time
def test_a_hundred_thousand_clients_cost_little():
    clients, each = 100_000, 10
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients * each, FEATURES)).astype(np.float32)
    y = rng.integers(0, CLASSES, clients * each)
    data = federation([1])
    changes = {"train_x": x, "train_y": y, "held_x": x[:clients], "held_y": y[:clients]}
    changes |= {"train_offsets": each * np.arange(clients + 1)}
    changes |= {"held_offsets": np.arange(clients + 1)}
    for key, value in changes.items():
        object.__setattr__(data, key, value)

    def build():
        return build_model("logistic", (FEATURES,), CLASSES, 0)

    work = tasks(rng.integers(0, clients, 200).tolist())
    trainer = TorchTrainer(build, batch_size=32)
    with one_thread(), ClientRunner(data, build, seed=0, trainer="torch") as runner:
        params = runner.initial_params
        extra, scoring = [], []
        for _ in range(4):
            begin = time.process_time()
            reports = runner.train(params, work)
            whole = time.process_time() - begin
            begin = time.process_time()
            for report, task in zip(reports, work, strict=True):
                rows = slice(each * task.client, each * (task.client + 1))
                rng_ = stream(0, "train", 1, task.client)
                expected, _ = trainer.train(params, x[rows], y[rows], task, rng_)
                assert report.params.tobytes() == expected.tobytes()
            extra.append((whole - (time.process_time() - begin)) / len(work))
            begin = time.process_time()
            scores = runner.evaluate(params)
            scoring.append(time.process_time() - begin)
    assert scores.accuracy.shape == (clients,)
    assert min(extra) < 0.3e-3
    # A loop over clients would take several times as long.
    assert min(scoring) < 0.5


# Workers on devices: who takes which, and that this process leaves the GPUs to its workers.


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
