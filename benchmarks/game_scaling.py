"""How the exact solver grows with the number of clients.

Every size runs in a process of its own, so that its peak memory can be read, and beside one
``numpy.argsort`` of as many floats, so that the ratio means the same on any machine.

    python benchmarks/game_scaling.py [--most 7]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from flamma.experiments.result import text_table
from flamma.game import Game, certify, solve


def fastest(call, budget=3.0):
    times = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 200):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(clients: int, whole: bool) -> dict[str, float]:
    rng = np.random.default_rng(0)
    costs = rng.lognormal(-2, 1, clients)
    game = Game(rng.random(clients), costs, round=max(1, 3 * clients), whole_epochs=whole)
    sort = fastest(lambda: np.argsort(costs))
    solved = fastest(lambda: solve(game))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    equilibrium = solve(game)
    start = time.perf_counter()
    certificate = certify(game, equilibrium.decay_factor, equilibrium.local_epochs)
    return {
        "sort": sort,
        "solve": solved,
        "memory": memory,
        "decay": equilibrium.decay_factor,
        "certify": time.perf_counter() - start,
        "regret": certificate.leader_regret / abs(equilibrium.server_utility),
        "uncertainty": certificate.leader_regret_uncertainty / abs(equilibrium.server_utility),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=7, help="largest power of ten (default 7)")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(int(options.one[0]), options.one[1] == "whole")))
        return
    rows = []
    for kind in ("continuous", "whole"):
        for power in range(2, options.most + (kind == "continuous")):
            command = [sys.executable, __file__, "--one", str(10**power), kind]
            done = subprocess.run(command, check=True, capture_output=True)
            got = json.loads(done.stdout)
            rows.append(
                [
                    kind,
                    f"10^{power}",
                    f"{got['sort'] * 1e3:.3g}",
                    f"{got['solve'] * 1e3:.3g}",
                    f"{got['solve'] / got['sort']:.1f}",
                    f"{got['memory']:.2f}",
                    f"{got['decay']:.3f}",
                    f"{got['certify'] * 1e3:.3g}",
                    f"{got['regret']:.1e}",
                    f"{got['uncertainty']:.1e}",
                ]
            )
            print("\x1b[2K" if sys.stderr.isatty() else "", *rows[-1], file=sys.stderr)
    print(
        text_table(
            [
                "epochs",
                "clients",
                "argsort ms",
                "solve ms",
                "ratio",
                "peak GB",
                "gamma*",
                "certify ms",
                "rel. regret",
                "rel. uncertainty",
            ],
            rows,
        )
    )


if __name__ == "__main__":
    main()
