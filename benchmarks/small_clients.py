"""What a round of many small clients takes of the processors, per client.

    python benchmarks/small_clients.py [--clients 1000] [--rounds 12]

Logistic regression on samples of MNIST's shape, all clients in every round, two processes. Seconds
of the processor do not count waiting for it, so a busy machine changes them less than those of the
clock. The first round and the last, which evaluates, are left out.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

import flamma
from flamma.data import from_arrays

PROCESSES, SAMPLES, EPOCHS = 2, 50, 5


def spent(workers: list[psutil.Process]) -> tuple[float, float, float]:
    """Return the seconds of the clock, of this process and of its workers so far."""
    tasks = [task for w in workers for task in Path(f"/proc/{w.pid}/task").iterdir()]
    ran = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return time.monotonic(), time.process_time(), ran / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((options.clients, SAMPLES, 1, 28, 28), dtype=np.float32)
    y = rng.integers(0, 10, (options.clients, SAMPLES))
    held_out = list(zip(x[:, :1], y[:, :1], strict=True))
    data = from_arrays(clients=list(zip(x, y, strict=True)), held_out=held_out)
    del x, y
    workers: list[psutil.Process] = []
    seen: list[tuple[float, float, float]] = []

    def on_round(_: dict) -> None:
        if not workers:
            workers.extend(psutil.Process(os.getpid()).children())
        seen.append(spent(workers))

    with tempfile.TemporaryDirectory() as out:
        run = flamma.run(
            out=Path(out) / "run",
            data=data,
            on_round=on_round,
            rounds=options.rounds,
            per_round=options.clients,
            seed=0,
            strategy="fedavg",
            model__name="logistic",
            training__epochs=EPOCHS,
            training__device="cpu",
            evaluation__every=options.rounds,
            engine__processes=PROCESSES,
        )
        assert run.about["trainer"] == "lanes"
    clock, own, theirs = np.median(np.diff(seen, axis=0)[:-1], axis=0) / options.clients * 1e6
    print(f"first process {own:.0f} µs a client, {PROCESSES} workers {theirs:.0f} µs together:")
    print(f"{own + theirs / PROCESSES:.0f} µs one after the other, {clock:.0f} µs by the clock")


if __name__ == "__main__":
    main()
