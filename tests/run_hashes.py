"""Prints the hashes of what short runs come to, for tests that compare processes.

    python tests/run_hashes.py short|runs|suite

Kernels without fused products in hardware compute them in software, twenty times slower: what is
``short`` is so small that it is bearable.

A run has a hash of its final weights, its round records but for times, its clients' scores and its
population.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import flamma
from flamma.experiments.comparison import compare
from flamma.experiments.run import Run
from flamma.experiments.suite import narrowed, read_suite

COMMON = {
    "rounds": 4,
    "per_round": 3,
    "data": {
        "dataset": "digits",
        "split": "dirichlet",
        "alpha": 0.5,
        "clients": 6,
        "train_samples": 240,
        "validation_samples": 20,
    },
    "model": "lenet5",
    "training": {"epochs": 1, "batch_size": 32, "learning_rate": 0.05},
    "costs": {"kind": "lognormal", "value": 0.1, "spread": 0.5},
    "engine": {"processes": 1},
}
STRATEGIES = {
    "flamma-plus": {"name": "flamma-plus", "selection": "sample", "refresh_every": 2},
    "flamma": {"name": "flamma", "contribution": "cosine", "refresh_every": 1},
    "qffl": {"name": "qffl", "q": 0.7},
    "incentive": {"name": "incentive"},
    "oort": {"name": "oort", "exploration": 0.3, "pacer_window": 1},
    "maxfl": {"name": "maxfl", "warmup_epochs": 1},
    "cgsv": {"name": "cgsv"},
    "cffl": {"name": "cffl"},
    "pricing": {"name": "pricing", "value": 0.05},
    "mifa": {"name": "mifa", "aggregator": {"name": "geometric-median", "iterations": 5}},
    "fedavg": {"name": "fedavg", "aggregator": "fltrust"},
    "afl": {"name": "afl", "step": 0.1, "participation": "partial"},
    "adafed": {"name": "adafed"},
}


def without_times(value: Any) -> Any:
    """Return a record without times, and without the checksum over them."""
    if not isinstance(value, dict):
        return value
    left = {k: v for k, v in value.items() if k != "checksum" and not k.startswith("seconds")}
    return {name: without_times(part) for name, part in left.items()}


def hashes(run: Run) -> dict[str, str]:
    records = [without_times(json.loads(record.to_json())) for record in run.history]
    parts = {
        "records": json.dumps(records, sort_keys=True),
        "scores": (run.path / "clients.csv").read_text(),
        "population": (run.path / "population.csv").read_text(),
    }
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in parts.items()}
    assert run.params_sha256 is not None
    return {"weights": run.params_sha256, **digests, "trainer": run.about["trainer"]}


SHORT = {
    "rounds": 3,
    "data": COMMON["data"] | {"train_samples": 60},
    "training": COMMON["training"] | {"batch_size": 8},
    "model": "mlp",
}


def short_runs(folder: Path) -> dict[str, dict[str, str]]:
    """Return the hashes of one strategy with LeNet-5 and of the others with a smaller network."""
    found = {}
    for name, strategy in STRATEGIES.items():
        own = {"model": "lenet5", "rounds": 2} if name == "flamma-plus" else {}
        if name.startswith("flamma"):
            strategy = strategy | {"warmup_iterations": 1}
        found[name] = hashes(
            flamma.run(COMMON | SHORT | own | {"strategy": strategy}, out=folder / name)
        )
    return found


def single_runs(folder: Path) -> dict[str, dict[str, str]]:
    return {
        name: hashes(flamma.run(COMMON | {"strategy": strategy}, out=folder / name))
        for name, strategy in STRATEGIES.items()
    }


def quick_suite(folder: Path) -> dict[str, dict[str, str]]:
    suite = narrowed(
        read_suite("quick"), 1, {"rounds": 2, "training.epochs": 1, "data.train_samples": 300}
    )
    table = compare(suite, out=folder, processes=1)
    return {path: hashes(Run.load(folder / path)) for path in table.folders}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        what = {"short": short_runs, "runs": single_runs, "suite": quick_suite}[sys.argv[1]]
        print(json.dumps(what(Path(made)), indent=1))
