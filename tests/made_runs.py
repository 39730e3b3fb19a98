"""Run directories made without training: the project's own writer and game, invented scores."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from flamma.experiments.comparison import compared, write_tables
from flamma.experiments.config import Config, make_config
from flamma.experiments.folder import (
    ABOUT,
    CLIENTS,
    CONFIG,
    POPULATION,
    ROUNDS,
    CheckpointEntry,
    Manifest,
    RunFolder,
)
from flamma.experiments.ledger import LEDGER, ledger_writer
from flamma.experiments.run import Run
from flamma.experiments.suite import Cell
from flamma.federation import certified
from flamma.game import Game, solve
from flamma.io import Extent
from flamma.metrics import evaluate
from flamma.records import (
    CostRecord,
    OfferRecord,
    Outcomes,
    RoundRecord,
    Warmup,
)
from flamma.strategies.base import Offer
from flamma.types import Scores

ABOUT_RUN = {
    "flamma": "0.2.0",
    "python": "3.11.7",
    "numpy": "2.4.6",
    "torch": "2.13.0",
    "trainer": "lanes",
    "machine": "Linux x86_64",
    "command": ["/usr/bin/flamma", "run", "--out", "runs/made"],
    "started": "2026-01-01T00:00:00Z",
    "finished": "2026-01-01T00:01:00Z",
    "params_sha256": "0" * 64,
}


def made_config(strategy="flamma", clients=8, per_round=3, rounds=12, **tables) -> Config:
    return make_config(
        {
            "rounds": rounds,
            "per_round": per_round,
            "data": {"clients": clients, **tables.pop("data", {})},
            "strategy": {"name": strategy, **tables.pop("strategy", {})},
            **tables,
        }
    )


def made_record(
    config: Config, number: int, costs, rng, trouble: bool
) -> tuple[RoundRecord, list[tuple]]:
    """One round: a real game of invented contributions, and invented scores."""
    clients, plays = config.data.clients, config.strategy.name.startswith("flamma")
    selected = np.sort(rng.choice(clients, config.per_round, replace=False))
    omega = rng.uniform(0.85, 0.99, selected.size)
    game = Game(omega, costs[selected], number, price=1.0, decay_bounds=(0.05, 1))
    solution = solve(game)
    epochs = solution.local_epochs if plays else np.full(selected.size, 5)
    failed = {int(selected[0]): "late (simulated)"} if trouble and number % 4 == 0 else {}
    idle = [int(c) for c, t in zip(selected, epochs, strict=True) if t == 0]
    level = 95 - 60 * np.exp(-number / (config.rounds / 4))
    accuracy = np.clip(level + rng.normal(0, 90 / number**0.7, clients), 0, 100)
    scores = Scores(accuracy, np.full(clients, 0.5), np.full(clients, 25), float(level), 0.5)
    record = RoundRecord(
        round=number,
        selected=tuple(selected.tolist()),
        offer=OfferRecord(float(solution.decay_factor), tuple(omega.tolist()))
        if plays
        else OfferRecord(),
        outcome=Outcomes(
            abstained=tuple(client for client in idle if client not in failed),
            failed=failed,
            local_epochs=tuple(int(t) for t in epochs),
            epochs_total=int(np.sum(epochs)),
        ),
        evaluation=evaluate(scores),
        cost=CostRecord(1000 * selected.size, 1000 * selected.size, 0.1, 0.1, 0.2),
    )
    if plays:
        effective = tuple((0.9 * omega).tolist())
        record = certified(record, Offer(number, (), 1.0, game, effective, "distance"), costs)
    if number == 1 and plays:
        record = replace(record, warmup=Warmup({}, 10, 10, 10.0, 10.0))
    rows = [f"{number},{c},{a:.6g},0.5,25" for c, a in enumerate(accuracy)]
    return record, rows


def made_run(path: Path, config: Config | None = None, seed=0, done=None, trouble=True) -> Path:
    """Write a run directory of which ``done`` rounds are finished, all if not told."""
    config = made_config() if config is None else config
    rng = np.random.default_rng(seed)
    clients = config.data.clients
    costs = rng.uniform(0.05, 0.3, clients)
    folder = RunFolder(path)
    folder.lock()
    header = ["client", "samples", "held_out", "cost", *(f"class_{k}" for k in range(10))]
    lines = [
        ",".join(map(str, (c, 100, 25, costs[c], *rng.multinomial(100, np.full(10, 0.1)))))
        for c in range(clients)
    ]
    folder.write(POPULATION, "\n".join([",".join(header), *lines]) + "\n")
    folder.write(ABOUT, json.dumps(ABOUT_RUN))
    folder.write(CONFIG, config.as_toml())
    folder.open_at(0, ledger_writer(config.ledger, folder.run_id, folder.text(POPULATION)))
    for number in range(1, (config.rounds if done is None else done) + 1):
        folder.append(*made_record(config, number, costs, rng, trouble))
    write_checksums(path)
    folder.close()
    return path


def write_checksums(path: Path) -> None:
    """Write a manifest as if there were a checkpoint after the last round."""
    there = [name for name in (ROUNDS, CLIENTS, LEDGER) if (path / name).exists()]
    contents = {name: (path / name).read_bytes() for name in there}
    tables = {
        name: Extent(len(content), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    }
    rounds = contents[ROUNDS].count(b"\n")
    entry = CheckpointEntry(f"round-{rounds:06d}.safetensors", "0" * 64, rounds, tables)
    Manifest({}, (entry,)).write(path)


def made_comparison(path: Path, strategies, splits=("iid", "shards"), seeds=3, name="made") -> Path:
    """Write a comparison's directory: runs and tables."""
    runs = []
    for split in splits:
        for seed in range(seeds):
            for k, strategy in enumerate(strategies):
                config = made_config(strategy, data={"split": split})
                cell = Cell("mnist", split, strategy, seed, config)
                made_run(path / cell.folder, config, seed=100 * k + seed, trouble=False)
                runs.append((cell, Run.load(path / cell.folder)))
    write_tables(compared(name, runs), path)
    return path


def with_changes(table: dict, changes: dict) -> dict:
    """A table with other values; a table among them changes the one in its place."""
    deep = {
        k: table[k] | v if isinstance(v, dict) and isinstance(table.get(k), dict) else v
        for k, v in changes.items()
    }
    return table | deep


def rewrite_rounds(path: Path, change) -> None:
    """Change the records of a run, whose checksums are right afterwards."""
    lines = (path / "rounds.jsonl").read_text().splitlines()
    changed = [json.dumps(change(json.loads(line))) for line in lines]
    (path / "rounds.jsonl").write_text("".join(f"{line}\n" for line in changed))
    write_checksums(path)
