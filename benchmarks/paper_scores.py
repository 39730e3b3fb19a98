"""Which score could the paper's table be of? The same models, scored in four ways.

The paper has 98% on IID Fashion-MNIST, more than LeNet-5 reaches on data that it has not seen, and
its clients tell the server their accuracies after training. So the models at the end of finished
runs are scored on the clients' held-out data, as everywhere here, and on their training data, and
so are the clients' own models, after one more training by the clients' plan.

    flamma compare --suite laptop --datasets mnist,fashion-mnist --out out/laptop
    python benchmarks/paper_scores.py out/laptop

Accuracy / variance over clients, in percent; means over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np

from flamma.experiments.run import Run
from flamma.experiments.setup import build_data, build_runner
from flamma.models.flat import FlatModel
from flamma.reports.tables import text_table
from flamma.types import LocalTask, Params

WAYS = ("common, held out", "common, trained on", "own, held out", "own, trained on")
STRATEGIES = ["fedavg", "fedprox", "qffl", "incentive", "flamma"]


def scored_four_ways(run: Run) -> list[tuple[float, float]]:
    """Return mean and variance over clients of the accuracy in each way."""
    config = run.config
    data = build_data(config)
    params = FlatModel(run.model()).read()
    plan = config.training
    tasks = [
        LocalTask(client, config.rounds + 1, plan.epochs, plan.learning_rate)
        for client in range(data.clients)
    ]
    with build_runner(config, data, processes=2) as runner:
        own = [report.params for report in runner.train(params, tasks)]
        trainer = runner._executor.trainer

        def accuracy(weights: Params, held_out: bool, client: int) -> float:
            offsets = data.held_offsets if held_out else data.train_offsets
            x, y = (data.held_x, data.held_y) if held_out else (data.train_x, data.train_y)
            where = slice(*offsets[client : client + 2])
            return 100 * float(np.mean(trainer.predict(weights, x[where], y[where])[1]))

        found = []
        for models in ([params] * data.clients, own):
            for held_out in (True, False):
                each = [accuracy(w, held_out, c) for c, w in enumerate(models) if w is not None]
                found.append((float(np.mean(each)), float(np.var(each))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("study", type=Path, help="the directory of a comparison")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    options = parser.parse_args()
    rows = defaultdict(list)
    for path in sorted(options.study.glob("runs/**/config.toml")):
        run = Run.load(path.parent)
        name = run.config.strategy.name
        if name in options.strategies and run.finished:
            setting = (run.config.data.dataset, run.config.data.split.name, name)
            rows[setting].append(scored_four_ways(run))
            print(f"{path.parent} is scored", flush=True)
    shown = [
        [*setting, *(f"{mean(s, way, 0):.1f} / {mean(s, way, 1):.0f}" for way in range(4))]
        for setting, s in rows.items()
    ]
    print(text_table(["data", "split", "strategy", *WAYS], shown))
    print(json.dumps({"/".join(setting): s for setting, s in rows.items()}))


def mean(seeds: list[list[tuple[float, float]]], way: int, which: int) -> float:
    """Return the mean over seeds of the accuracy or the variance of a way."""
    return statistics.fmean(seed[way][which] for seed in seeds)


if __name__ == "__main__":
    main()
