"""What PyTorch trains: the same bits on one machine, before and after a change.

    python tests/torch_rows.py                    # hashes and scores of this tree, as JSON
    python tests/torch_rows.py --against REVISION # the same of a revision too, and what differs

Across machines these bits differ, so ``torch_rows.json`` has scores only (``--write``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import flamma
from flamma.data import from_arrays

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_suffix(".json")
Row = dict[str, Any]

COMMON: Row = {
    "rounds": 4,
    "per_round": 3,
    "seed": 0,
    "data": {"dataset": "digits", "split": "shards", "clients": 6},
    "training": {"epochs": 2, "batch_size": 32, "learning_rate": 0.05, "trainer": "torch"},
    "engine": {"processes": 1},
    "strategy": "flamma",
}


PRIVACY = {"noise_multiplier": 0.3, "clip": 1.0}


def batch_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 5, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * ((shape[1] - 3) // 2) * ((shape[2] - 3) // 2), classes),
    )


def dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    inputs = int(np.prod(shape))
    layers = (nn.Linear(inputs, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, classes))
    return nn.Sequential(nn.Flatten(), *layers)


def lookup(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(classes, 16), nn.Linear(16, classes))


def result(run: flamma.Run) -> Row:
    assert run.about["trainer"] != "lanes"
    evaluation = run.history[-1].evaluation
    assert evaluation is not None
    return {"weights": run.params_sha256, "score": evaluation.metrics["accuracy"]}


def on_digits(path: Path, own: Row, **given: Any) -> Row:
    table = dict(COMMON)
    for key, value in own.items():
        table[key] = table[key] | value if isinstance(table.get(key), dict) else value
    return result(flamma.run(table, out=path, progress=False, **given))


def on_arrays(path: Path, task: str, model: Any, clients: list[Any], held_out: list[Any]) -> Row:
    data = from_arrays(clients, held_out, task=task)
    table = {key: COMMON[key] for key in ("rounds", "seed", "training", "engine", "strategy")}
    table["training"] = table["training"] | {"epochs": 3}
    run = flamma.run(table, data=data, model=model, per_round=2, out=path, progress=False)
    return result(run)


def regression(path: Path) -> Row:
    rng = np.random.default_rng(3)

    def site(samples: int) -> tuple[Any, Any]:
        x = rng.normal(size=(samples, 8))
        return x, x @ np.linspace(-1, 1, 8) + np.maximum(x[:, 0], 0)

    sites = [site(60) for _ in range(4)], [site(20) for _ in range(4)]
    return on_arrays(path, "regression", "mlp", *sites)


def tokens(path: Path) -> Row:
    rng = np.random.default_rng(4)

    def text(samples: int) -> tuple[Any, Any]:
        found = (rng.integers(0, 10, (samples, 1)) + np.arange(7)) % 10
        return found[:, :-1], found[:, 1:]

    texts = [text(60) for _ in range(3)], [text(20) for _ in range(3)]
    return on_arrays(path, "next-token", lookup, *texts)


def on(own: Row, **given: Any) -> Callable[[Path], Row]:
    return lambda path: on_digits(path, own, **given)


ROWS: dict[str, Callable[[Path], Row]] = {
    "batch norm": on({}, model=batch_norm),
    "dropout": on({}, model=dropout),
    "MLP": on({"model": "mlp"}),
    "MLP, two processes": on({"model": "mlp", "engine": {"processes": 2}}),
    "MLP, Adam": on({"model": "mlp", "training": {"optimiser": "adam", "learning_rate": 0.002}}),
    "stacked": on({"model": "mlp", "training": {"trainer": "stacked"}}),
    "augmentation": on({"model": "mlp", "training": {"augmentation": ["crop"]}}),
    "privacy": on({"model": "mlp", "strategy": "fedavg", "privacy": PRIVACY}),
    "Flower's simulation": on({"model": "mlp", "engine": {"name": "flower"}}),
    "regression": regression,
    "next token": tokens,
}


def measured(tree: Path) -> dict[str, Row]:
    """Return the rows that another tree's package computes, in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    command = [sys.executable, str(Path(__file__).resolve())]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def against(revision: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            old, new = measured(tree), measured(ROOT)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    differ = [name for name in ROWS if old[name]["weights"] != new[name]["weights"]]
    for name in differ:
        print(f"{name}: {old[name]['score']:.2f} before, {new[name]['score']:.2f} now")
    print(f"{len(ROWS) - len(differ)} of {len(ROWS)} rows have the same bits as {revision}")
    return bool(differ)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="REVISION")
    parser.add_argument("--write", action="store_true", help="write the scores")
    options = parser.parse_args()
    if options.against:
        return against(options.against)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: row(Path(folder) / str(n)) for n, (name, row) in enumerate(ROWS.items())}
    if options.write:
        scores = {name: round(row["score"], 3) for name, row in found.items()}
        FILE.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
