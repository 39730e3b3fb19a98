"""What the server gives up by offering each client the decay factor of the game of the others.

Random games: contributions uniform in 0.6..0.95, costs 0.1 exp(0.5 N), a round from 35 to 100 of
100 drawn evenly, decay from round 30 on. The loss is the server's utility at the common equilibrium
less that under the rule ``others``, as a share of what the clients give it at the common
equilibrium, γ Σ (ω + τ). In the rows with a given price, that price is the one derived in the
common game. ``exponent`` is the slope of log loss over log n, by least squares through the mean and
through the median losses; a negative loss is a gain, and its size is fitted.

    python benchmarks/price_of_honesty.py [--games 300] [--table docs/results/price-of-honesty.json]
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flamma.experiments.result import text_table
from flamma.game import PricingRule, best_response, certify, solve
from flamma.io import write_atomically
from flamma.seeding import stream

SIZES = (3, 10, 30, 100)
FREE = PricingRule(decay_floor=0.0, epoch_bounds=(0, math.inf), whole_epochs=False)


@dataclass(frozen=True)
class Setting:
    """A rule, whether its price stays what it is without a client, and how many get an offer."""

    name: str
    rule: PricingRule
    price_given: bool = False
    offered: int | None = None


SETTINGS = (
    Setting("continuous, price given", FREE, price_given=True),
    Setting("continuous, price derived", FREE),
    Setting("whole, price given, floor 0.1", PricingRule(decay_floor=0.1), price_given=True),
    Setting("defaults", PricingRule()),
    Setting("defaults, 10 offered", PricingRule(), offered=10),
)
"""The defaults are whole epochs from 1 to 10, a derived price and the floor of participation."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--games", type=int, default=300)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    rows, raw = [], []
    for setting in SETTINGS:
        sizes = [n for n in SIZES if n >= (setting.offered or 0)]
        table = [[measure(setting, n, seed) for seed in range(options.games)] for n in sizes]
        for n, games in zip(sizes, table, strict=True):
            loss, work = np.array(games).T
            shares = [f"{100 * x:.2f}%" for x in (loss.mean(), np.median(loss), loss.max())]
            rows.append([setting.name, str(n), *shares, f"{work.mean():.3f}", "", ""])
            raw.append({"setting": setting.name, "clients": n, "loss_and_work": games})
        rows[-1][-2:] = exponents(sizes, table)
    head = ["setting", "clients", "mean", "median", "largest", "work", "exponent", "of median"]
    print(text_table(head, rows))
    if options.table is not None:
        write_atomically(options.table, json.dumps(raw).encode())


def measure(setting: Setting, clients: int, seed: int) -> tuple[float, float]:
    """Return the server's loss as a share, and the epochs as a share of the common ones."""
    rng = stream(seed, "price-of-honesty", clients)
    omega, costs = rng.uniform(0.6, 0.95, clients), 0.1 * np.exp(0.5 * rng.normal(size=clients))
    number, chosen = int(rng.integers(35, 101)), np.arange(clients)[: setting.offered]
    game = setting.rule.game(omega[chosen], costs[chosen], number)
    price = game.price if setting.price_given else None
    others = replace(setting.rule, rule="others", price=price)
    gammas = others.decay_factors(omega, costs, number, chosen)
    epochs = best_response(game, gammas, one_each=True)
    common = solve(game)
    gain = common.server_utility + game.influence_price * common.decay_factor**2
    regret = certify(game, gammas, epochs).leader_regret
    if not gain:  # γ = 0 is best for the server, and so nobody works
        return 0.0, 1.0
    work = float(epochs.sum()) / float(common.local_epochs.sum())
    return round(regret / gain, 9), round(work, 6)


def exponents(sizes: list[int], table: list[list[tuple[float, float]]]) -> list[str]:
    """Return the slopes of the logarithms of the mean and the median loss over those of n."""
    found = []
    for middle in (np.mean, np.median):
        losses = [abs(float(middle([loss for loss, _ in games]))) for games in table]
        slope = np.polyfit(np.log(sizes), np.log(losses), 1)[0]
        found.append(f"{slope:.2f}")
    return found


if __name__ == "__main__":
    main()
