"""Draw the settings of the suite `grid`, and say which pairs of their levels they cover.

A setting is a level of each of six factors: how many clients there are, the share of them that
takes part in a round, the split, the clients' sizes, their costs, and the data. The settings are
drawn once, from a stream with a key of its own, so that they depend on no result: at first at
random, then changed one level at a time until every pair of levels that is possible is in one of
them. Another draw divides them into those that strategies may be developed on and those held back
for the end. What follows from the levels (model, samples, rounds) follows by the rules below.

    python benchmarks/draw_grid.py                 # prints the settings and what they cover
    python benchmarks/draw_grid.py --write src/flamma/experiments/suites
    python benchmarks/draw_grid.py --measure out/grid-fedavg

The last one runs FedAvg once in each setting, on a seed that no result uses.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from time import process_time

import numpy as np

from flamma.experiments.config import dotted_settings, make_config, with_settings
from flamma.experiments.run import run_config
from flamma.io import write_atomically
from flamma.registry import to_toml, toml_value
from flamma.seeding import stream

COUNTS, HELD_BACK = range(24, 31), 8
KEY, TRIED_SEED = 2019, 1000
MOVES, DRAWS = 20_000, 3

DIRICHLET = ("dirichlet-0.1", "dirichlet-0.3", "dirichlet-1.0")
IMAGES = ("mnist", "fashion-mnist", "cifar10", "digits")
LEVELS: dict[str, tuple] = {
    "clients": (10, 30, 100, 300),
    "share": (0.1, 0.3, 1.0),
    "split": ("iid", "one-class", "two-shards", *DIRICHLET, "groups"),
    "sizes": ("even", "uneven"),
    "costs": (0.0, 0.5, 1.0),
    "data": (*IMAGES, "synthetic-11", "flights"),
}
SAMPLES = {"digits": 1242, "synthetic-11": 20_000, "flights": 20_000}
"""How many samples of a dataset are used in all, where it is not a number for each client."""
FEWEST_SAMPLES = 20
"""A client's samples on average, at least."""
FEWEST_PER_ROUND = 3
MOST_WORK = {"cifar10": 150_000, "synthetic-11": 2_000_000, "flights": 2_000_000}
MOST_OTHER_WORK = 300_000
"""Samples times local epochs of a run, at most: a small model and small pictures take less time."""
ROUNDS, FEWEST_ROUNDS = {0.1: 100, 0.3: 60, 1.0: 25}, 20
UNEVEN = 1.0
MEAN_COST = 0.1
EPOCHS = 5

STRATEGIES = ["fedavg", "fedavg-decay", "mifa", "flamma", "qffl", "flamma-plus"]
"""Some hours of two cores; `--strategies` runs others, with the step of the suite."""
ABOUT = """\
# Settings drawn over what the literature uses, by benchmarks/draw_grid.py: every possible pair of
# levels of clients, share a round, split, sizes, costs and data is in one of them. The rules by
# which samples, rounds and models follow stand there. The suite `grid` has the step sizes, too.
"""
PARTS = {
    "grid-development": "# The settings of the grid that strategies may be developed on.",
    "grid-held-back": "# The settings of the grid that are run once, at the end.",
}

SHARED = {
    "training": {"epochs": EPOCHS, "batch_size": 32, "learning_rate": 0.05},
    "evaluation": {"every": 2},
    "data": {"validation_samples": 200},
}
SPLITS = {
    "iid": {"split": "iid"},
    "one-class": {"split": "shards", "shards_per_client": 1},
    "two-shards": {"split": "shards", "shards_per_client": 2},
    "groups": {"split": "groups"},
} | {name: {"split": "dirichlet", "alpha": float(name[10:])} for name in DIRICHLET}


@dataclass(frozen=True)
class Setting:
    """A level of each factor."""

    clients: int
    share: float
    split: str
    sizes: str
    costs: float
    data: str

    @property
    def per_round(self) -> int:
        return round(self.share * self.clients)

    @property
    def name(self) -> str:
        return f"{self.data}-{self.per_round}of{self.clients}-{self.split}"

    @property
    def samples(self) -> int:
        """How many samples the clients train on, together."""
        if self.data in SAMPLES:
            return int(SAMPLES[self.data] * (1 - self.held_out))
        return 6000 if self.clients > 100 else 3000

    @property
    def held_out(self) -> float:
        """Half of few samples: a client's accuracy is to be more than a few steps."""
        return 0.5 if self.clients >= 100 else 0.2

    @property
    def rounds(self) -> int:
        most = MOST_WORK.get(self.data, MOST_OTHER_WORK)
        affordable = int(most / (self.samples * self.share * EPOCHS))
        return max(FEWEST_ROUNDS, min(ROUNDS[self.share], affordable))

    @property
    def most_of_dirichlet(self) -> float:
        """The most clients of whom a Dirichlet split leaves none without samples in most draws."""
        most = (0, 0, 100) if self.data == "flights" else (30, 100, 300)
        return dict(zip(DIRICHLET, most, strict=True)).get(self.split, math.inf)

    def possible(self) -> bool:
        """Return whether there is such a setting, and something to be seen in it."""
        natural = self.split == "groups"
        groups = {"synthetic-11": 100, "flights": 16}.get(self.data, 0)
        return (
            self.per_round >= FEWEST_PER_ROUND
            # Shares of a Dirichlet distribution and natural groups have sizes of their own.
            and (self.sizes == "uneven" or self.split not in (*DIRICHLET, "groups"))
            and (not natural or self.clients <= groups)
            # With the two classes of the table, clients of one class each are no task.
            and (self.split not in ("one-class", "two-shards") or self.data != "flights")
            # LeNet-5 learns nothing of so few photographs where each client has one class.
            and not (self.split == "one-class" and self.data == "cifar10")
            and self.clients <= self.most_of_dirichlet
            and SAMPLES.get(self.data, math.inf) >= FEWEST_SAMPLES * self.clients
        )

    def levels(self) -> list[tuple[str, object]]:
        """Return the levels, with the Dirichlet splits as one."""
        split = "dirichlet" if self.split in DIRICHLET else self.split
        return [(f, split if f == "split" else getattr(self, f)) for f in LEVELS]

    def pairs(self) -> set[tuple]:
        return set(combinations(self.levels(), 2))

    def pairs_of_concentration(self) -> set[tuple]:
        """Return the pairs of a Dirichlet split's concentration with the other levels."""
        if self.split not in DIRICHLET:
            return set()
        return {(self.split, level) for level in self.levels() if level[0] != "split"}

    def tables(self) -> dict:
        """Return what a suite says of the setting."""
        spread = self.costs
        uneven = self.sizes == "uneven" and self.split in ("iid", "one-class", "two-shards")
        model = "lenet5" if self.data in IMAGES else "mlp" if self.data == "flights" else "logistic"
        costs = {"kind": "lognormal", "spread": spread} if spread else {"kind": "constant"}
        return {
            "rounds": self.rounds,
            "per_round": self.per_round,
            "data": {
                "dataset": self.data,
                "clients": self.clients,
                "train_samples": self.samples,
                "held_out": self.held_out,
                **SPLITS[self.split],
                **({"uneven": UNEVEN} if uneven else {}),
            },
            "model": {"name": model},
            # The mean of a log-normal variable is its median times exp(spread² / 2).
            "costs": costs | {"value": round(MEAN_COST * math.exp(-(spread**2) / 2), 4)},
        }


def union(sets: Iterable[set]) -> set:
    return set().union(*sets)


def possible_settings() -> list[Setting]:
    return [s for s in (Setting(*own) for own in product(*LEVELS.values())) if s.possible()]


def draw() -> list[Setting]:
    """Return the fewest settings of a draw that covers every possible pair."""
    every = possible_settings()
    for count, attempt in product(COUNTS, range(DRAWS)):
        found = improved(every, count, stream(KEY, "grid-settings", round=attempt, client=count))
        if not uncovered(found, every):
            return found
    raise SystemExit(f"no draw of up to {COUNTS[-1]} settings covers every pair.")


def improved(every: list[Setting], count: int, rng: np.random.Generator) -> list[Setting]:
    """Return settings drawn at random, changed as long as more pairs are covered.

    A change that loses a little is kept with a margin that shrinks to nothing.
    """
    covers = bits_of(every)
    found = [every[i] for i in rng.integers(len(every), size=count).tolist()]
    places = rng.integers(count, size=MOVES).tolist()
    factors = rng.integers(len(LEVELS), size=MOVES).tolist()
    draws = rng.random((MOVES, 2)).tolist()
    names, now = list(LEVELS), missing(found, covers)
    for move, (place, factor, (level, margin)) in enumerate(
        zip(places, factors, draws, strict=True)
    ):
        levels = LEVELS[names[factor]]
        changed = replace(found[place], **{names[factor]: levels[int(level * len(levels))]})
        if changed in covers:
            tried = [*found[:place], changed, *found[place + 1 :]]
            after = missing(tried, covers)
            if after <= now + 12 * (1 - move / MOVES) * margin:
                found, now = tried, after
    return found


def bits_of(every: list[Setting]) -> dict[Setting, tuple[int, int]]:
    """Return the pairs of each setting as bits of a number, and those of concentrations."""
    found = []
    for of in (Setting.pairs, Setting.pairs_of_concentration):
        places = {pair: i for i, pair in enumerate(sorted(union(map(of, every)), key=str))}
        found.append([sum(1 << places[pair] for pair in of(s)) for s in every])
    return dict(zip(every, zip(*found, strict=True), strict=True))


def missing(found: list[Setting], covers: dict[Setting, tuple[int, int]]) -> int:
    """Return how far settings are from covering all: pairs count most, then concentrations."""
    pairs = fine = 0
    for setting in found:
        pairs |= covers[setting][0]
        fine |= covers[setting][1]
    twice = len(found) - len({s.name for s in found})
    return 10 * twice - 10 * pairs.bit_count() - fine.bit_count()


def uncovered(found: list[Setting], every: list[Setting]) -> set:
    return union(s.pairs() for s in every) - union(s.pairs() for s in found)


def divided(found: list[Setting]) -> tuple[list[Setting], list[Setting]]:
    """Return those for development and those held back, each in the order of the names."""
    order = stream(KEY, "grid-division").permutation(len(found))
    by_name = sorted(found, key=lambda s: s.name)
    held = {by_name[i].name for i in order[:HELD_BACK]}
    return [s for s in by_name if s.name not in held], [s for s in by_name if s.name in held]


def describe(development: list[Setting], held_back: list[Setting]) -> str:
    every, found = possible_settings(), development + held_back
    lines = []
    for title, own in (("development", development), ("held back", held_back)):
        lines += [f"{title}:", *(f"  {s.name}, {s.sizes}, costs {s.costs:g}" for s in own)]
    all_pairs = union(s.pairs() for s in every)
    fine = union(s.pairs_of_concentration() for s in every)
    covered = fine & union(s.pairs_of_concentration() for s in found)
    levels = sum(
        len(a) * len(b) for a, b in combinations([{x[1] for x in own} for own in grouped(every)], 2)
    )
    lines += [
        f"{len(all_pairs) - len(uncovered(found, every))} of {len(all_pairs)} possible pairs of "
        f"levels are covered; {levels - len(all_pairs)} are not possible.",
        f"Of the three Dirichlet concentrations with other levels, {len(covered)} of {len(fine)}.",
    ]
    return "\n".join(lines)


def grouped(every: list[Setting]) -> list[set]:
    """Return the levels of each factor that are possible."""
    return [set(own) for own in zip(*(s.levels() for s in every), strict=True)]


def write_suites(folder: Path, development: list[Setting], held_back: list[Setting]) -> None:
    """Write the settings, and the suites of the two parts."""
    shared = {"name": "grid-settings", "seeds": 5, "strategies": STRATEGIES, "run": SHARED}
    texts = {"grid-settings": [ABOUT + to_toml(shared).rstrip() + "\n"]}
    for setting in sorted(development + held_back, key=lambda s: s.name):
        lines = [f"{key} = {toml_value(own)}" for key, own in setting.tables().items()]
        texts["grid-settings"] += ["\n".join([f'[settings."{setting.name}"]', *lines, ""])]
    parts = {"grid-development": development, "grid-held-back": held_back}
    for name, part in parts.items():
        lines = [f'  "{setting.name}",' for setting in part]
        text = [PARTS[name], f'name = "{name}"', 'extends = "grid"', "settings = [", *lines, "]"]
        texts[name] = ["\n".join([*text, ""])]
    for name, own in texts.items():
        write_atomically(folder / f"{name}.toml", "\n".join(own).encode())


def measure(found: list[Setting], out: Path) -> None:
    """Print what FedAvg comes to in each setting, on a seed that no result uses."""
    for setting in found:
        chosen = {"strategy.name": "fedavg", "seed": TRIED_SEED, "engine.processes": 1}
        tables = with_settings(SHARED, chosen | dotted_settings(setting.tables()))
        began = process_time()
        summary = run_config(make_config(tables), out / setting.name).summary()
        print(
            f"{setting.name}: {summary['accuracy']:.1f} / {summary['accuracy_variance']:.0f}, "
            f"{setting.rounds} rounds, {process_time() - began:.1f} s of a core",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    parser.add_argument("--measure", type=Path, metavar="OUT")
    options = parser.parse_args()
    development, held_back = divided(draw())
    print(describe(development, held_back))
    if options.write:
        write_suites(options.write, development, held_back)
    if options.measure:
        measure(development + held_back, options.measure)


if __name__ == "__main__":
    main()
