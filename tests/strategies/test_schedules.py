"""What a schedule of the learning rate shortens, in every strategy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import flamma
from flamma.strategies import STRATEGIES
from flamma.strategies.base import ServerSide
from flamma.strategies.multi_objective import AdaFed, FedMgdaPlus
from flamma.strategies.rewards import CGSV
from flamma.strategies.server_optimisers import FedAdam, FedYogi
from flamma.testing.strategies import SIZE, TRAINABLE, ToyFederation
from flamma.training import lanes
from flamma.training.optimisers import SCHEDULES
from flamma.types import Plan, Population

PAGE = Path(__file__).parents[2] / "docs/how-to/training.md"
ROUNDS, LAST = 60, 8
FALLS = SCHEDULES["step"](every=20, ratio=0.1)
"""To a tenth after round 20, and to a hundredth after round 40."""


def late_step(name, *, server=None, clients=None):
    """Return the mean length of the last steps of the models that clients evaluate.

    The server and the clients have schedules of their own. Updates are so short that gradients stay
    as they are, so that nothing but a schedule can make steps shorter.
    """
    world = ToyFederation.make()
    here, there = (
        STRATEGIES[name](Plan(ROUNDS, 3, epochs=4, learning_rate=1e-4, schedule=schedule))
        for schedule in (server, clients)
    )
    side, state, models = world.side(there), world.begin(here), []
    while state.round < ROUNDS:
        state = world.hear(here, state)
        offer = world.offer(here, state)
        answers = world.answers(there, state, offer)
        state, _ = here.aggregate(
            state, offer, answers, ServerSide(world.validate, train=world.train_server)
        )
        sent = here.broadcast(state)
        models.append(np.concatenate([side.model_of(c, sent) for c in world.all_clients.tolist()]))
    return np.linalg.norm(np.diff(models[-LAST - 1 :], axis=0), axis=1).mean()


def acts_on(name):
    """Return what a schedule acts on, by how late steps change."""
    before = late_step(name)
    of_clients = late_step(name, clients=FALLS) / before
    of_both = late_step(name, server=FALLS, clients=FALLS) / before
    assert of_both < 0.5, "late steps are as long as ever"
    if of_clients > 0.98:
        assert of_both == pytest.approx(0.01, rel=0.1)
        return "both"
    return "clients" if of_both < 0.02 else "clients, later"


def documented():
    """Return what the page says: the strategies of the first rows of its table by name."""
    rows = re.findall(r"^\| ((?:`[a-z+-]+`,? ?)+)\| the clients' learning rate(.*?):", *_page())
    return [(set(re.findall("`(.*?)`", names)), rest) for names, rest in rows]


def _page():
    return PAGE.read_text(), re.MULTILINE


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_schedule_shortens_the_steps_of_every_strategy_as_the_page_says(name):
    (both, words), (later, other_words) = documented()
    assert (words, other_words) == (" and the server's step", " only")
    assert both | later <= {*STRATEGIES}
    expected = "both" if name in both else "clients, later" if name in later else "clients"
    assert acts_on(name) == expected


@pytest.mark.parametrize("kind", [FedMgdaPlus, AdaFed, CGSV])
def test_updates_of_one_length_make_steps_in_proportion_to_the_schedule(kind):
    world, schedule = ToyFederation.make(), SCHEDULES["cosine"](floor=0.1)
    falling, constant = (
        kind(Plan(10, per_round=3, epochs=4, learning_rate=0.1, schedule=own))
        for own in (schedule, None)
    )
    state = world.begin(falling)
    while state.round < 10:
        offer = world.offer(falling, state)
        answers = world.answers(falling, state, offer)
        after, _ = falling.aggregate(state, offer, answers)
        whole, _ = constant.aggregate(state, offer, answers)
        step, whole_step = (
            own.params[:TRAINABLE].astype(np.float64) - state.params[:TRAINABLE]
            for own in (after, whole)
        )
        factor = schedule.factor(offer.round, 10)
        np.testing.assert_allclose(step, factor * whole_step, rtol=1e-4, atol=1e-6)
        state = after
    assert factor == pytest.approx(0.122, abs=1e-3)


@pytest.mark.skipif(not lanes.available(), reason="only lanes give the same bits everywhere")
@pytest.mark.parametrize("schedule", [{}, {"schedule": "constant"}])
@pytest.mark.parametrize(
    ("strategy", "digest"),
    [
        ("fedmgda+", "5a1308e67789049ff8ebe3ca39e8d97ed737b2f98526e4aa4cfbd58c0da019c8"),
        ("adafed", "e3d4d8d9da96b959e28c5961fd7effa647b5994d18a08784e1928bab29a1d981"),
        ("cgsv", "3cc30a4a47d50dc99530d6a411b17a093f3338b4d64604ce4fa3137b42cc18bf"),
    ],
)
def test_with_a_constant_schedule_the_bits_are_those_of_version_0_2(
    strategy, digest, schedule, tmp_path
):
    config = {
        "rounds": 3,
        "per_round": 2,
        "strategy": strategy,
        "data": {"clients": 4, "train_samples": 80},
        "model": "mlp",
        "training": {"epochs": 1, "batch_size": 8, **schedule},
    }
    assert flamma.run(config, out=tmp_path / "run").params_sha256 == digest


@pytest.mark.parametrize(("kind", "regained"), [(FedAdam, 0.9), (FedYogi, 0.1)])
def test_adam_forgets_longer_updates_and_yogi_hardly_does(kind, regained):
    """As the page says: Adam's step regains its length after the learning rate has fallen."""
    strategy = kind(Plan(1, 1))
    start = np.zeros(SIZE, dtype=np.float32)
    state = strategy.init(start, Population(np.array([10]), None, TRAINABLE))
    lengths = []
    for update in [0.1] * 1000 + [0.01] * 1000:
        step, state = strategy.move(state, np.full(TRAINABLE, update))
        lengths.append(step[0] / lengths[999] if len(lengths) > 999 else step[0])
    assert lengths[1050] == pytest.approx(0.1, abs=0.05)
    assert lengths[-1] == pytest.approx(regained, abs=0.05)
