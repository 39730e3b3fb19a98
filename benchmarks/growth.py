"""How a round's cost grows: with the clients of a round, with all clients, with processes.

Logistic regression on 20 features and 10 samples a client, two epochs. Training is that of the
engine; the rest of the round (selecting, the game, aggregating, certifying) is in
``many_clients.py``. One process is timed in seconds of the processor, more by the clock.

    python benchmarks/growth.py [--most 6] [--trainers torch lanes] [--processes 1 2]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np

from flamma.data.federated import FederatedData
from flamma.experiments.result import text_table
from flamma.models import build_model
from flamma.simulation.runner import ClientRunner
from flamma.types import LocalWork, Terms

FEATURES, CLASSES, EACH, HELD = 20, 5, 10, 2


def federation(clients: int) -> FederatedData:
    rng = np.random.default_rng(0)
    total, held = clients * EACH, clients * HELD
    x = rng.standard_normal((total + held, FEATURES), dtype=np.float32)
    y = rng.integers(0, CLASSES, total + held)
    return FederatedData(
        train_x=x[:total],
        train_y=y[:total],
        train_offsets=EACH * np.arange(clients + 1),
        held_x=x[total:],
        held_y=y[total:],
        held_offsets=HELD * np.arange(clients + 1),
        test_x=x[total : total + 100],
        test_y=y[total : total + 100],
        validation_x=x[:0],
        validation_y=y[:0],
        classes=CLASSES,
    )


def measure(data: FederatedData, per_round: int, processes: int, trainer: str) -> list[float]:
    def model():
        return build_model("logistic", data.shape, data.classes, 0)

    chosen = np.random.default_rng(1).choice(data.clients, per_round, replace=False)
    tasks = [LocalWork(Terms(int(c), 1), epochs=2, learning_rate=0.1) for c in np.sort(chosen)]
    kind = {"processes": processes, "trainer": trainer}
    with ClientRunner(data, model, 0, **kind) as runner:
        params = runner.initial_params
        train, judge = [], []
        now = time.process_time if processes == 1 else time.perf_counter
        for _ in range(4):
            start = now()
            runner.train(params, tasks)
            train.append(now() - start)
            start = now()
            runner.evaluate(params)
            judge.append(now() - start)
    return [statistics.median(train[1:]), statistics.median(judge[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=6, help="largest power of ten of clients")
    parser.add_argument("--trainers", nargs="+", default=["torch", "lanes"])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    header = ["clients", "a round", "processes", "trainer", "train ms", "us/client", "judge all ms"]
    rows = []
    cases = [(10_000, 10**k) for k in range(1, 5)]
    cases += [(10**k, 100) for k in range(2, options.most + 1)]
    for clients, per_round in dict.fromkeys(cases):
        data = federation(clients)
        for processes in options.processes:
            for trainer in options.trainers:
                train, judge = measure(data, per_round, processes, trainer)
                rows.append(
                    [
                        f"{clients:,}",
                        f"{per_round:,}",
                        str(processes),
                        trainer,
                        f"{1e3 * train:.1f}",
                        f"{1e6 * train / per_round:.0f}",
                        f"{1e3 * judge:.1f}",
                    ]
                )
                print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(text_table(header, rows, left=0))


if __name__ == "__main__":
    main()
