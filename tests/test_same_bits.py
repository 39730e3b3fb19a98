"""Runs give the same bits whatever the processor, as far as one machine can pretend to be others.

Libraries choose their code by the processor. Each of them can be told to take an old one for it:
numpy by the features it may not use, OpenBLAS by the name of a core, the C library by its tunables,
torch by its level of vectorisation, and our own kernels by the name of an instruction set.
"""

import json
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from flamma.training import lanes

SCRIPT = Path(__file__).with_name("run_hashes.py")


def numpy_features() -> str:
    """Return the features that numpy chooses code by and that this processor has."""
    core = np._core if hasattr(np, "_core") else np.core
    has = core._multiarray_umath.__cpu_features__
    return " ".join(name for name in core._multiarray_umath.__cpu_dispatch__ if has.get(name))


def libc_tunables() -> str:
    """Return the tunables that keep the C library from using wide registers and fused products."""
    name, version = platform.libc_ver()
    if name != "glibc":
        return ""
    suffix = "" if tuple(map(int, version.split(".")[:2])) >= (2, 33) else "_Usable"
    features = ("AVX2", "FMA", "FMA4", "AVX512F")
    return "glibc.cpu.hwcaps=" + ",".join(f"-{feature}{suffix}" for feature in features)


ENVIRONMENTS = {
    "plain": {},
    "numpy": {"NPY_DISABLE_CPU_FEATURES": numpy_features()},
    "blas": {"OPENBLAS_CORETYPE": "Nehalem"},
    "libc": {"GLIBC_TUNABLES": libc_tunables()},
    "torch": {"ATEN_CPU_CAPABILITY": "default"},
}
ALL_OLD = {name: value for settings in ENVIRONMENTS.values() for name, value in settings.items()}


SETS = lanes.instruction_sets() if lanes.available() else ()
"""The instruction sets of the kernels that this machine has."""


@cache
def result(what: str, settings: tuple[tuple[str, str], ...]) -> dict[str, dict[str, str]]:
    environment = dict(os.environ)
    for name in (*ALL_OLD, "FLAMMA_LANES"):
        environment.pop(name, None)
    environment |= {name: value for name, value in settings if value}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), what],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def same(what: str, environment: dict[str, str], instruction_set: str) -> None:
    plain = result(what, ())
    other = result(what, (*environment.items(), ("FLAMMA_LANES", instruction_set)))
    assert {run["trainer"] for run in plain.values()} == {"lanes"}
    assert other == plain


pytestmark = pytest.mark.skipif(not lanes.available(), reason="only lanes give the same bits")


@pytest.mark.parametrize("instruction_set", SETS)
def test_runs_have_the_same_bits_with_every_instruction_set(instruction_set):
    same("short", {}, instruction_set)


def test_runs_have_the_same_bits_with_the_code_for_old_processors():
    same("short", ALL_OLD, SETS[-1])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["runs", "suite"])
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", list(ENVIRONMENTS))
def test_runs_and_the_quick_suite_have_the_same_bits(what, instruction_set, name):
    settings = ENVIRONMENTS[name]
    if settings and not all(settings.values()):
        pytest.skip(f"{name} cannot be told here to use the code for old processors")
    same(what, settings, instruction_set)
