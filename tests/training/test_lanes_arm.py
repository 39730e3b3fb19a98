"""The kernels compiled for ARM, run by an emulator where there is one, against this processor."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import flamma.training.lanes

HOME = Path(flamma.training.lanes.__file__).parent
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi", f"-I{HOME}"]
OF_SOURCE = {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f"]}
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, ("g++", CROSS, EMULATOR))),
        reason=f"needs g++, {CROSS} and {EMULATOR}",
    ),
]


def hashes(folder, compiler, own_flags, command):
    """Return what the program prints: a hash for every instruction set."""
    folder.mkdir()

    def compiled(source):
        target = folder / f"{source.stem}.o"
        flags = [*FLAGS, *own_flags.get(source.stem, [])]
        subprocess.run([compiler, *flags, "-c", source, "-o", target], check=True)
        return target

    sources = [HOME / f"{name}.cpp" for name in ("kernels", "portable", "avx2", "avx512")]
    with ThreadPoolExecutor(2) as threads:
        objects = list(threads.map(compiled, [*sources, Path(__file__).parent / "lanes_bits.cpp"]))
    program = folder / "program"
    subprocess.run([compiler, "-static", *objects, "-o", program], check=True)
    done = subprocess.run([*command, program], check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_arm_gives_the_bits_of_this_processor(tmp_path):
    own = hashes(tmp_path / "own", "g++", OF_SOURCE, [])
    arm = hashes(tmp_path / "arm", CROSS, {}, [EMULATOR])
    assert len(arm) == 1
    assert {*own, *arm} == set(arm)
