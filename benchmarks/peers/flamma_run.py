"""FedAvg with ``flamma.run``: its own clients and batches, records and checkpoints included."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import load_file
from workload import started

import flamma
from flamma.data import from_arrays

if __name__ == "__main__":
    work, record, rounds = started()
    settings = work.settings
    selected = []

    def on_round(finished: dict) -> None:
        record.round_done()
        selected.append(list(finished.selected))

    pairs = [work.client(client) for client in range(settings.clients)]
    data = from_arrays(clients=pairs, held_out=[(x[:1], y[:1]) for x, y in pairs])
    del pairs
    run = flamma.run(
        out=Path(record.out) / "run",
        data=data,
        on_round=on_round,
        rounds=rounds,
        per_round=settings.per_round,
        seed=settings.seed,
        strategy="fedavg",
        model__name=settings.model,
        training__epochs=settings.epochs,
        training__batch_size=settings.batch_size,
        training__learning_rate=settings.learning_rate,
        training__device="cpu",
        evaluation__every=rounds,
        engine__processes=settings.processes,
    )
    assert run.about["trainer"] == "lanes"
    assert selected == work.selected[:rounds].tolist(), "FLamma drew other clients"
    [newest] = sorted((run.path / "checkpoint").glob("*.safetensors"))[-1:]
    record.finish([load_file(newest)["params"]])
