"""Choose every strategy's step size, and its one option of its own, for a suite.

All strategies get the same grid of step sizes on the same seeds, which no result is told of, and
the same data: a part of the clients' training data is held back for the choice, and the held-out
data are not looked at. A strategy that has an option of its own then gets up to three more runs
with other values of it, at the step that was best (a memory of models: at two steps). What the
suite already has for a strategy is left out, unless only steps are to be chosen. A strategy that
the common steps do not fit gets as many runs as the others on a grid of its own: one whose server
makes steps of its own length, for instance, two step sizes of the clients, each with the server's
default and with three times that. Those whose updates all get the same length, so that steps do not
become shorter as gradients do, try each of these with a constant step and with one that falls to a
tenth: twice as many runs. With ``--cross`` q-FFL, AFL and TERM try four values of their option at
every step: 16 runs. Runs that are finished are kept; started again, it goes on.

    python benchmarks/suite_steps.py quick --seeds 3 --table docs/results/quick-steps.json
    python benchmarks/suite_steps.py laptop --seeds 3 --table docs/results/laptop-steps.json
    python benchmarks/suite_steps.py laptop --split iid --strategies fedavg \\
        --table docs/results/laptop-steps.json
    python benchmarks/suite_steps.py paper --datasets mnist --no-options --steps 0.01 0.02 0.05 \\
        --strategies fedavg flamma flamma-plus mifa --table docs/results/paper-steps.json
    python benchmarks/suite_steps.py cifar --no-options --settings one-class two-shards \\
        --steps 0.01 0.02 0.05 --strategies fedavg --table docs/results/cifar-steps.json
    python benchmarks/suite_steps.py cifar --no-options --settings iid --steps 0.05 0.1 \\
        --strategies fedavg --table docs/results/cifar-steps.json
    python benchmarks/suite_steps.py family --datasets digits --seeds 2 --no-options \\
        --margin 0.5 --table docs/results/family-steps.json
    python benchmarks/suite_steps.py family --datasets mnist --no-options \\
        --margin 0.5 --table docs/results/family-steps.json
    python benchmarks/suite_steps.py family --datasets digits --seeds 2 --no-options --cross \\
        --margin 0.5 --strategies qffl afl term --table docs/results/family-steps.json
    python benchmarks/suite_steps.py family --datasets mnist --no-options --cross \\
        --margin 0.5 --strategies qffl afl term --table docs/results/family-steps.json
    python benchmarks/suite_steps.py grid-settings --no-options --margin 0.5 \\
        --settings digits-10of10-one-class --strategies fedavg flamma flamma-plus \\
        --table docs/results/grid-steps.json --write src/flamma/experiments/suites/grid.toml

In a suite of settings a setting is in the place of a dataset. Every strategy gets three runs there,
with step sizes that fit the data, and what is chosen is written as a suite that extends it.

It prints the overrides that the suite then has, and writes all that was tried: as soon as a
strategy is done, and beside what the table already has of other strategies and datasets.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from flamma.experiments.config import make_config, with_settings
from flamma.experiments.suite import narrowed, read_suite
from flamma.experiments.tune import tune
from flamma.io import write_atomically
from flamma.processes import exit_with_parent
from flamma.registry import toml_value

SEED = 1000
STEPS = [0.02, 0.05, 0.1, 0.2]
MEAN_OF_MODELS = {
    "strategy.persistence": [0.0],
    "strategy.memory": [1.0],
    "training.learning_rate": [0.1, 0.2],
}
OPTIONS = {
    "fedprox": [{"strategy.mu": [1.0]}],
    "qffl": [{"strategy.q": [0.1, 1.0]}],
    "mifa": [{"strategy.memory": [0.9]}, MEAN_OF_MODELS],
    "fedavg-decay": [{"strategy.decay_start": [0.6]}],
    "flamma": [{"strategy.decay_start": [0.6]}],
}


CROSSED = {
    "qffl": {"strategy.q": [0.01, 0.1, 0.5, 1.0]},
    "afl": {"strategy.step": [0.001, 0.01, 0.1, 1.0]},
    "term": {"strategy.t": [0.01, 0.1, 1.0, 5.0]},
}
"""How far a strategy is from the plain mean, to be tried with every step where that is asked for.

The best step at one value says little of another: q sets how long the steps of q-FFL's server are.
"""

CLIENT_STEPS = {"training.learning_rate": [0.05, 0.1]}
SCHEDULES = {"training.schedule": ["constant", {"name": "cosine", "floor": 0.1}]}
STEPS_OF_THEIR_OWN = {
    "fedadam": CLIENT_STEPS | {"strategy.server_step": [0.01, 0.03]},
    "fedyogi": CLIENT_STEPS | {"strategy.server_step": [0.01, 0.03]},
    "fedmgda+": CLIENT_STEPS | {"strategy.server_step": [1.0, 3.0]} | SCHEDULES,
    "adafed": CLIENT_STEPS | {"strategy.server_step": [0.5, 1.5]} | SCHEDULES,
    "cgsv": CLIENT_STEPS | {"strategy.length": [0.5, 1.5]} | SCHEDULES,
    "propfair": {"training.learning_rate": [0.02, 0.1], "strategy.loss_bound": [10.0, 100.0]},
    "scaffold": {"training.learning_rate": [0.005, 0.01, 0.02, 0.05]},
}
"""Grids in place of the common one, as many runs each.

Servers whose step has a length of its own; PropFair, whose factor of the step depends on its bound;
and SCAFFOLD, which diverges at the larger of the common steps.
"""


STEPS_IN_SETTINGS = {"synthetic-11": [0.02, 0.1, 0.5], "flights": [0.02, 0.1, 0.5]}
IMAGE_STEPS = [0.02, 0.05, 0.1]
"""The three steps of a setting, by its data."""

ONE_CLIENT_STEP = {"training.learning_rate": [0.05]}
THREE_STEPS_OF_THEIR_OWN = {
    "fedadam": ONE_CLIENT_STEP | {"strategy.server_step": [0.003, 0.01, 0.03]},
    "fedyogi": ONE_CLIENT_STEP | {"strategy.server_step": [0.003, 0.01, 0.03]},
    "fedmgda+": ONE_CLIENT_STEP | {"strategy.server_step": [0.3, 1.0, 3.0]} | SCHEDULES,
    "adafed": ONE_CLIENT_STEP | {"strategy.server_step": [0.15, 0.5, 1.5]} | SCHEDULES,
    "cgsv": ONE_CLIENT_STEP | {"strategy.length": [0.15, 0.5, 1.5]} | SCHEDULES,
    "scaffold": {"training.learning_rate": [0.005, 0.02, 0.05]},
}
"""The same as above, with three runs each, for suites of settings."""


def choose(
    suite: str, dataset: str, split: str, strategy: str, out: Path, options: argparse.Namespace
) -> dict:
    """Return what was tried for one strategy on one dataset, and what was best."""
    import torch

    torch.set_num_threads(1)
    only = {"datasets": [dataset], "splits": [split], "strategies": [strategy]}
    asked = narrowed(read_suite(suite), 1, **only)
    own_steps = THREE_STEPS_OF_THEIR_OWN if asked.settings else STEPS_OF_THEIR_OWN
    if not options.no_options:
        general = {n: o for n, o in asked.overrides.items() if not n.endswith(asked.strategies)}
        asked = replace(asked, overrides=general)
    tables = asked.cells()[0].config.as_tables()
    if options.rounds:
        tables = with_settings(tables, {"rounds": options.rounds})
    fitting = STEPS_IN_SETTINGS.get(tables["data"]["dataset"], IMAGE_STEPS)
    steps = options.steps or (fitting if asked.settings else STEPS)
    grid = own_steps.get(strategy, {"training.learning_rate": steps})
    if options.cross:
        grid, out = grid | CROSSED.get(strategy, {}), out / "crossed"
    tried = scored(tables, grid, out / "step", options.seeds)
    step = max(tried, key=score_of)["options"]
    at_best = with_settings(tables, step)
    for i, grid in enumerate([] if options.no_options else OPTIONS.get(strategy, [])):
        for found in scored(at_best, grid, out / f"option-{i}", options.seeds):
            tried.append(found | {"options": step | found["options"]})
    best = chosen(tried, options.margin)
    place = {"dataset": dataset, "split": split, "strategy": strategy, "seeds": options.seeds}
    return place | {"rounds": tables["rounds"], "best": best, "tried": tried}


def scored(tables: dict, grid: dict, out: Path, seeds: int) -> list[dict]:
    """Return every point of a grid with its mean score over seeds of its own."""
    scores: dict[str, list[float]] = {}
    for seed in range(SEED, SEED + seeds):
        config = make_config(with_settings(tables, {"seed": seed}))
        for trial in tune(config, out=out / f"seed-{seed}", grid=grid).trials:
            score = -100.0 if trial["score"] is None else trial["score"]  # it diverged
            scores.setdefault(json.dumps(trial["options"]), []).append(score)
    return [
        {"score": sum(own) / seeds, "scores": own, "options": json.loads(options)}
        for options, own in scores.items()
    ]


def score_of(tried: dict) -> float:
    return tried["score"]


def chosen(tried: list[dict], margin: float) -> dict:
    """Return the smallest step of those whose score is within a margin of the best.

    One seed or two cannot tell such scores apart, and smaller steps diverge less often.
    """
    near = [own for own in tried if score_of(own) >= score_of(max(tried, key=score_of)) - margin]
    return min(near, key=lambda own: (own["options"]["training.learning_rate"], -score_of(own)))


def write_found(path: Path, found: dict) -> None:
    """Put what was found into a table, in the place of what it had of trials of the same kind."""
    place = ("dataset", "split", "strategy", "rounds")
    table = json.loads(path.read_text()) if path.exists() else []
    others = [own for own in table if any(own.get(key, found[key]) != found[key] for key in place)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps([*others, found], indent=1) + "\n").encode())


def write_steps(path: Path, table: Path, suite: str) -> None:
    """Write a suite that extends another one by the steps that a table has."""
    head = [
        f"# The suite {suite} with step sizes as benchmarks/suite_steps.py chose them on held-back",
        f"# data of seed {SEED}; where nothing is said, none was chosen.",
        f'name = "{path.stem}"',
        f'extends = "{suite}"',
        "",
    ]
    found = json.loads(table.read_text()) if table.exists() else []
    for own in sorted(found, key=lambda own: (own["dataset"], own["strategy"])):
        options = own["best"]["options"].items()
        lines = [f"{name} = {toml_value(value)}" for name, value in options]
        head += [f'[overrides."{own["dataset"]}/{own["strategy"]}"]', *lines, ""]
    write_atomically(path, "\n".join(head).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suite", nargs="?", default="laptop")
    parser.add_argument("--split", help="default: that of the suite's pairs, else shards")
    parser.add_argument("--steps", nargs="+", type=float)
    parser.add_argument("--datasets", "--settings", nargs="+")
    parser.add_argument("--strategies", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("out/steps"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--write", type=Path, help="a suite that extends this one by the steps")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 1000 on")
    parser.add_argument(
        "--no-options", action="store_true", help="choose step sizes only, with the suite's options"
    )
    parser.add_argument(
        "--cross",
        action="store_true",
        help="every step with all of q-FFL's q, AFL's step, TERM's t",
    )
    parser.add_argument(
        "--margin", type=float, default=0.0, help="of scores so near the best, the smallest step's"
    )
    parser.add_argument("--rounds", type=int, help="of a trial; default: as many as a run has")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    suite = read_suite(options.suite)
    splits = [options.split or "shards"] if options.split or not suite.pairs else None
    suite = narrowed(suite, 1, datasets=options.datasets, splits=splits)
    wanted = [
        (dataset, split, strategy)
        for dataset, split in suite.compared_pairs()
        for strategy in options.strategies or suite.strategies
    ]
    spawn, own = get_context("spawn"), (os.getpid(),)
    with ProcessPoolExecutor(options.processes, spawn, exit_with_parent, own) as pool:
        jobs = []
        for dataset, split, strategy in wanted:
            out = options.out / Path(options.suite).stem / split / dataset / strategy
            jobs.append(pool.submit(choose, options.suite, dataset, split, strategy, out, options))
        for job in jobs:
            found = job.result()
            best = found["best"]
            named = ", ".join(f"{name} = {value}" for name, value in best["options"].items())
            print(
                f"{found['dataset']}/{found['strategy']}: {named} (score {best['score']:.2f})",
                flush=True,
            )
            if options.table:
                write_found(options.table, found)
            if options.table and options.write:
                write_steps(options.write, options.table, options.suite)


if __name__ == "__main__":
    main()
