import hashlib
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from flamma.models import build_model
from flamma.models.initial import same_initial_weights

SCRIPT = """
import hashlib
from flamma.models import build_model
weights = b"".join(p.detach().numpy().tobytes() for p in %s.parameters())
print(hashlib.sha256(weights).hexdigest())
"""


def test_first_weights_do_not_depend_on_how_torch_is_vectorised():
    built = 'build_model("lenet5", (1, 28, 28), 10, seed=3)'
    here = weights_hash(build_model("lenet5", (1, 28, 28), 10, seed=3))
    environment = os.environ | {
        "ATEN_CPU_CAPABILITY": "default",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT % built],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == here


def weights_hash(model):
    content = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(content).hexdigest()


def test_uniform_weights_are_torchs_but_for_rounding():
    torch.manual_seed(0)
    theirs = nn.Linear(300, 200).weight
    torch.manual_seed(0)
    with same_initial_weights():
        ours = nn.Linear(300, 200).weight
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-8)
    assert ours.requires_grad


def test_normal_weights_are_normal_and_keep_to_their_generator():
    generator = torch.Generator().manual_seed(1)
    with same_initial_weights():
        drawn = torch.empty(100, 200).normal_(2.0, 0.5, generator=generator)
        double = torch.empty(3, dtype=torch.float64).normal_()
    assert drawn.mean().item() == pytest.approx(2.0, abs=0.02)
    assert drawn.std().item() == pytest.approx(0.5, abs=0.02)
    assert double.dtype == torch.float64
    with same_initial_weights():
        again = torch.empty(100, 200).normal_(2.0, 0.5, generator=generator.manual_seed(1))
    assert torch.equal(drawn, again)


def test_torch_is_as_before_outside_the_scope():
    torch.manual_seed(0)
    before = torch.empty(100).normal_()
    with same_initial_weights():
        torch.empty(3).uniform_()
    torch.manual_seed(0)
    assert torch.equal(before, torch.empty(100).normal_())
