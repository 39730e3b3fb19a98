"""The paper's convergence theorem against measurements, on strongly convex logistic regression.

For every number of rounds T, is the mean of F(w_T) - F* over seeds under the bound

    (κ / T) (2 (B + C) / ρ + ρ ξ γ_max M / 2),   κ = β / ρ,  ξ = max(8 κ, τ_max),  η = 2 / (ρ ξ),
    B = Σ p_k² γ_max σ_k² / ρ + 6 β η² + 8 (τ_max - 1)² G²,   C = 4 τ_max² G² / K,

as it is printed? F is the mean of the clients' regularised losses, so ρ and β are known; F* and w*
are found by Newton's method; σ_k and G are measured along the run. Clients take τ_i SGD steps on
mini-batches, with τ_i their best response to γ, and step η γ: the strategy is the package's own.

    python benchmarks/convergence.py [--rounds 200] [--seeds 5] [--out convergence.csv]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flamma.experiments.result import text_table
from flamma.seeding import stream
from flamma.strategies import STRATEGIES
from flamma.types import Plan, Population, Profile, Update

FEATURES, CLIENTS, SAMPLES, BATCH = 10, 10, 200, 16
MOST_EPOCHS = 10


@dataclass(frozen=True)
class Problem:
    """Two classes, clients whose samples are shifted each in its own direction."""

    x: np.ndarray  # clients, samples, features
    y: np.ndarray  # clients, samples, -1 or 1
    strength: float

    def gradient(self, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        pull = -y / (1 + np.exp(y * (x @ w)))
        return x.T @ pull / len(y) + self.strength * w

    def loss(self, w: np.ndarray) -> float:
        margins = self.y * (self.x @ w)
        return float(np.logaddexp(0, -margins).mean() + self.strength / 2 * (w @ w))

    def smoothness(self) -> float:
        """Return β: no client's Hessian has a larger eigenvalue anywhere."""
        largest = max(np.linalg.eigvalsh(x.T @ x / len(x))[-1] for x in self.x)
        return float(largest / 4 + self.strength)

    def optimum(self) -> np.ndarray:
        x, y = self.x.reshape(-1, FEATURES), self.y.reshape(-1)
        w = np.zeros(FEATURES)
        for _ in range(50):
            p = 1 / (1 + np.exp(-(x @ w)))
            hessian = (x * (p * (1 - p))[:, None]).T @ x / len(y)
            w -= np.linalg.solve(hessian + self.strength * np.eye(FEATURES), self.gradient(w, x, y))
        return w


def problem(strength: float) -> Problem:
    rng = stream(0, "convergence")
    truth, shift = rng.normal(size=FEATURES), rng.normal(size=(CLIENTS, 1, FEATURES))
    x = rng.normal(size=(CLIENTS, SAMPLES, FEATURES)) + shift
    y = np.where(rng.random((CLIENTS, SAMPLES)) < 1 / (1 + np.exp(-(x @ truth))), 1.0, -1.0)
    return Problem(x / np.linalg.norm(x, axis=2).max(), y, strength)


class Watched:
    """Trains clients, and keeps the largest gradient and each client's variance."""

    def __init__(self, task: Problem) -> None:
        self.task, self.largest = task, 0.0
        self.spread = np.zeros(CLIENTS)

    def train(self, client: int, w: np.ndarray, epochs: int, step: float, rng) -> np.ndarray:
        x, y = self.task.x[client], self.task.y[client]
        for _ in range(epochs):
            rows = rng.choice(SAMPLES, BATCH, replace=False)
            found = self.task.gradient(w, x[rows], y[rows])
            off = found - self.task.gradient(w, x, y)
            self.largest = max(self.largest, float(found @ found))
            self.spread[client] = max(self.spread[client], float(off @ off))
            w = w - step * found
        return w


def run(watched: Watched, name: str, rounds: int, per_round: int, step: float, seed: int) -> list:
    strategy = STRATEGIES[name](
        plan=Plan(rounds, per_round, epochs=5, learning_rate=step, batch_size=BATCH)
    )
    start = stream(0, "start").normal(size=FEATURES).astype(np.float32)
    costs = np.full(CLIENTS, 0.1)
    known = Population(np.full(CLIENTS, SAMPLES), costs, FEATURES)
    state, losses = strategy.init(start, known), []
    while state.round < rounds:
        rng = stream(seed, "select", state.round + 1)
        offer = strategy.offer(state, np.arange(CLIENTS), rng)
        reports = []
        for terms in offer.terms:
            task = strategy.respond(terms, Profile(terms.client, 0.1, SAMPLES))
            count = task.epochs if task.terms.batches is None else task.terms.batches
            batches = stream(seed, "train", offer.round, terms.client)
            trained = watched.train(
                terms.client, state.params.astype(float), count, task.learning_rate, batches
            )
            reports.append(
                Update(terms.client, trained.astype(np.float32), SAMPLES, task.epochs, loss=1.0)
            )
        state, _ = strategy.aggregate(state, offer, reports)
        if offer.round > 0:
            losses.append(watched.task.loss(state.params.astype(float)))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--per-round", type=int, default=3)
    parser.add_argument("--strength", type=float, default=0.1, help="of the regularisation, ρ")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    task = problem(options.strength)
    rho, beta, best = options.strength, task.smoothness(), task.optimum()
    kappa = beta / rho
    xi = max(8 * kappa, MOST_EPOCHS)
    eta = 2 / (rho * xi)
    least = task.loss(best)
    start = stream(0, "start").normal(size=FEATURES).astype(np.float32)
    gaps, constants, rows = {}, {}, []
    for name in ("flamma", "flamma-plus", "fedavg"):
        watched = Watched(task)
        losses = [
            run(watched, name, options.rounds, options.per_round, eta, seed)
            for seed in range(options.seeds)
        ]
        gaps[name] = np.mean(losses, axis=0) - least
        g2, m = watched.largest, float(np.sum((start - best) ** 2))
        b = np.sum(watched.spread) / CLIENTS**2 / rho + 6 * beta * eta**2
        b += 8 * (MOST_EPOCHS - 1) ** 2 * g2
        c = 4 / options.per_round * MOST_EPOCHS**2 * g2
        bound = kappa / np.arange(1, options.rounds + 1) * (2 * (b + c) / rho + rho * xi * m / 2)
        constants[name] = (g2, float(np.max(watched.spread)), m, b, c, bound)
        ratio = gaps[name] / bound
        for number in (1, 10, 50, 100, options.rounds):
            if number <= options.rounds:
                measured, limit = gaps[name][number - 1], bound[number - 1]
                rows.append([name, str(number), f"{measured:.2e}", f"{limit:.2e}"])
        print(
            f"{name}: {'under the bound for every T' if (ratio < 1).all() else 'ABOVE THE BOUND'}, "
            f"largest share of it {ratio.max():.1e}"
        )
    g2, sigma2, m, b, c, _ = constants["flamma"]
    print(
        f"ρ {rho:g}, β {beta:.3f}, κ {kappa:.2f}, ξ {xi:.1f}, η {eta:.3f}; for flamma G² {g2:.3f}, "
        f"largest σ_k² {sigma2:.3f}, M {m:.2f}, B {b:.1f}, C {c:.1f}"
    )
    print(text_table(["strategy", "T", "F(w_T) - F*", "bound"], rows))
    if options.out:
        lines = ["strategy,T,gap,bound"] + [
            f"{name},{t + 1},{gap:.6g},{constants[name][-1][t]:.6g}"
            for name, curve in gaps.items()
            for t, gap in enumerate(curve)
        ]
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
