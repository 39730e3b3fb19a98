"""Choose every strategy's step size, and its one option of its own, for a suite.

All strategies get the same grid of step sizes on the same seed, which no result is reported of, and
the same data: a part of the clients' training data is held back for the choice, and the held-out
data are not looked at. A strategy that has an option of its own then gets up to two more runs with
other values of it, at the step that was best (FLamma-plus: at two steps). Runs that are finished
are kept; started again, it goes on.

    python benchmarks/suite_steps.py laptop --datasets mnist fashion-mnist --table shards.json
    python benchmarks/suite_steps.py laptop --datasets cifar10 --steps 0.05 0.1 0.2 --no-options
    python benchmarks/suite_steps.py laptop --split iid --strategies fedavg

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
STEPS = [0.02, 0.05, 0.1, 0.2]
MEAN_OF_MODELS = {
    "strategy.persistence": [0.0],
    "strategy.memory": [1.0],
    "training.learning_rate": [0.1, 0.2],
}
OPTIONS = {
    "fedprox": {"strategy.mu": [1.0]},
    "qffl": {"strategy.q": [0.1, 1.0]},
    "mifa": {"strategy.memory": [0.9]},
    "fedavg-decay": {"strategy.decay_start": [0.6]},
    "flamma": {"strategy.decay_start": [0.6]},
    "flamma-plus": MEAN_OF_MODELS,
    "flamma-adaptive": MEAN_OF_MODELS,
}


def choose(
    suite: str, dataset: str, split: str, strategy: str, out: Path, steps: list[float], more: bool
) -> dict:
    """Return what was tried for one strategy on one dataset, and what was best."""
    import torch

    torch.set_num_threads(1)
    chosen = narrowed(read_suite(suite), 1, datasets=[dataset], splits=[split])
    tables = next(c.config for c in chosen.cells() if c.strategy == strategy).as_tables()
    config = make_config(with_settings(tables, {"seed": SEED}))
    found = tune(config, out=out / "step", grid={"training.learning_rate": steps})
    tried, options, score = list(found.trials), dict(found.options), found.score
    if more and strategy in OPTIONS:
        other = tune(found.config, out=out / "option", grid=OPTIONS[strategy])
        tried += [t | {"options": options | t["options"]} for t in other.trials]
        if other.score > score:
            options, score = options | other.options, other.score
    return {
        "dataset": dataset,
        "split": split,
        "strategy": strategy,
        "options": options,
        "score": score,
        "tried": [{"score": t["score"], **t["options"]} for t in tried],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suite", nargs="?", default="laptop")
    parser.add_argument("--split", default="shards")
    parser.add_argument("--steps", nargs="+", type=float, default=STEPS)
    parser.add_argument("--datasets", nargs="+")
    parser.add_argument("--strategies", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("out/steps"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--no-options", action="store_true", help="choose step sizes only")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    suite, split, more = read_suite(options.suite), options.split, not options.no_options
    out = options.out / options.suite / split
    wanted = [
        (dataset, strategy)
        for dataset in options.datasets or suite.datasets
        for strategy in options.strategies or suite.strategies
    ]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(choose, options.suite, d, split, s, out / d / s, options.steps, more)
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
