"""``flamma list``: what there is to choose from, and the options of each."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import flamma
from flamma.cli.console import print_json
from flamma.cli.parser import Parser
from flamma.errors import ConfigError, FlammaError
from flamma.extras import DISTRIBUTION, PURPOSES, install_command, missing_packages
from flamma.io import JsonTable, unknown

if TYPE_CHECKING:
    from flamma.registry import Option

    _Lines = Mapping[str, Mapping[str, str]]
    _Options = Mapping[tuple[str, str], Mapping[str, Option]]


def register_list(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma list`` to the command line."""
    parser = commands.add_parser(
        "list",
        help="strategies, datasets, models, splits, metrics and the other parts of a run",
        description="What a run can be made of, with one line each; other packages' included.",
    )
    parser.add_argument(
        "kind", nargs="?", default="", metavar="KIND", help="only these: strategies, datasets, ..."
    )
    parser.add_argument("--options", action="store_true", help="show the options of each, too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--schema",
        choices=["run", "suite"],
        help="print a JSON Schema of the file of a run or a suite, for editors",
    )
    parser.set_defaults(run=_run_list)


def _run_list(options: argparse.Namespace) -> None:
    """Run ``flamma list``."""
    from flamma.experiments.parts import PARTS, own_options
    from flamma.experiments.suite import suite_names

    if options.schema:
        from flamma.experiments.schema import SCHEMAS

        print(json.dumps(SCHEMAS[options.schema](), indent=1, ensure_ascii=False))
        return
    found = {part.name: part.lines() for part in PARTS}
    found["suites"] = dict.fromkeys(suite_names(), "for flamma compare")
    if options.kind:
        # A word names the kind that it is or begins, such as "contribution".
        begun = [kind for kind in found if kind.startswith(options.kind.casefold())]
        if len(begun) != 1:
            raise ConfigError(unknown("kind", options.kind, list(found)))
        found = {begun[0]: found[begun[0]]}
    keys = {
        (part.name, name): own_options(entry) for part in PARTS for name, entry in part.entries()
    }
    if options.json:
        print_json(_detailed(found, keys) if options.options else found)
    else:
        print(_text(found, keys if options.options else {}))


def _detailed(found: _Lines, keys: _Options) -> dict[str, dict[str, JsonTable]]:
    """Return what ``--options --json`` prints."""
    from flamma.strategies import family_of

    detailed: dict[str, dict[str, JsonTable]] = {
        kind: {
            name: {"about": line, "options": _json_options(keys.get((kind, name), {}))}
            for name, line in lines.items()
        }
        for kind, lines in found.items()
    }
    for name, told in detailed.get("strategies", {}).items():
        told["family"] = family_of(name)
    return detailed


def _text(found: _Lines, keys: _Options) -> str:
    """Return a block for every kind, and for every family of strategies."""
    from flamma.experiments.parts import PARTS
    from flamma.strategies import FAMILIES

    width = max(len(name) for lines in found.values() for name in lines)
    groups = [(part.name, *group) for part in PARTS for group in part.groups().items()]
    groups.append(("suites", "", list(found.get("suites", {}))))
    blocks = []
    for kind, family, names in groups:
        if kind not in found:
            continue
        block = [f"{kind}: {family} ({FAMILIES[family]})" if family else kind]
        for name in names:
            block.append(f"  {name.ljust(width)}  {found[kind][name]}")
            block += _option_lines(keys.get((kind, name), {}), width)
        blocks.append("\n".join(block))
    return "\n\n".join(blocks)


def _option_lines(options: Mapping[str, Option], width: int) -> list[str]:
    from flamma.experiments.parts import option_row

    rows = [option_row(option) for option in options.values()]
    return [
        f"  {''.ljust(width)}    {name} = {default}: {text.replace('``', '')}"
        for name, _, default, text in rows
    ]


def _json_options(options: Mapping[str, Option]) -> dict[str, dict[str, str]]:
    from flamma.experiments.parts import option_row

    rows = [option_row(option) for option in options.values()]
    return {name: {"type": kind, "default": d, "help": h} for name, kind, d, h in rows}


# Where this copy of FLamma is installed, and how to install one.

_INSTALL = "pip install -c constraints.txt '.[report]'"
"""The command that installs FLamma, in a copy of its repository."""


def how_to_install() -> str:
    """Return the sentence that says how to install it while no package index has it."""
    return (
        f"There is no release on a package index yet: install from a copy of the source, {_INSTALL}"
    )


def installed_as() -> str:
    """Return where the package is, and what it was installed from, as a line."""
    place = Path(flamma.__file__).parent
    try:
        origin = _source_of(distribution(DISTRIBUTION))
    except PackageNotFoundError:
        origin = "not installed, used from its source"
    return f"in {place} ({origin})"


def _source_of(package: Distribution) -> str:
    """Return what an installed package was installed from, as ``pip`` recorded it."""
    try:
        table = json.loads(package.read_text("direct_url.json") or "")
        url, editable = str(table["url"]), bool(table.get("dir_info", {}).get("editable"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "installed from a package index or by hand"
    parts = urlparse(url)
    # Without the user's name and password, which a URL may have.
    where = unquote(parts.path if parts.scheme == "file" else f"{parts.hostname}{parts.path}")
    return f"installed from {where}{', editable' if editable else ''}"


# What a bug report needs to know of a machine and of what is installed on it.

_FactTable = JsonTable

_COMPILERS = ("c++", "g++", "clang++", "cl")
"""The compilers that are looked for, after those that ``CXX`` and ``CC`` name."""

_COMPILER_SECONDS = 10
"""Seconds that a compiler has to tell its version."""

_ENVIRONMENT = (
    "FLAMMA_DATA",
    "FLAMMA_LANES",
    "OMP_NUM_THREADS",
    "MKL_CBWR",
    "CUDA_VISIBLE_DEVICES",
)
"""The environment variables that change what FLamma does; no others are told."""

_SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps shared memory, through which worker processes receive weights."""


def _diagnosis(data_dir: Path | None = None) -> dict[str, _FactTable]:
    """Return what is known of this machine, by topic; what cannot be found out says why."""
    topics: dict[str, Callable[[], _FactTable]] = {
        "extras": _extras,
        "flamma": lambda: {"version": flamma.__version__, "installed": installed_as()},
        "python": _python,
        "packages": _packages,
        "processor": _processor,
        "compiler": _compiler,
        "lanes": _lanes,
        "devices": _devices,
        "memory": _memory,
        "disk": lambda: _disk(data_dir),
        "data": lambda: _data(data_dir),
        "environment": lambda: {name: os.environ.get(name) for name in _ENVIRONMENT},
    }
    return {topic: _asked(facts) for topic, facts in topics.items()}


def _asked(facts: Callable[[], _FactTable]) -> _FactTable:
    """Return some facts; whatever may be broken here must not hide the others."""
    try:
        return facts()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def _python() -> _FactTable:
    return {
        "version": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "system": platform.platform(),
    }


def _extras() -> _FactTable:
    """Return of each extra what it is for, the packages that are missing, and how to install it."""
    version(DISTRIBUTION)  # whose metadata name the extras
    found: _FactTable = {}
    for extra, purpose in PURPOSES.items():
        missing, install = missing_packages(extra), install_command(extra)
        found[extra] = {
            "purpose": purpose,
            "complete": not missing,
            "missing": missing,
            "install": install,
        }
    return found


def _packages() -> _FactTable:
    """Return the version of every package that FLamma uses, None for one that is not installed."""
    found: _FactTable = {}
    for line in requires(DISTRIBUTION) or []:
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if not re.search(r"""extra == ['"]dev['"]""", line):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = None
    return dict(sorted(found.items()))


def _processor() -> _FactTable:
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


def _compiler() -> _FactTable:
    """Return the C++ compiler that would build the lanes, and its version."""
    wanted = [os.environ.get("CXX", "").split(" ")[0], os.environ.get("CC", "").split(" ")[0]]
    found = next((path for name in (*wanted, *_COMPILERS) if (path := shutil.which(name))), None)
    if found is None:
        return {"path": None, "version": None}
    told = subprocess.run(
        [found, "--version"], capture_output=True, timeout=_COMPILER_SECONDS, check=False
    )
    lines = told.stdout.decode(errors="replace").splitlines()
    return {"path": found, "version": lines[0] if lines else None}


def _lanes() -> _FactTable:
    """Return whether the compiled trainer can be used, and which instruction sets it has."""
    from flamma.training.lanes.library import chosen_set, instruction_sets, unavailable_reason

    if missing := unavailable_reason():
        return {"available": False, "why_not": missing, "instruction_sets": [], "used": None}
    try:
        used, wrong = chosen_set(), None
    except FlammaError as error:
        used, wrong = None, str(error)
    sets = list(instruction_sets())
    return {"available": True, "why_not": wrong, "instruction_sets": sets, "used": used}


def _devices() -> _FactTable:
    """Return the devices on which torch can train here."""
    from flamma.training.devices import device_facts

    return device_facts()


def _memory() -> _FactTable:
    import psutil

    memory = psutil.virtual_memory()
    shared = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else None
    return {
        "total_bytes": memory.total,
        "free_bytes": memory.available,
        "shared_free_bytes": shared,
    }


def _disk(data_dir: Path | None) -> _FactTable:
    from flamma.data.fetch import data_folder

    found: _FactTable = {}
    for name, place in {"here": Path.cwd(), "data": data_folder(data_dir).absolute()}.items():
        # A folder that is not there yet would be on the disk of the nearest one that is.
        existing = next(parent for parent in (place, *place.parents) if parent.exists())
        found[f"{name}_free_bytes"] = shutil.disk_usage(existing).free
    return found


def _data(data_dir: Path | None) -> _FactTable:
    from flamma.data.datasets import DATASETS, availability
    from flamma.data.fetch import data_folder

    found: _FactTable = {"folder": str(data_folder(data_dir))}
    for name in DATASETS:
        try:
            found[name] = availability(name, data_dir)
        except FlammaError as error:
            found[name] = str(error)
    return found


# ``flamma doctor``: what a bug report needs to know of this machine, and what is amiss on it.

_LEAST_BYTES = {
    ("memory", "free_bytes"): (1 << 30, "memory"),
    ("memory", "shared_free_bytes"): (1 << 27, "shared memory (/dev/shm)"),
    ("disk", "here_free_bytes"): (1 << 30, "space on this disk"),
    ("disk", "data_free_bytes"): (1 << 30, "space on the disk of the datasets"),
}
"""Less than this is told as a problem, in these words."""

_LEAST_OPEN_FILES = 256
"""Fewer files that may be open than this are told as a problem."""


def register_doctor(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma doctor`` to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="versions, compiler, devices, data and disk, for bug reports",
        description="Tell what is installed, what this machine has, and what is amiss.",
        epilog="Copy what it prints into a bug report. It tells no user names beyond those in "
        "paths, and no environment variables beyond those that it names.",
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where datasets are kept")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=_run_doctor)


def _run_doctor(options: argparse.Namespace) -> None:
    """Run ``flamma doctor``."""
    found = _diagnosis(options.data_dir)
    amiss = _problems(found)
    if options.json:
        print_json({**found, "problems": amiss})
        return
    for topic, facts in found.items():
        print(topic)
        for name, value in facts.items():
            # Names of environment variables stay as they are.
            label = name if name.isupper() else name.replace("_", " ").removesuffix(" bytes")
            print(f"  {label:<20}  {_doctor_text(name, value)}")
    print("\n" + "\n".join([f"- {text}" for text in amiss] or ["Nothing is wrong with the core."]))
    extras = found["extras"].items()
    if missing := [name for name, extra in extras if name != "error" and extra["missing"]]:
        print(f"Extras that are not installed (see above): {', '.join(missing)}.")


def _problems(found: dict[str, JsonTable]) -> list[str]:
    """Return what is amiss, a sentence each that says what to do."""
    from flamma.reports.document import byte_size

    told = [f"{topic}: {facts['error']}." for topic, facts in found.items() if "error" in facts]
    lanes = found["lanes"]
    if why := lanes.get("why_not"):
        told.append(f"The compiled trainer is not used: {why}")
    for (topic, name), (least, what) in _LEAST_BYTES.items():
        free = found[topic].get(name)
        if free is not None and free < least:
            told.append(f"There is little {what} left: {byte_size(free)}.")
    files = found["processor"].get("open_files")
    if files is not None and files < _LEAST_OPEN_FILES:
        told.append(f"Only {files} files may be open at a time: allow more by `ulimit -n`.")
    return told


def _doctor_text(name: str, value: Any) -> str:
    from flamma.reports.document import byte_size

    if value is None or value == []:
        return "none"
    if isinstance(value, dict):
        missing = f"missing {', '.join(value['missing'])}: {value['install']}"
        return f"{value['purpose']:<46}{'complete' if value['complete'] else missing}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return byte_size(value) if name.endswith("bytes") else str(value)
