"""The optional part that must be compiled; everything else is in pyproject.toml.

Without a compiler the package installs all the same, and trains with PyTorch alone.
"""

from __future__ import annotations

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HOME = "src/flamma/training/lanes"
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi", "-g0"]
QUIET = "-Wno-maybe-uninitialized"  # warnings that some compilers have of their own headers
X86 = platform.machine().lower() in {"x86_64", "amd64"}
OF_SOURCE = {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", QUIET]} if X86 else {}
"""Flags of the sources that are only called where the processor knows these instructions."""


class BuildLanes(build_ext):
    """Compiles every source with its own flags."""

    def build_extension(self, extension: Extension) -> None:
        """Compile and link the only extension there is."""

        def compiled(source: str) -> list[str]:
            return self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                extra_postargs=FLAGS + OF_SOURCE.get(Path(source).stem, []),
                depends=extension.depends,
            )

        # The first one alone, so that it finds out whether there is a compiler at all.
        first, *others = extension.sources
        objects = compiled(first)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            objects += sum(threads.map(compiled, others), [])  # noqa: RUF017 - three short ones
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(extension.name),
            build_temp=self.build_temp,
            target_lang="c++",
        )


setup(
    ext_modules=[
        Extension(
            "flamma.training.lanes._kernels",
            sources=[f"{HOME}/{name}.cpp" for name in ("kernels", "portable", "avx2", "avx512")],
            depends=[str(path) for path in sorted(Path(HOME).glob("*.hpp"))],
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLanes},
)
