"""Write the workload of the comparison to a folder, with FLamma's own clients and batches.

    python benchmarks/peers/prepare.py FOLDER [JSON of settings]

FLamma draws clients and batches from keyed streams, so they can be known beforehand; the others
are given the same ones.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
from workload import Settings

from flamma.models import build_model
from flamma.seeding import stream
from flamma.strategies.base import uniform_choice


def prepare(folder: Path, settings: Settings) -> None:
    rng = np.random.default_rng(settings.seed)
    clients = np.arange(settings.clients)
    selected = np.stack(
        [
            uniform_choice(clients, settings.per_round, stream(settings.seed, "select", number))
            for number in range(1, settings.rounds + 1)
        ]
    )
    shape = (settings.rounds, settings.per_round, settings.epochs, settings.samples)
    orders = np.empty(shape, dtype=np.int32)
    for number, row in enumerate(selected, start=1):
        for place, client in enumerate(row.tolist()):
            shuffles = stream(settings.seed, "train", number, client)
            for epoch in range(settings.epochs):
                orders[number - 1, place, epoch] = shuffles.permutation(settings.samples)
    own = (settings.clients, settings.samples)
    model = build_model(settings.model, (1, 28, 28), 10, seed=settings.seed)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "x.npy", rng.standard_normal((*own, 1, 28, 28), dtype=np.float32))
    np.save(folder / "y.npy", rng.integers(0, 10, own))
    np.save(folder / "selected.npy", selected)
    np.save(folder / "orders.npy", orders)
    np.savez(folder / "weights.npz", **weights)
    (folder / "settings.json").write_text(json.dumps(dataclasses.asdict(settings), indent=1))


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Settings(**json.loads(sys.argv[2] if sys.argv[2:] else "{}")))
