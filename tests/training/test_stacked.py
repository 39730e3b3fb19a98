"""Many clients at once against one after the other, with everything that can differ by client."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from flamma.errors import ConfigError, FlammaError
from flamma.models import MODELS, FlatModel, build_model
from flamma.training import StackedTrainer, TooSlow, TorchTrainer, TrainingJob, stacked
from flamma.training.config import TRAINERS, TrainerSettings, pick_trainer
from flamma.training.devices import SINGLE_PRECISION, Precision, pick_device, pick_precision
from flamma.training.stacked import _StackedModel
from flat_work import work

SHAPE = (2, 16, 16)
CLASSES = 3


class Own(nn.Module):
    """A module of the user's own: shared weights, a frozen part, a buffer, an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(512, 6)
        self.again = nn.Linear(6, 6)
        self.last = nn.Linear(6, CLASSES)
        self.last.weight.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("scale", torch.full((6,), 0.5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        hidden = torch.tanh(self.first(x.flatten(1))) * self.scale
        return self.last(torch.tanh(self.again(torch.tanh(self.again(hidden)))))


class Branches(nn.Linear):
    def forward(self, x):
        x = super().forward(x.flatten(1))
        return x if x.sum() > 0 else -x


class Averages(nn.Module):
    """It replaces a buffer instead of changing it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(512, CLASSES)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.mean = self.mean + x.detach().mean()
        return self.linear(x.flatten(1))


def sequential(*layers):
    return lambda *_: nn.Sequential(nn.Flatten(), *layers, nn.Linear(512, CLASSES))


def flat(model, **options):
    return FlatModel(build_model(model, SHAPE, CLASSES, seed=1, **options))


def job(number, samples, shape=SHAPE, **changes):
    rng = np.random.default_rng(number)
    task = work(**{"client": number, "round": 1, "epochs": 1, "learning_rate": 0.05} | changes)
    x = rng.random((samples, *shape), dtype=np.float32)
    return TrainingJob(task, x, rng.integers(0, CLASSES, samples), rng)


def various():
    """Return clients that differ in all that a client can differ in; batches are of 8."""
    return [
        job(0, 24),
        job(1, 21, epochs=2, learning_rate=0.1),
        job(2, 5, epochs=3, proximal=0.5),
        job(3, 16, batches=5, report_loss="received"),
        job(4, 1, learning_rate=0.2),
        job(5, 9, batches=0, report_loss="received"),
        job(6, 8, epochs=0),
    ]


def results(trainer, params, jobs, limit=None):
    found = {}
    for number, trained in trainer.train_each(params, jobs, limit):
        kept = None if trained.params is None else trained.params.copy()
        found[number] = trained._replace(params=kept)
    return found


def apart(one, two, received):
    """Return how far apart two results are, as a share of the larger update."""
    change = np.linalg.norm(one.params - received)
    return np.linalg.norm(one.params - two.params) / max(change, 1e-12)


@pytest.fixture
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


OTHERS = ("resnet18", "embedding", "gru", "transformer")
"""Models that are slow, and those that take token ids."""
EVERY_MODEL = {
    **{name: lambda name=name: flat(name) for name in MODELS if name not in OTHERS},
    "own": lambda: flat(lambda *_: Own()),
}


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("model", EVERY_MODEL)
def test_a_stack_gives_what_one_after_the_other_gives(model, momentum):
    one = TorchTrainer(EVERY_MODEL[model](), 8, momentum)
    many = StackedTrainer(EVERY_MODEL[model](), SHAPE, 8, momentum)
    received = one.model.read()
    expected = results(one, received, various())
    found = results(many, received, various())
    assert sorted(found) == list(range(7))
    for number, trained in found.items():
        assert trained.error is None
        assert apart(expected[number], trained, received) < 1e-4
        np.testing.assert_equal(trained.loss, expected[number].loss)
    assert np.linalg.norm(found[1].params - received) > 1e-2
    for number in (5, 6):
        assert np.array_equal(found[number].params, received)


@pytest.mark.usefixtures("_one_thread")
def test_a_step_of_a_resnet_in_a_stack_is_that_of_one_client():
    # Only one, and not too exact: beside its many kinks two roundings soon go different ways.
    jobs = [job(n, samples, batches=1) for n, samples in enumerate([8, 5, 1, 20])]
    one = TorchTrainer(flat("resnet18", width=0.125), 8)
    many = StackedTrainer(flat("resnet18", width=0.125), SHAPE, 8)
    received = one.model.read()
    found = results(many, received, jobs)
    again = [job(n, samples, batches=1) for n, samples in enumerate([8, 5, 1, 20])]
    for number, expected in results(one, received, again).items():
        assert apart(expected, found[number], received) < 0.02


@pytest.mark.usefixtures("_one_thread")
def test_scores_are_those_of_the_torch_trainer():
    x, y = job(0, 600).x, job(0, 600).y
    one, many = TorchTrainer(flat("lenet5"), 8), StackedTrainer(flat("lenet5"), SHAPE, 8)
    params = one.model.read()
    for found, expected in zip(many.predict(params, x, y), one.predict(params, x, y), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.usefixtures("_one_thread")
def test_results_do_not_depend_on_the_size_of_the_stack():
    received = flat("mlp").read()
    whole = results(StackedTrainer(flat("mlp"), SHAPE, 8, 0.9), received, various())
    for most in (1, 2, 3):
        trainer = StackedTrainer(flat("mlp"), SHAPE, 8, 0.9, most=most)
        assert trainer.width == most
        parts = results(trainer, received, various())
        assert all(apart(whole[n], parts[n], received) < 1e-5 for n in range(7))


@pytest.mark.usefixtures("_one_thread")
def test_a_trainer_can_be_used_again():
    trainer = StackedTrainer(flat(lambda *_: Own()), SHAPE, 8, 0.9)
    received = trainer.model.read()
    first = results(trainer, received, various())
    trainer.predict(first[1].params, job(9, 20).x, job(9, 20).y)
    again = results(trainer, received, various())
    assert all(first[n].params.tobytes() == again[n].params.tobytes() for n in range(7))


UNFIT = {
    "batch norm": (lambda: flat("resnet18", width=0.125, norm="batch"), "as batch norm does"),
    "batch statistics": (
        lambda: flat(sequential(nn.BatchNorm1d(512, track_running_stats=False))),
        "the samples of a mini-batch as a whole",
    ),
    "dropout": (lambda: flat(sequential(nn.Dropout(0.5))), "called random operation"),
    "branches": (lambda: flat(lambda *_: Branches(512, CLASSES)), "data-dependent control flow"),
    "replaced buffer": (lambda: flat(lambda *_: Averages()), "keeps a state"),
}


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("model", UNFIT)
def test_what_cannot_be_stacked_is_refused_and_automatically_left_to_torch(model):
    make, reason = UNFIT[model]
    wanted = TrainerSettings(SHAPE, 8)
    before = (built := make()).read()
    with pytest.raises(ConfigError, match=f"trainer stacked cannot be used: .*{reason}") as caught:
        pick_trainer("stacked", built, wanted)
    assert len(str(caught.value).splitlines()) == 1
    assert np.array_equal(built.read(), before)
    with pytest.warns(UserWarning, match=reason) as warned:
        trainer = pick_trainer("auto", make(), wanted, device="cuda")
    assert (trainer.name, len(warned)) == ("torch", 1)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_auto_stacks_on_gpus_and_takes_lanes_on_the_cpu(device):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            pick_trainer("auto", flat("mlp"), TrainerSettings(SHAPE, 8), device).name == "stacked"
        )
        assert pick_trainer("stacked", flat("mlp"), TrainerSettings(SHAPE, 8)).name == "stacked"


@pytest.mark.usefixtures("_one_thread")
def test_an_unknown_trainer_names_the_nearest_one():
    with pytest.raises(ConfigError, match="unknown trainer 'stack': did you mean stacked"):
        pick_trainer("stack", flat("mlp"), TrainerSettings(SHAPE, 8))


@pytest.mark.usefixtures("_one_thread")
def test_a_trainer_of_another_package_is_chosen_by_name():
    TRAINERS.add("mine", lambda model, wanted: TorchTrainer(model, wanted.batch_size))
    try:
        assert pick_trainer("mine", flat("mlp"), TrainerSettings(SHAPE, 8)).batch_size == 8
    finally:
        TRAINERS.discard("mine")


class Sensitive(nn.Linear):
    """It cannot take samples with a 9 in them."""

    def forward(self, x):
        x = x.flatten(1)
        Sensitive.check(x)
        return super().forward(x)

    @staticmethod
    def check(x):
        inner = x
        while torch._C._functorch.is_batchedtensor(inner):
            inner = torch._C._functorch.get_unwrapped(inner)
        if (inner == 9).any():
            raise ValueError("a nine")


@pytest.mark.usefixtures("_one_thread")
def test_one_client_that_fails_does_not_fail_the_others():
    jobs = [job(number, 12) for number in range(6)]
    jobs[4].x[3] = 9
    jobs.append(job(6, 4)._replace(y=np.full(4, CLASSES)))
    jobs.append(job(7, 4, shape=(5,)))
    jobs.append(job(8, 0))
    trainer = StackedTrainer(flat(lambda *_: Sensitive(512, CLASSES)), SHAPE, 4)
    received = trainer.model.read()
    found = results(trainer, received, jobs)
    errors = {number: str(trained.error) for number, trained in found.items() if trained.error}
    assert errors == {
        4: "a nine",
        6: "labels must be from 0 to 2.",
        7: "4 samples of shape (2, 16, 16) were expected, not (4, 5).",
        8: "client 8 has no training data.",
    }
    model = flat(lambda *_: Sensitive(512, CLASSES))
    alone = results(TorchTrainer(model, 4), received, [job(number, 12) for number in range(4)])
    assert all(apart(alone[number], found[number], received) < 1e-5 for number in range(4))
    assert trainer._most == stacked.MAX_STACKED_CLIENTS


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("where", ["step", "start"])
def test_out_of_memory_halves_the_stack_and_goes_on(monkeypatch, where):
    trainer = StackedTrainer(flat("mlp"), SHAPE, 8, 0.9)
    received = trainer.model.read()
    expected = results(trainer, received, various())
    original, sizes = getattr(trainer._stacked, where), []

    def limited(clients):
        sizes.append(len(clients))
        # In the middle of training: all but the first two steps need more memory than there is.
        if len(clients) > 2 and (where == "start" or len(sizes) > 2):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(clients)

    monkeypatch.setattr(trainer._stacked, where, limited)
    found = results(trainer, received, various())
    assert all(apart(expected[n], found[n], received) < 1e-5 for n in range(7))
    # Two clients have nothing to do and leave the stack of seven before its first step.
    assert max(sizes) == (5 if where == "step" else 7)
    assert trainer._most <= 2
    assert sizes[-1] <= 2


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("where", ["step", "start"])
def test_a_client_that_does_not_fit_alone_fails_with_the_error(monkeypatch, where):
    trainer = StackedTrainer(flat("mlp"), SHAPE, 8)

    def full(clients):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(trainer._stacked, where, full)
    found = results(trainer, trainer.model.read(), [job(0, 4), job(1, 4)])
    assert sorted(found) == [0, 1]
    assert all("can't allocate memory" in str(trained.error) for trained in found.values())


@pytest.mark.usefixtures("_one_thread")
def test_late_clients_fail_and_the_others_do_not(monkeypatch):
    trainer = StackedTrainer(flat("mlp"), SHAPE, 8, most=2)
    original = trainer._stacked.step
    now = [0.0]
    monkeypatch.setattr(stacked.time, "monotonic", lambda: now[0])

    def step(stack):
        original(stack)
        now[0] += 1.0

    monkeypatch.setattr(trainer._stacked, "step", step)
    jobs = [job(0, 8, batches=n) for n in (9, 3, 2, 1)]
    found = results(trainer, trainer.model.read(), jobs, 3.5)
    assert isinstance(found[0].error, TooSlow)
    assert [found[n].error for n in (1, 2, 3)] == [None] * 3
    assert [found[n].seconds for n in range(4)] == [4.0, 3.0, 2.0, 1.0]


@pytest.mark.usefixtures("_one_thread")
def test_wrong_weights_are_refused():
    trainer = StackedTrainer(flat("mlp"), SHAPE, 8)
    with pytest.raises(FlammaError, match="weights of shape"):
        results(trainer, np.zeros(3, dtype=np.float32), [job(0, 4)])


@pytest.mark.usefixtures("_one_thread")
def test_the_memory_of_a_client_is_what_its_layers_keep():
    model = flat("mlp", hidden=[16])
    # Autograd keeps the input, the ReLU's output, the log-probabilities, labels and shares.
    kept = 4 * (512 + 16 + CLASSES) + 8 + 4
    weights, sample = _StackedModel(model, 0.0, SINGLE_PRECISION).bytes_per_client(SHAPE)
    assert weights == 3 * model.flat.nbytes
    assert kept <= sample / 1.5 <= 1.2 * kept
    assert _StackedModel(model, 0.9, SINGLE_PRECISION).bytes_per_client(SHAPE) == (
        4 * model.flat.nbytes,
        sample,
    )


@pytest.mark.usefixtures("_one_thread")
def test_a_huge_batch_size_takes_no_memory_beyond_the_samples():
    trainer = StackedTrainer(flat("logistic"), SHAPE, 2**40)
    found = results(trainer, trainer.model.read(), [job(0, 20), job(1, 5)])
    assert all(trained.error is None for trained in found.values())


@pytest.mark.usefixtures("_one_thread")
def test_a_stack_is_as_large_as_the_free_memory_allows(monkeypatch):
    client, sample = StackedTrainer(flat("mlp"), SHAPE, 8)._stacked.bytes_per_client(SHAPE)
    each = client + 8 * sample
    free = 10.5 * each / stacked._FREE_MEMORY_SHARE
    monkeypatch.setattr(stacked, "free_bytes", lambda device: free)
    trainer = StackedTrainer(flat("mlp"), SHAPE, 8)
    assert trainer.width == 10
    assert StackedTrainer(flat("mlp"), SHAPE, 8, sharing=2).width == 5
    assert StackedTrainer(flat("mlp"), SHAPE, 8, sharing=100).width == 1
    sizes = []
    start = trainer._stacked.start
    monkeypatch.setattr(trainer._stacked, "start", lambda m: sizes.append(len(m)) or start(m))
    data = job(0, 100).x.nbytes + job(0, 100).y.nbytes
    results(trainer, trainer.model.read(), [job(n, 100, batches=1) for n in range(12)])
    assert max(sizes) == int(10.5 * each / (each + data)) < 10


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("trainer", ["torch", "stacked"])
def test_bfloat16_is_near_float32_and_neither_is_the_other(trainer):
    found = {}
    for precision in ("float32", "bfloat16"):
        wanted = TrainerSettings(SHAPE, 8, 0.9, precision=precision)
        chosen = pick_trainer(trainer, flat("lenet5"), wanted)
        received = chosen.model.read()
        found[precision] = results(chosen, received, [job(0, 24, report_loss="received")])[0]
    assert 1e-5 < apart(found["float32"], found["bfloat16"], received) < 0.1
    assert found["bfloat16"].params.dtype == np.float32
    assert found["bfloat16"].loss == found["float32"].loss


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("make", [TorchTrainer, StackedTrainer])
def test_scaling_the_loss_changes_nothing_but_rounding(make):
    found = []
    for precision in (SINGLE_PRECISION, Precision(torch.float32, 2.0**12)):
        shape = {"shape": SHAPE} if make is StackedTrainer else {}
        chosen = make(flat("mlp"), batch_size=8, momentum=0.9, precision=precision, **shape)
        received = chosen.model.read()
        found.append(results(chosen, received, [job(0, 24, epochs=3, proximal=0.5)])[0])
    assert apart(*found, received) < 1e-5


@pytest.mark.usefixtures("_one_thread")
def test_precisions_that_cannot_be_used_are_refused():
    with pytest.raises(ConfigError, match="float16 needs CUDA; on cpu use bfloat16"):
        pick_precision("float16", "cpu")
    assert pick_precision("float16", "cuda").loss_scale > 1
    with pytest.raises(ConfigError, match="unknown precision 'bfloat'"):
        pick_precision("bfloat", "cpu")
    wanted = TrainerSettings(SHAPE, 8, precision="bfloat16")
    with pytest.raises(ConfigError, match="they train in float32, not in bfloat16"):
        pick_trainer("lanes", flat("mlp"), wanted)
    assert pick_trainer("auto", flat("mlp"), wanted).name == "torch"


@pytest.mark.usefixtures("_one_thread")
def test_time_is_measured_where_there_is_a_limit():
    trainer = StackedTrainer(flat("mlp"), SHAPE, 8)
    begin = time.monotonic()
    found = results(trainer, trainer.model.read(), [job(0, 8)], 100.0)
    assert 0 < found[0].seconds <= time.monotonic() - begin


# devices


def test_auto_picks_a_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (pick_device("auto"), pick_device("cpu")) == ("cuda", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == "cpu"


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta", "mps:3", "cuda:-1"])
def test_a_device_that_is_not_there_is_refused_in_one_sentence(device):
    with pytest.raises(ConfigError, match=r"^training\.device '.*' cannot be used here .*\.$"):
        pick_device(device)
