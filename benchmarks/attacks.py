"""What attackers do to the mean and to robust aggregators, and what these cost without attackers.

Embedded digits, a perceptron, 20 clients that all take part, two one-class shards each. A tenth,
two and three tenths of the clients flip the sign of their update, stretch it, train on wrong
labels, or send noise; FedAvg and FLamma-plus under the mean and under every robust aggregator, each
ready for three tenths. Then no attackers, and one class a client: a robust mean takes those for
attackers who are only different. Accuracy, variance and the worst tenth are the honest clients'
alone, over the last ten rounds.

    python benchmarks/attacks.py [--out out/attacks] [--table docs/results/attacks.json]
        [--strategies fedavg flamma-plus] [--seeds 3] [--processes 2] [--limit N]

Runs that are finished are kept, and half-finished ones go on; --limit ends after so many new ones.
The table has what is finished.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np

import flamma
from flamma.aggregators import AGGREGATORS
from flamma.errors import RunError
from flamma.experiments.result import text_table
from flamma.experiments.run import Run, resume
from flamma.metrics.functions import mean, variance, worst_10
from flamma.processes import exit_with_parent
from flamma.seeding import stream

CLIENTS, ROUNDS, LAST_ROUNDS = 20, 30, 10
ATTACKS = {
    "sign-flip": {"factor": 4.0},
    "scaled-update": {"factor": 10.0},
    "label-flip": {},
    "gaussian-noise": {"factor": 10.0},
}
SHARES = (0.1, 0.2, 0.3)
PREPARED = {
    "trimmed-mean": {"share": max(SHARES)},
    "krum": {"attackers": max(SHARES)},
    "multi-krum": {"attackers": max(SHARES)},
}
STEPS = {"fedavg": 0.1}
"""The step sizes of the default comparison; 0.05 for the others."""

METRICS = {"accuracy": mean, "accuracy_variance": variance, "worst_10": worst_10}


@dataclass(frozen=True)
class Cell:
    """One run of the table."""

    split: str
    attack: str
    share: float
    strategy: str
    aggregator: str
    seed: int

    @property
    def attackers(self) -> list[int]:
        """The attackers; those of a smaller share are among those of a larger one."""
        order = stream(self.seed, "attackers").permutation(CLIENTS)
        return sorted(order[: round(self.share * CLIENTS)].tolist())

    @property
    def path(self) -> str:
        return (
            f"{self.split}/{self.strategy}/{self.attack or 'none'}-{self.share:g}/"
            f"{self.aggregator}/seed-{self.seed}"
        )

    def tables(self) -> dict[str, Any]:
        """Return the configuration."""
        aggregator = {"name": self.aggregator, **PREPARED.get(self.aggregator, {})}
        found: dict[str, Any] = {
            "rounds": ROUNDS,
            "per_round": CLIENTS,
            "seed": self.seed,
            "data": {"dataset": "digits", "clients": CLIENTS, "split": self.split},
            "model": "mlp",
            "training": {"learning_rate": STEPS.get(self.strategy, 0.05)},
            "costs": {"kind": "constant", "value": 0.1},
            "strategy": {"name": self.strategy, "aggregator": aggregator},
            "engine": {"processes": 1},
        }
        per_client = {"shards": ("shards_per_client", 2), "classes": ("classes_per_client", 1)}
        key, count = per_client[self.split]
        found["data"][key] = count
        if self.attack:
            own = {"clients": self.attackers, **ATTACKS[self.attack]}
            found["behaviours"] = {self.attack: own}
        return found


def cells(strategies: list[str], seeds: int) -> Iterator[Cell]:
    """Yield all runs, the ones without attackers first, which have the price in fairness."""
    settings = [("shards", "", 0.0), ("classes", "", 0.0)]
    settings += [("shards", attack, share) for attack in ATTACKS for share in SHARES]
    for split, attack, share in settings:
        for strategy in strategies:
            for aggregator in AGGREGATORS:
                for seed in range(seeds):
                    yield Cell(split, attack, share, strategy, aggregator, seed)


def finished(path: Path) -> Run | None:
    try:
        run = Run.load(path)
    except RunError:
        return None
    return run if run.finished else None


def carry_out(cell: Cell, out: Path) -> None:
    path = out / cell.path
    if (path / "config.toml").exists():
        resume(path)
    else:
        flamma.run(cell.tables(), out=path)


def measure(cell: Cell, run: Run) -> dict[str, float]:
    """Return the honest clients' metrics, over the last rounds."""
    table = np.loadtxt(run.path / "clients.csv", delimiter=",", skiprows=1)
    header = (run.path / "clients.csv").read_text().partition("\n")[0].split(",")
    rounds, clients, accuracy = (
        table[:, header.index(name)] for name in ("round", "client", "accuracy")
    )
    honest = ~np.isin(clients, cell.attackers)
    found: dict[str, list[float]] = {name: [] for name in METRICS}
    for number in np.unique(rounds)[-LAST_ROUNDS:]:
        scores = accuracy[honest & (rounds == number)]
        for name, metric in METRICS.items():
            found[name].append(metric(scores))
    return {name: fmean(values) for name, values in found.items()}


def gathered(wanted: list[Cell], out: Path) -> list[dict[str, Any]]:
    """Return a row for every setting that has finished runs: means and spreads over seeds."""
    groups: dict[tuple[Any, ...], list[dict[str, float]]] = {}
    for cell in wanted:
        run = finished(out / cell.path)
        if run is not None:
            key = tuple((k, v) for k, v in asdict(cell).items() if k != "seed")
            groups.setdefault(key, []).append(measure(cell, run))
    return [
        {
            **dict(key),
            "seeds": len(found),
            **{name: [f([m[name] for m in found]) for f in (fmean, pstdev)] for name in METRICS},
        }
        for key, found in groups.items()
    ]


def told(rows: list[dict[str, Any]]) -> str:
    """Return the rows as one table for each split and strategy, a line per aggregator."""
    parts = []
    for split, strategy in dict.fromkeys((r["split"], r["strategy"]) for r in rows):
        own = [r for r in rows if (r["split"], r["strategy"]) == (split, strategy)]
        columns = list(dict.fromkeys((r["attack"], r["share"]) for r in own))
        lines = []
        for aggregator in dict.fromkeys(r["aggregator"] for r in own):
            at = {(r["attack"], r["share"]): r for r in own if r["aggregator"] == aggregator}
            lines.append([aggregator, *(text_of(at.get(column)) for column in columns)])
        header = [f"{attack} {share:.0%}" if attack else "none" for attack, share in columns]
        parts.append(f"{split}, {strategy}\n{text_table(['aggregator', *header], lines)}")
    return "\n\n".join(parts)


def text_of(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return " / ".join(f"{row[name][0]:.0f}" for name in METRICS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/attacks"))
    parser.add_argument("--table", type=Path, default=Path("docs/results/attacks.json"))
    parser.add_argument("--strategies", nargs="+", default=["fedavg", "flamma-plus"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=int, default=10**6)
    options = parser.parse_args()
    wanted = list(cells(options.strategies, options.seeds))
    missing = [cell for cell in wanted if finished(options.out / cell.path) is None]
    print(f"{len(wanted)} runs, {len(wanted) - len(missing)} of them finished", flush=True)
    chosen, begun = missing[: options.limit], time.monotonic()
    spawn, own = get_context("spawn"), (os.getpid(),)
    with ProcessPoolExecutor(options.processes, spawn, exit_with_parent, own) as pool:
        jobs = {pool.submit(carry_out, cell, options.out): cell for cell in chosen}
        for done, job in enumerate(as_completed(jobs), start=1):
            job.result()
            left = (time.monotonic() - begun) / done * (len(chosen) - done) / 60
            print(f"[{done}/{len(chosen)}] {jobs[job].path}, {left:.0f} min left", flush=True)
    rows = gathered(wanted, options.out)
    options.table.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{told(rows)}\n\nHonest clients: accuracy, % / variance, %^2 / worst tenth, %.")


if __name__ == "__main__":
    main()
