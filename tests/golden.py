"""Hashes of what every strategy computes, held to ``golden.json``.

    python tests/golden.py            # print every row that differs; exit code 1 if one does
    python tests/golden.py --write    # write golden.json: the commit names the reason and the rows

A row of a suite has the hash of the texts of all its runs' configurations, which are the runs'
identities. A row of a run has the SHA-256 of its final weights and that of ``clients.csv``, which
covers the clients' personal models. All runs train in lanes, so the hashes are those of every
machine. What lanes do not train (next token, regression, layers with dropout) is in torch_rows.py.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import flamma
from flamma.aggregators import AGGREGATORS
from flamma.experiments.suite import read_suite, suite_names
from flamma.game import Game, solve
from flamma.records import RoundRecord
from flamma.strategies import STRATEGIES

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FILE = Path(__file__).with_name("golden.json")

COMMON: dict[str, Any] = {
    "rounds": 6,
    "per_round": 3,
    "seed": 0,
    "data": {
        "dataset": "digits",
        "split": "dirichlet",
        "alpha": 0.5,
        "clients": 10,
        "validation_samples": 100,
    },
    "model": "lenet5",
    "training": {"epochs": 2, "batch_size": 32, "learning_rate": 0.05, "trainer": "lanes"},
    "costs": {"kind": "lognormal", "value": 0.1, "spread": 0.5},
    "engine": {"processes": 1},
}
TWO_PROCESSES = ("fedavg", "scaffold", "mifa", "cffl", "flamma", "flamma-plus")
GAMES = 1000


def config(table: dict[str, Any]) -> dict[str, Any]:
    """Return the common configuration with the keys of a table over its own."""
    merged = COMMON | table
    if "engine" in table:
        merged["engine"] = COMMON["engine"] | table["engine"]
    return merged


def hashes(run: flamma.Run) -> str:
    assert run.about["trainer"] == "lanes"
    assert run.params_sha256 is not None
    scores = hashlib.sha256((run.path / "clients.csv").read_bytes()).hexdigest()
    return f"{run.params_sha256} {scores}"


def trained(path: Path, table: dict[str, Any]) -> str:
    return hashes(flamma.run(config(table), out=path, progress=False))


class StopAfter(flamma.Callback):
    """Interrupts a run after a round, as Ctrl-C does."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.last:
            raise KeyboardInterrupt


def resumed(path: Path) -> str:
    with contextlib.suppress(KeyboardInterrupt):
        flamma.run(config({"strategy": "flamma-plus"}), out=path, callbacks=[StopAfter(3)])
    assert not flamma.Run.load(path).finished
    return hashes(flamma.resume(path))


def all_rows() -> dict[str, Callable[[Path], str]]:
    """Return what computes each row, given a folder that does not exist yet."""
    honest = {
        "strategy": "flamma-honest",
        "behaviours": {
            "cost-liar": {"clients": [1], "factor": 0.5},
            "epoch-faker": {"clients": [4]},
        },
    }
    aggregators: dict[str, Any] = {name: name for name in AGGREGATORS}
    aggregators["multi-krum"] = {"name": "multi-krum", "kept": 2}  # it keeps all three by default
    clock = {"speeds": {"name": "lognormal", "spread": 1.0}}
    tables: dict[str, dict[str, Any]] = {
        **{f"strategy {name}": {"strategy": name} for name in STRATEGIES},
        **{
            f"aggregator {name}": {"strategy": {"name": "fedavg", "aggregator": given}}
            for name, given in aggregators.items()
        },
        **{
            f"two processes {name}": {"strategy": name, "engine": {"processes": 2}}
            for name in TWO_PROCESSES
        },
        "dropout": {"strategy": "flamma-plus", "faults": {"dropout": 0.3}},
        "virtual clock with fedbuff": {"strategy": "fedbuff", "clock": clock},
        "flamma-honest with two deviating clients": honest,
    }
    rows = {name: partial(trained, table=table) for name, table in tables.items()}
    suites = [*suite_names(), *sorted(BENCHMARKS.glob("*.toml"))]
    texts = {f"suite {Path(s).stem}": partial(configurations, suite=str(s)) for s in suites}
    return {"games": games, "resumed after round 3": resumed, **rows, **texts}


def games(_: Path) -> str:
    """Return the hash of the decay factors and epochs of many random games."""
    rng = np.random.default_rng(2025)
    digest = hashlib.sha256()
    for number in range(GAMES):
        clients = int(rng.integers(1, 12))
        game = Game(
            np.round(rng.uniform(0, 1, clients), 3),
            np.round(rng.uniform(0.01, 1, clients), 3),
            round=int(rng.integers(1, 60)),
            price=float(np.round(rng.uniform(0, 2), 2)),
            epoch_bounds=(int(rng.integers(0, 2)), int(rng.integers(2, 11))),
            whole_epochs=bool(number % 2),
        )
        found = solve(game)
        digest.update(np.float64(found.decay_factor).tobytes())
        digest.update(np.asarray(found.local_epochs, dtype=np.float64).tobytes())
    return digest.hexdigest()


def configurations(_: Path, suite: str) -> str:
    cells = read_suite(suite).cells()
    texts = sorted(f"{cell.folder.as_posix()}\n{cell.config.as_toml()}" for cell in cells)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


ROWS = all_rows()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write golden.json anew")
    options = parser.parse_args()
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, row in ROWS.items():
            found[name] = row(Path(folder) / name.replace(" ", "-"))
            print(f"{found[name][:8]}  {name}", file=sys.stderr)
    if options.write:
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    differ = sorted(name for name in kept.keys() | found if kept.get(name) != found.get(name))
    print("\n".join(differ) if differ else f"all {len(kept)} rows are the same")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
