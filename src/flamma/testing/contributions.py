"""The contracts of contribution measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from flamma.contributions import CONTRIBUTIONS, RoundUpdates, measure_round
from flamma.seeding import stream
from flamma.testing.parts import PartContract
from flamma.types import Floats, Params

CLIENT_COUNT, WEIGHT_COUNT = 5, 60
Conduct = Literal["work", "idle", "noise", "repeat"]


def updates_of(
    models: Sequence[Params], before: Params, target: Floats | None = None
) -> RoundUpdates:
    """Return the updates of clients with equal shares, their mean being the new model.

    The validation loss is the mean squared distance from ``target``, by default 0 everywhere.
    """
    count = len(models)
    goal = np.zeros(before.size) if target is None else target

    def validate(params: Params) -> tuple[float, float]:
        with np.errstate(over="ignore"):
            loss = float(np.mean((params.astype(np.float64) - goal) ** 2))
        return loss, 100 / (1 + loss)

    return RoundUpdates(
        clients=np.arange(count),
        models=list(models),
        before=before,
        after=np.stack(models).astype(np.float64).mean(axis=0).astype(np.float32),
        trainable_size=before.size,
        weights=np.full(count, 1 / count),
        previous=np.full(count, np.nan),
        round=2,
        validate=validate,
    )


def played_round(conduct: Conduct, seed: int = 0, work: int = 5) -> RoundUpdates:
    """Return the second round of clients with quadratic losses, of which client 0 may cheat.

    Every client takes ``work`` gradient steps towards an optimum of its own near the common one.
    Some directions are steep and learned in the first round, so the update of that round is of
    little use in the second.
    """
    rng = stream(seed, "quadratic-clients")
    steps = np.geomspace(0.6, 0.02, WEIGHT_COUNT)  # step size times curvature
    common = 3 * rng.normal(size=WEIGHT_COUNT)
    optima = common + 0.5 * rng.normal(size=(CLIENT_COUNT, WEIGHT_COUNT))

    def moves(model: Floats, epochs: Sequence[int]) -> Floats:
        way: Floats = 1 - (1 - steps) ** np.array(epochs)[:, np.newaxis]
        return way * (optima - model)

    first = moves(np.zeros(WEIGHT_COUNT), [5] * CLIENT_COUNT)
    received = first.mean(axis=0)
    now = moves(received, [work, *[5] * (CLIENT_COUNT - 1)])
    noise = rng.normal(size=WEIGHT_COUNT) / np.sqrt(WEIGHT_COUNT)
    own = {
        "work": now[0],
        "idle": 1e-3 * noise,
        "noise": np.linalg.norm(now[1:], axis=1).mean() * noise,
        "repeat": first[0],
    }
    now[0] = own[conduct]
    before = received.astype(np.float32)
    updates = updates_of([(received + move).astype(np.float32) for move in now], before, common)
    return replace(updates, last_step=before)  # the first round began at 0


def _always(loss: float) -> Callable[[Params], tuple[float, float]]:
    return lambda params: (loss, math.nan)


class ContributionContract(PartContract):
    """The tests that a contribution measure passes."""

    registry = CONTRIBUTIONS

    def measured(self, updates: RoundUpdates) -> Floats:
        """Return the contributions, having checked that each lies between 0 and 1."""
        found = measure_round(self.choice, updates)
        assert found.shape == (len(updates.models),)
        assert np.all((found >= 0) & (found <= 1))
        return found

    def test_a_contribution_lies_between_0_and_1(self) -> None:
        """Whatever the updates are, of one client or several, and however large."""
        for seed in range(20):
            rng = stream(seed, "update")
            drawn = rng.normal(size=(CLIENT_COUNT + 1, 30)).astype(np.float32) * 10**seed
            for count in (1, 2, CLIENT_COUNT):
                self.measured(updates_of(list(drawn[:count]), drawn[-1]))

    def test_updates_that_are_zero_or_cancel_out_are_no_error(self) -> None:
        """Where no client moved, or the server did not, there is still a number for each."""
        zero, one = np.zeros(30, dtype=np.float32), np.ones(30, dtype=np.float32)
        for before in (zero, one):
            for moves in ([zero], [zero, zero], [one, -one], [one, -one, zero], [one] * 3):
                self.measured(updates_of([before + move for move in moves], before))

    def test_equal_updates_contribute_equally(self) -> None:
        """Clients of equal weight that send the same are not told apart."""
        found = self.measured(
            updates_of([np.arange(1, 31, dtype=np.float32)] * 3, np.zeros(30, np.float32))
        )
        np.testing.assert_allclose(found, found[0], rtol=1e-9, atol=1e-12)

    def test_scores_that_are_not_finite_are_no_error(self) -> None:
        """A model whose validation loss overflows has one like any other."""
        updates = played_round("work")
        for loss in (np.nan, np.inf, -np.inf, 1e308):
            self.measured(replace(updates, validate=_always(loss)))

    def test_the_same_updates_give_the_same_contributions(self) -> None:
        """A measure depends on the updates alone, and does not change them."""
        updates = played_round("work")
        before = [model.copy() for model in (*updates.models, updates.before, updates.after)]
        first, second = self.measured(updates), self.measured(updates)
        np.testing.assert_array_equal(first, second)
        after = [*updates.models, updates.before, updates.after]
        for vector, copy in zip(after, before, strict=True):
            np.testing.assert_array_equal(vector, copy)


class RewardContract(ContributionContract):
    """The further tests of a measure that clients can be paid by."""

    cheats: ClassVar[tuple[Conduct, ...]] = ("idle", "noise")

    def test_cheating_earns_less_than_working(self) -> None:
        """Doing nothing and sending noise, or what else ``cheats`` names, earn less."""
        for seed in range(5):
            honest = self.measured(played_round("work", seed))[0]
            for conduct in self.cheats:
                assert self.measured(played_round(conduct, seed))[0] < honest, conduct

    def test_more_work_is_never_paid_less(self) -> None:
        """The pay of a round, ω times epochs, does not fall with the epochs done."""
        for seed in range(5):
            pay = [
                work * self.measured(played_round("work", seed, work))[0] for work in range(1, 9)
            ]
            assert np.all(np.diff(pay) >= 0), pay
            assert pay[-1] > pay[0]
