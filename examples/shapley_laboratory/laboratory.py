"""How contribution measures compare with exact Shapley values, and what cheating earns.

Usage: ``python examples/shapley_laboratory/laboratory.py [--clients N] [--rounds T] [--seed S]``
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy.stats import kendalltau, spearmanr

import flamma
from flamma.contributions import CONTRIBUTIONS
from flamma.contributions.shapley import exact_shapley
from flamma.registry import Choice
from flamma.strategies import STRATEGIES
from flamma.strategies.base import Needs, Round, State, measured_contributions
from flamma.strategies.fedavg import FedAvg
from flamma.types import Floats, Ints, Update

DEVIATIONS = ("free-rider", "noise", "repeater", "step-rider", "duplicate")


@dataclass
class Notes:
    """Data of one measured run: contributions by measure, and what a deviator remembers."""

    last: dict[str, Floats] = field(default_factory=dict)
    total: dict[str, Floats] = field(default_factory=dict)
    first_move: Floats | None = None
    step: Floats | None = None


notes = Notes()


@dataclass(frozen=True)
class Coalition(FedAvg):
    """FedAvg among the clients of a coalition: bit i says whether client i belongs to it."""

    name: ClassVar[str] = "coalition"
    needs: ClassVar[Needs] = Needs(validation=True, server_reads="mean")

    coalition: int = 1
    measured: bool = False
    deviation: str = ""
    deviator: int = 0

    def select(self, state: State, available: Ints, rng: np.random.Generator) -> Ints:
        """Return all members."""
        return np.array([k for k in available if self.coalition >> int(k) & 1])

    def step(self, state: State, round: Round) -> State:
        """Average what is sent; where it is measured, add up each client's contributions."""
        if self.deviation:
            round = round.only(self.sent(state, round.updates))
        after = super().step(state, round)
        clients, step = state.samples.size, notes.step
        for name in CONTRIBUTIONS if self.measured else ():
            notes.last[name] = measured_contributions(
                Choice(name),
                round,
                after=after.params,
                trainable_size=state.params.size,
                last=notes.last.get(name, np.full(clients, np.nan)),
                last_step=None if step is None else step.astype(np.float32),
            )
            notes.total[name] = notes.total.get(name, np.zeros(clients)) + notes.last[name]
        notes.step = after.params.astype(np.float64) - state.params
        return after

    def sent(self, state: State, reports: tuple[Update, ...]) -> tuple[Update, ...]:
        """Return the reports with a made-up update of the deviator."""
        me, received = self.deviator, state.params.astype(np.float64)
        honest = [np.zeros(1) if r.params is None else r.params - received for r in reports]
        rng = np.random.default_rng([self.deviator, state.round])
        noise = rng.normal(size=received.size) / np.sqrt(received.size)  # of length 1 on average
        idle = 1e-3 * np.linalg.norm(received) * noise
        if notes.first_move is None:
            notes.first_move = honest[me]
        others = [np.linalg.norm(move) for k, move in enumerate(honest) if k != me]
        move = {
            "free-rider": idle,
            "noise": np.mean(others) * noise,
            "repeater": notes.first_move,
            "step-rider": idle if notes.step is None else notes.step,
            "duplicate": honest[(me + 1) % len(honest)],
        }[self.deviation]
        made_up = replace(reports[me], params=(received + move).astype(np.float32))
        return (*reports[:me], made_up, *reports[me + 1 :])


def main() -> None:
    """Train every coalition, then let every client deviate in every way, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=4, help="2^N coalitions are trained")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    clients = range(options.clients)
    everyone = (1 << options.clients) - 1
    STRATEGIES.add("coalition", Coalition)

    def train(coalition: int, **strategy: object) -> tuple[float, dict[str, Floats]]:
        """Return a coalition's test accuracy, and its clients' contributions by each measure."""
        global notes
        notes = Notes()
        config = {
            "rounds": options.rounds,
            "per_round": coalition.bit_count(),
            "seed": options.seed,
            "model": "logistic",
            "strategy": {"name": "coalition", "coalition": coalition, **strategy},
            "data": {"clients": options.clients, "validation_samples": 200},
        }
        with tempfile.TemporaryDirectory() as folder:
            run = flamma.run(config, out=Path(folder) / "run")
        return run.history[-1].metric("test_accuracy"), notes.total

    # The empty coalition's worth is the same for all clients, so that no ranking depends on it.
    worth = [0.0, *(train(coalition)[0] for coalition in range(1, everyone + 1))]
    exact = exact_shapley(np.array(worth))
    honest = train(everyone, measured=True)[1]
    cheats = [
        [train(everyone, measured=True, deviation=name, deviator=k)[1] for k in clients]
        for name in DEVIATIONS
    ]
    print("exact Shapley values of the test accuracy:", *np.round(exact, 1))
    print(f"{'measure':16}  spearman  kendall", *(f"{name:>10}" for name in DEVIATIONS))
    for measure, total in honest.items():
        earned = [np.mean([row[k][measure][k] for k in clients]) for row in cheats]
        cells = (f"{value / total.mean():10.2f}" for value in earned)
        ranks = spearmanr(exact, total)[0], kendalltau(exact, total)[0]
        print(f"{measure:16}  {ranks[0]:8.2f}  {ranks[1]:7.2f}", *cells)


if __name__ == "__main__":
    main()
