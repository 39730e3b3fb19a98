"""Choose every strategy's step size, and its one option of its own, for a suite.

All strategies get the same grid of step sizes on the same seed, which no result is reported of, and
the same data: a part of the clients' training data is held back for the choice, and the held-out
data are not looked at. A strategy that has an option of its own then gets up to two more values of
it at the step that was best. Runs that are finished are kept; started again, it goes on.

    python benchmarks/suite_steps.py laptop [--datasets mnist] [--out out/steps]
        [--table docs/results/laptop-steps.json]

It prints the overrides that the suite then has, and writes all that was tried.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from flamma.experiments.config import make_config, with_settings
from flamma.experiments.suite import narrowed, read_suite
from flamma.experiments.tune import tune

SEED = 1000
SPLIT = "shards"
STEPS = [0.02, 0.05, 0.1, 0.2]
OPTIONS = {
    "fedprox": {"strategy.mu": [0.1, 1.0]},
    "qffl": {"strategy.q": [0.1, 1.0]},
    "mifa": {"strategy.memory": [0.9]},
    "fedavg-decay": {"strategy.decay_start": [0.6]},
    "flamma": {"strategy.decay_start": [0.6]},
    "flamma-plus": {"strategy.decay_start": [0.6]},
}


def choose(suite: str, dataset: str, strategy: str, out: Path) -> dict:
    """Return what was tried for one strategy on one dataset, and what was best."""
    import torch

    torch.set_num_threads(1)
    chosen = narrowed(read_suite(suite), 1, datasets=[dataset], splits=[SPLIT])
    tables = next(c.config for c in chosen.cells() if c.strategy == strategy).as_tables()
    config = make_config(with_settings(tables, {"seed": SEED}))
    found = tune(config, out=out / "step", grid={"training.learning_rate": STEPS})
    tried, options, score = list(found.trials), dict(found.options), found.score
    if strategy in OPTIONS:
        more = tune(found.config, out=out / "option", grid=OPTIONS[strategy])
        tried += [t | {"options": options | t["options"]} for t in more.trials]
        if more.score > score:
            options, score = options | more.options, more.score
    return {
        "dataset": dataset,
        "strategy": strategy,
        "options": options,
        "score": score,
        "tried": [{"score": t["score"], **t["options"]} for t in tried],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suite", nargs="?", default="laptop")
    parser.add_argument("--datasets", nargs="+")
    parser.add_argument("--strategies", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("out/steps"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    suite = read_suite(options.suite)
    wanted = [
        (dataset, strategy)
        for dataset in options.datasets or suite.datasets
        for strategy in options.strategies or suite.strategies
    ]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(choose, options.suite, d, s, options.out / options.suite / d / s)
            for d, s in wanted
        ]
        chosen = []
        for job in jobs:
            found = job.result()
            chosen.append(found)
            named = ", ".join(f"{name} = {value:g}" for name, value in found["options"].items())
            print(
                f"{found['dataset']}/{found['strategy']}: {named} (score {found['score']:.2f})",
                flush=True,
            )
    if options.table:
        options.table.parent.mkdir(parents=True, exist_ok=True)
        options.table.write_text(json.dumps(chosen, indent=1) + "\n")


if __name__ == "__main__":
    main()
