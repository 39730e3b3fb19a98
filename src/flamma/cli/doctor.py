"""``flamma doctor``: what a bug report needs to know of this machine, and what is amiss on it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flamma.cli.parser import Parser

LEAST_BYTES = {
    ("memory", "free_bytes"): (1 << 30, "memory"),
    ("memory", "shared_free_bytes"): (1 << 27, "shared memory (/dev/shm)"),
    ("disk", "here_free_bytes"): (1 << 30, "space on this disk"),
    ("disk", "data_free_bytes"): (1 << 30, "space on the disk of the datasets"),
}
"""Less than this is told as a problem, in these words."""

LEAST_OPEN_FILES = 256
"""Fewer files that may be open than this are told as a problem."""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
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
    parser.set_defaults(run=run_doctor)


def run_doctor(options: argparse.Namespace) -> None:
    """Run ``flamma doctor``."""
    from flamma.cli.diagnosis import diagnosis

    found = diagnosis(options.data_dir)
    amiss = problems(found)
    if options.json:
        import json

        print(json.dumps({**found, "problems": amiss}, indent=2, allow_nan=False))
        return
    for topic, facts in found.items():
        print(topic)
        for name, value in facts.items():
            print(f"  {_label(name):<20}  {_text(name, value)}")
    print("\n" + "\n".join([f"- {text}" for text in amiss] or ["Nothing is wrong with the core."]))
    extras = found["extras"].items()
    if missing := [name for name, extra in extras if name != "error" and extra["missing"]]:
        print(f"Extras that are not installed (see above): {', '.join(missing)}.")


def problems(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return what is amiss, a sentence each that says what to do."""
    from flamma.reports.document import byte_size

    told = [f"{topic}: {facts['error']}." for topic, facts in found.items() if "error" in facts]
    lanes = found["lanes"]
    if why := lanes.get("why_not"):
        told.append(f"The compiled trainer is not used: {why}")
    for (topic, name), (least, what) in LEAST_BYTES.items():
        free = found[topic].get(name)
        if free is not None and free < least:
            told.append(f"There is little {what} left: {byte_size(free)}.")
    files = found["processor"].get("open_files")
    if files is not None and files < LEAST_OPEN_FILES:
        told.append(f"Only {files} files may be open at a time: allow more by `ulimit -n`.")
    return told


def _label(name: str) -> str:
    """Return a fact's name as people read it; names of environment variables stay."""
    return name if name.isupper() else name.replace("_", " ").removesuffix(" bytes")


def _text(name: str, value: Any) -> str:
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
