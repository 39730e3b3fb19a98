"""What torch trains and scores has the same bits however its products are cut and lie in memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from flamma.models import FlatModel, build_model
from flamma.seeding import stream
from flamma.simulation.executor import one_thread
from flamma.training import TorchTrainer
from flat_work import work

IMAGE = (2, 16, 16)
CLASSES = 3
MODELS = {
    "logistic": ((20,), {}),
    "mlp": ((9,), {"hidden": [9]}),
    "lenet5": (IMAGE, {}),
    "resnet18": (IMAGE, {"width": 0.25}),
}


def build(name):
    shape, options = MODELS[name]
    return build_model(name, shape, CLASSES, seed=1, **options)


def samples(name, count):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, *MODELS[name][0]), dtype=np.float32)
    return x, rng.integers(0, CLASSES, count)


@pytest.mark.parametrize("name", MODELS)
def test_a_loss_has_the_same_bits_whatever_is_scored_beside_it(name):
    # Sites score their samples alone, the local engine those of all clients together.
    x, y = samples(name, 80)
    trainer = TorchTrainer(lambda: build(name), batch_size=8)
    params = trainer.model.read()
    with one_thread():
        together, _ = trainer.predict(params, x, y)
        for count in (*range(1, 20), 33):
            for first in (0, 14, 41):
                part = slice(first, first + count)
                alone, _ = trainer.predict(params, x[part], y[part])
                np.testing.assert_array_equal(alone, together[part])


class Shifted(nn.Module):
    """A net behind numbers that nothing uses, which shift its layers in the flat vector."""

    def __init__(self, name, unused):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(unused))
        self.net = build(name)

    def forward(self, x):
        return self.net(x)


def shifted(array, offset):
    """Return a copy that begins so many numbers after the beginning of a page of memory."""
    room = np.empty(array.nbytes + 8192, np.uint8)
    start = -room.ctypes.data % 4096 + offset * array.itemsize
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize("name", ["logistic", "mlp", "lenet5"])
def test_training_has_the_same_bits_wherever_its_arrays_lie_in_memory(name):
    x, y = samples(name, 18)
    task = work(client=0, round=1, epochs=1, learning_rate=0.05)
    first = FlatModel(build(name)).read()
    trained, scored = set(), set()
    for offset in range(64):
        trainer = TorchTrainer(lambda offset=offset: Shifted(name, offset), 9, momentum=0.9)
        params = np.concatenate((np.zeros(offset, np.float32), first))
        with one_thread():
            after, _ = trainer.train(
                shifted(params, 11 * offset % 64),
                shifted(x, 5 * offset % 64),
                y,
                task,
                stream(3, "train"),
            )
            losses, _ = trainer.predict(after, shifted(x, 7 * offset % 64), y)
        trained.add(after[offset:].tobytes())
        scored.add(losses.tobytes())
    assert len(trained) == len(scored) == 1
    assert first.tobytes() not in trained


with_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch without MKL")


def without_setting(**more):
    """Return the environment without what the import of flamma has set in this process."""
    kept = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    return kept | {"PYTHONPATH": os.pathsep.join(sys.path)} | more


@with_mkl
def test_both_hold_with_the_code_for_processors_without_avx512():
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", __file__, "-k", "same_bits"]
    environment = without_setting(MKL_ENABLE_INSTRUCTIONS="AVX2")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


SCRIPT = """
import sys
import torch
import flamma
flamma.run(
    {"data": {"train_samples": 60, "validation_samples": 0}},
    out=sys.argv[1], model="logistic", rounds=1, clients=3, per_round=2, processes=2,
    training__trainer="torch", engine__name=sys.argv[2],
)
"""


@with_mkl
@pytest.mark.parametrize(
    ("engine", "chosen"),
    [
        ("local", None),
        ("local", "COMPATIBLE"),
        pytest.param("flower", None, marks=pytest.mark.slow),
    ],
)
def test_every_process_multiplies_in_the_strict_mode_unless_the_user_chose(
    tmp_path, engine, chosen
):
    log = tmp_path / "log"
    environment = without_setting(MKL_VERBOSE="1", MKL_VERBOSE_OUTPUT_FILE=str(log))
    if chosen:
        environment["MKL_CBWR"] = chosen
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), engine]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    modes = re.findall(r"CNR:(\S+)", log.read_text())
    assert len(modes) > 4
    assert set(modes) == {chosen or "AUTO,STRICT"}
