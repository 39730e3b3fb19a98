"""Which score could the paper's table be of? The same models, scored in five ways.

The paper has 98% on IID Fashion-MNIST, more than LeNet-5 reaches on data that it has not seen, and
its clients tell the server their accuracies after training, ten iterations in the text. So the
models at the end of finished runs are scored on the clients' held-out data, as everywhere here, and
on their training data; and so are the clients' own models, after ten mini-batches more and after
one more training by the clients' plan.

    flamma compare --suite laptop --out out/laptop
    python benchmarks/paper_scores.py out/laptop [--table docs/results/paper-scores.json]

Accuracy / variance over clients, in percent; means over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from flamma.experiments.result import text_table
from flamma.experiments.run import Run, build_data, build_runner
from flamma.models.flat import FlatModel
from flamma.types import LocalWork, Terms

WAYS = {
    "common, held out": ("common", True),
    "common, trained on": ("common", False),
    "own after 10 batches, trained on": ("ten", False),
    "own after a round, held out": ("round", True),
    "own after a round, trained on": ("round", False),
}
STRATEGIES = ["fedavg", "fedprox", "qffl", "incentive", "flamma"]


def scored_in_all_ways(run: Run) -> list[tuple[float, float]]:
    """Return mean and variance over clients of the accuracy in each way."""
    config = run.config
    data = build_data(config)
    trained_on = replace(
        data, held_x=data.train_x, held_y=data.train_y, held_offsets=data.train_offsets
    )
    params, plan = FlatModel(run.model()).read(), config.training
    tasks = [
        LocalWork(Terms(client, config.rounds + 1), plan.epochs, plan.learning_rate)
        for client in range(data.clients)
    ]
    with (
        build_runner(config, data, processes=2) as held_out_runner,
        build_runner(config, trained_on, processes=2) as trained_on_runner,
    ):
        models = {"common": [params] * data.clients}
        for name, done in {"ten": 10, "round": None}.items():
            asked = [replace(one, terms=replace(one.terms, batches=done)) for one in tasks]
            models[name] = [report.params for report in held_out_runner.train(params, asked)]
        found = []
        for name, held_out in WAYS.values():
            runner = held_out_runner if held_out else trained_on_runner
            scores = runner.evaluate_each(params, models[name].__getitem__).accuracy
            found.append((float(np.mean(scores)), float(np.var(scores))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("study", type=Path, help="the directory of a comparison")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    options = parser.parse_args()
    rows = defaultdict(list)
    for path in sorted(options.study.glob("runs/**/config.toml")):
        run = Run.load(path.parent)
        name = run.config.strategy.name
        if name in options.strategies and run.finished:
            setting = (run.config.data.dataset, run.config.data.split.name, name)
            rows[setting].append(scored_in_all_ways(run))
            print(f"{path.parent} is scored", flush=True)
    shown = [
        [*setting, *(f"{mean(s, way, 0):.1f} / {mean(s, way, 1):.0f}" for way in range(len(WAYS)))]
        for setting, s in rows.items()
    ]
    print(text_table(["data", "split", "strategy", *WAYS], shown))
    if options.table:
        told = {"/".join(setting): s for setting, s in rows.items()}
        options.table.write_text(json.dumps(told, indent=1) + "\n")


def mean(seeds: list[list[tuple[float, float]]], way: int, which: int) -> float:
    """Return the mean over seeds of the accuracy or the variance of a way."""
    return statistics.fmean(seed[way][which] for seed in seeds)


if __name__ == "__main__":
    main()
