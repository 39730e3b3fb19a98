"""What a bug report needs to know of a machine and of what is installed on it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import flamma
from flamma.cli.installation import installed_as
from flamma.distribution import DISTRIBUTION
from flamma.errors import FlammaError
from flamma.extras import PURPOSES, install_command, missing_packages

FactTable = dict[str, Any]

COMPILERS = ("c++", "g++", "clang++", "cl")
"""The compilers that are looked for, after those that ``CXX`` and ``CC`` name."""

COMPILER_SECONDS = 10
"""Seconds that a compiler has to tell its version."""

ENVIRONMENT = (
    "FLAMMA_DATA",
    "FLAMMA_LANES",
    "OMP_NUM_THREADS",
    "MKL_CBWR",
    "CUDA_VISIBLE_DEVICES",
)
"""The environment variables that change what FLamma does; no others are told."""

SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps shared memory, through which worker processes receive weights."""


def diagnosis(data_dir: Path | None = None) -> dict[str, FactTable]:
    """Return what is known of this machine, by topic; what cannot be found out says why."""
    topics: dict[str, Callable[[], FactTable]] = {
        "extras": extras,
        "flamma": lambda: {"version": flamma.__version__, "installed": installed_as()},
        "python": _python,
        "packages": packages,
        "processor": _processor,
        "compiler": compiler,
        "lanes": lanes,
        "devices": devices,
        "memory": _memory,
        "disk": lambda: _disk(data_dir),
        "data": lambda: _data(data_dir),
        "environment": lambda: {name: os.environ.get(name) for name in ENVIRONMENT},
    }
    return {topic: _asked(facts) for topic, facts in topics.items()}


def _asked(facts: Callable[[], FactTable]) -> FactTable:
    """Return some facts; whatever may be broken here must not hide the others."""
    try:
        return facts()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def _python() -> FactTable:
    return {
        "version": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "system": platform.platform(),
    }


def extras() -> FactTable:
    """Return of each extra what it is for, the packages that are missing, and how to install it."""
    version(DISTRIBUTION)  # whose metadata name the extras
    found: FactTable = {}
    for extra, purpose in PURPOSES.items():
        missing, install = missing_packages(extra), install_command(extra)
        found[extra] = {
            "purpose": purpose,
            "complete": not missing,
            "missing": missing,
            "install": install,
        }
    return found


def packages() -> FactTable:
    """Return the version of every package that FLamma uses, None for one that is not installed."""
    found: FactTable = {}
    for line in requires(DISTRIBUTION) or []:
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if not re.search(r"""extra == ['"]dev['"]""", line):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = None
    return dict(sorted(found.items()))


def _processor() -> FactTable:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": _processor_model(),
        "cores": os.cpu_count(),
        "usable_cores": usable,
        "open_files": _open_files(),
    }


def _open_files() -> int | None:
    """Return how many files a process may have open, None where there is no such limit."""
    try:
        import resource
    except ImportError:  # as on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _processor_model() -> str:
    """Return the name of the processor; Python itself knows only its architecture on Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return f"{named[1]}, {platform.machine()}" if named else platform.machine()


def compiler() -> FactTable:
    """Return the C++ compiler that would build the lanes, and its version."""
    wanted = [os.environ.get("CXX", "").split(" ")[0], os.environ.get("CC", "").split(" ")[0]]
    found = next((path for name in (*wanted, *COMPILERS) if (path := shutil.which(name))), None)
    if found is None:
        return {"path": None, "version": None}
    told = subprocess.run(
        [found, "--version"], capture_output=True, timeout=COMPILER_SECONDS, check=False
    )
    lines = told.stdout.decode(errors="replace").splitlines()
    return {"path": found, "version": lines[0] if lines else None}


def lanes() -> FactTable:
    """Return whether the compiled trainer can be used, and which instruction sets it has."""
    from flamma.training.lanes.library import chosen_set, instruction_sets, why_not

    if missing := why_not():
        return {"available": False, "why_not": missing, "instruction_sets": [], "used": None}
    try:
        used, wrong = chosen_set(), None
    except FlammaError as error:
        used, wrong = None, str(error)
    sets = list(instruction_sets())
    return {"available": True, "why_not": wrong, "instruction_sets": sets, "used": used}


def devices() -> FactTable:
    """Return the devices on which torch can train here."""
    from flamma.training.devices import device_facts

    return device_facts()


def _memory() -> FactTable:
    import psutil

    memory = psutil.virtual_memory()
    shared = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None
    return {
        "total_bytes": memory.total,
        "free_bytes": memory.available,
        "shared_free_bytes": shared,
    }


def _disk(data_dir: Path | None) -> FactTable:
    from flamma.data.store import data_folder

    places = {"here": Path.cwd(), "data": data_folder(data_dir)}
    return {f"{name}_free_bytes": _free(place) for name, place in places.items()}


def _free(place: Path) -> int:
    """Return the free bytes where a folder is or, if it is not there yet, would be."""
    whole = place.absolute()
    existing = next(parent for parent in (whole, *whole.parents) if parent.exists())
    return shutil.disk_usage(existing).free


def _data(data_dir: Path | None) -> FactTable:
    from flamma.data.datasets import DATASETS, availability
    from flamma.data.store import data_folder

    found: FactTable = {"folder": str(data_folder(data_dir))}
    for name in DATASETS:
        try:
            found[name] = availability(name, data_dir)
        except FlammaError as error:
            found[name] = str(error)
    return found
