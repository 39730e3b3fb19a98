"""Two ways to a decay: the default, and found by `flamma tune`.

The search is over step size, decay start and cost scale, on a seed of its own and on held-back
training data; its best, and flamma-plus with default options are then run on the suite's
seeds. Finished runs and trials are kept.

    python benchmarks/automatic.py quick digits [--trials 30] [--out out/automatic]
        [--table docs/results/automatic.json]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from flamma.experiments.comparison import as_markdown, compare
from flamma.experiments.config import with_settings
from flamma.experiments.suite import narrowed, read_suite
from flamma.experiments.tune import tune

SEED = 1000
SPLIT = "shards"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suite", nargs="?", default="quick")
    parser.add_argument("dataset", nargs="?", default="digits")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("out/automatic"))
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    suite = narrowed(
        read_suite(options.suite),
        datasets=[options.dataset],
        splits=[SPLIT],
        strategies=["fedavg", "flamma-plus"],
    )
    out = options.out / options.suite / options.dataset
    plus = next(cell.config for cell in suite.cells() if cell.strategy == "flamma-plus")
    found = tune(plus.with_settings({"seed": SEED}), out=out / "tune", trials=options.trials)
    given_up = sum(trial["given_up"] for trial in found.trials)
    named = ", ".join(f"{name} {value:.4g}" for name, value in found.options.items())
    print(f"{len(found.trials)} trials, {given_up} given up early; best: {named}\n")
    before = suite.overrides.get(f"{options.dataset}/{SPLIT}/flamma-plus", {})
    chosen = with_settings(before, found.options | {"strategy.name": "flamma-plus"})
    suite = replace(
        suite,
        strategies=(*suite.strategies, "flamma-plus-tuned"),
        overrides={**suite.overrides, f"{options.dataset}/{SPLIT}/flamma-plus-tuned": chosen},
    )
    comparison = compare(suite, out=out / "runs")
    print(as_markdown(comparison))
    if options.table:
        told = {"trials": found.trials, "best": found.options, "rows": asdict(comparison)["rows"]}
        options.table.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
