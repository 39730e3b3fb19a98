"""Your own arrays, model and strategy in one federation; takes a few seconds.

Usage: ``python examples/own_federation.py [DIRECTORY]``; by default a temporary directory.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import nn

import flamma
from flamma.data import from_arrays
from flamma.strategies import STRATEGIES
from flamma.strategies.base import Round, State
from flamma.strategies.fedavg import FedAvg
from flamma.types import Terms


@dataclass(frozen=True)
class Tilted(FedAvg):
    """FedAvg whose weights grow with the loss: p_k exp(tilt F_k) (TERM, Li et al., ICLR 2021)."""

    name: ClassVar[str] = "tilted"
    summary: ClassVar[str] = "FedAvg with weights tilted towards clients with a large loss"

    tilt: float = 2.0

    def terms(self, client: int, round: int) -> Terms:
        """Ask each client for the loss of the model it receives."""
        return replace(super().terms(client, round), report_loss="received")

    def step(self, state: State, round: Round) -> State:
        """Take the tilted mean of the models."""
        reports = [r for r in round.updates if np.isfinite(r.loss)]
        if not reports:
            return state
        highest = max(r.loss for r in reports)  # taken off, so that exp cannot overflow
        weights = [r.samples * np.exp(self.tilt * (r.loss - highest)) for r in reports]
        return replace(state, params=self.average(round.only(reports), weights))


def site(number: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one site's samples: three clouds, turned a little further at each site."""
    rng = np.random.default_rng([number, samples])
    labels = rng.integers(0, 3, samples)
    angle = 2 * np.pi * labels / 3 + 0.12 * number
    centres = np.column_stack([np.cos(angle), np.sin(angle)])
    return 2 * centres + rng.normal(size=(samples, 2)), labels


def small_network(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return one hidden layer; FLamma seeds the first weights."""
    return nn.Sequential(nn.Linear(shape[0], 16), nn.Tanh(), nn.Linear(16, classes))


def main(out: Path) -> None:
    """Run three strategies on the same sites and print one line for each."""
    STRATEGIES.add("tilted", Tilted)
    data = from_arrays(
        clients=[site(k, 60 + 10 * k) for k in range(8)],
        held_out=[site(k, 40) for k in range(8)],
    )
    for name in ("fedavg", "tilted", "flamma"):
        config = {"rounds": 15, "per_round": 3, "strategy": {"name": name}}
        run = flamma.run(config, data=data, model=small_network, out=out / name)
        found = run.summary()
        accuracy, variance = found["accuracy"], found["accuracy_variance"]
        print(f"{name}: accuracy {accuracy:.1f}%, variance {variance:.1f} %^2")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
