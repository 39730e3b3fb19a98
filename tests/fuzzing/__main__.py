"""Runs all fuzzers for some time each, and tells how many inputs they tried.

python -m fuzzing [--seconds N] [--seed N] [NAME ...]     with tests/ on the path: make fuzz
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import time
from pathlib import Path

HELPERS = ("oracle", "__main__")


def names() -> list[str]:
    """Return the fuzzers: the modules of this package that have a ``fuzz``."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in found if module.name not in HELPERS)


def main() -> None:
    """Run the fuzzers that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=names())
    parser.add_argument("--seconds", type=float, default=60, help="for each fuzzer")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    total = 0
    for name in options.names:
        fuzzer = importlib.import_module(f"fuzzing.{name}")
        print(f"{name}: ", end="", flush=True)
        count = fuzzer.fuzz(options.seed, options.seconds)
        print(f"{count} inputs", flush=True)
        total += count
    print(f"{total} inputs with seed {options.seed}, none failing")


if __name__ == "__main__":
    main()
