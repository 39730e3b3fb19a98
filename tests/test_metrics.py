"""Metrics: golden values worked out by hand, laws that must hold for any clients, odd input."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flamma import metrics
from flamma.errors import FlammaError
from flamma.numerics import log
from flamma.types import Scores

NAN = float("nan")
EVENNESS = (metrics.jain, metrics.gini, metrics.entropy, metrics.kl_uniform)
ACCURACIES = st.lists(st.floats(0, 100), min_size=1, max_size=22)
AMOUNTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1e300)), min_size=1, max_size=22)
KEYS = {
    "accuracy",
    "accuracy_variance",
    "accuracy_variance_weighted",
    "accuracy_std",
    "worst_10",
    "best_10",
    "min",
    "range",
    "jain",
    "gini",
    "entropy",
    "kl_uniform",
    "clients_scored",
}


def summarise(accuracy, samples):
    """Every metric of an evaluation that goes by the clients' accuracies."""
    array = np.asarray(accuracy, dtype=float)
    scores = Scores(array, np.zeros(array.size), np.asarray(samples), 0.0, 0.0)
    found = metrics.evaluate(scores).metrics
    return {k: NAN if v is None else v for k, v in found.items() if k in KEYS}


# Golden values.


def test_the_summary_of_four_clients_worked_out_by_hand():
    found = summarise([20.0, 40.0, 60.0, 80.0], [1, 1, 1, 5])
    # sum 200, mean 50; offsets -30, -10, 10, 30 with squares 900, 100, 100, 900: 2000 / 4 = 500.
    # Weighted by 1/8, 1/8, 1/8, 5/8: mean (20 + 40 + 60 + 5 * 80) / 8 = 65; offsets
    # -45, -25, -5, 15 with squares 2025, 625, 25, 225: (2025 + 625 + 25 + 5 * 225) / 8 = 475.
    # Jain: 200^2 / (4 * (400 + 1600 + 3600 + 6400)) = 40000 / 48000 = 5/6.
    # Gini: sorted, counted -3, -1, 1, 3 times: (-60 - 40 + 60 + 240) / (4 * 200) = 1/4.
    # Shares 0.1, 0.2, 0.3, 0.4: entropy 0.1 ln 10 + 0.2 ln 5 + 0.3 ln(10/3) + 0.4 ln 2.5.
    entropy = 0.1 * math.log(10) + 0.2 * math.log(5) + 0.3 * math.log(10 / 3) + 0.4 * math.log(2.5)
    expected = {
        "accuracy": 50.0,
        "accuracy_variance": 500.0,
        "accuracy_variance_weighted": 475.0,
        "accuracy_std": 22.360679774997898,  # sqrt(500) = 10 sqrt(5)
        "worst_10": 20.0,
        "best_10": 80.0,
        "min": 20.0,
        "range": 60.0,
        "jain": 5 / 6,
        "gini": 0.25,
        "entropy": entropy,
        "kl_uniform": math.log(4) - entropy,
        "clients_scored": 4.0,
    }
    assert found == pytest.approx(expected, rel=1e-12)
    assert set(found) == KEYS
    assert all(type(value) is float for value in found.values())


@pytest.mark.parametrize(
    ("clients", "counted"),  # the tenth, rounded up
    [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3), (30, 3), (70, 7), (100, 10)],
)
def test_the_worst_and_best_tenth_round_up(clients, counted):
    accuracy = np.arange(clients, dtype=float)  # 0, 1, 2, ...: k of them have the mean (k - 1) / 2
    assert metrics.worst_10(accuracy) == (counted - 1) / 2
    assert metrics.best_10(accuracy) == clients - 1 - (counted - 1) / 2


def test_clients_without_held_out_data_are_left_out():
    with_gaps = summarise([NAN, 20.0, 40.0, NAN, 60.0, 80.0], [9, 1, 1, 0, 1, 5])
    assert with_gaps == summarise([20.0, 40.0, 60.0, 80.0], [1, 1, 1, 5])


def test_participation_worked_out_by_hand():
    found = metrics.participation(selection_counts=[3, 1, 0, 0], epochs=[2, 2, 2, 0])
    # Selection: 4^2 / (4 * 10) = 0.4; Gini (-3*0 - 0 + 1 + 9) / (4 * 4) = 10/16; 2 of 4 covered.
    # Epochs: 6^2 / (4 * 12) = 0.75; Gini (0 - 2 + 2 + 6) / (4 * 6) = 1/4; 3 of 4 covered.
    assert found == pytest.approx(
        {
            "selection_jain": 0.4,
            "selection_gini": 0.625,
            "selection_coverage": 0.5,
            "epochs_jain": 0.75,
            "epochs_gini": 0.25,
            "epochs_coverage": 0.75,
        }
    )


def test_collaborative_fairness_worked_out_by_hand():
    # Offsets -1, 0, 1 and -1, 1, 0 (times 10): products sum to 1, squares to 2 and 2: 1 / 2.
    assert metrics.collaborative_fairness([50, 60, 70], [40, 60, 50]) == pytest.approx(0.5)
    assert metrics.collaborative_fairness([50, 60, 70], [90, 80, 70]) == pytest.approx(-1.0)
    # A client with one of the two unknown does not count.
    assert metrics.collaborative_fairness(
        [50, NAN, 60, 70, 99], [40, 10, 60, 50, NAN]
    ) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("standalone", "final"),
    [
        ([], []),
        ([50.0], [60.0]),
        ([50.0, NAN], [60.0, 70.0]),
        ([50.0, 60.0], [70.0, 70.0]),
        ([0.0, 0.0], [70.0, 80.0]),
        ([50.0, 60.0], [0.1 + 0.2, 0.3]),  # constant but for rounding
    ],
)
def test_a_correlation_with_a_constant_is_not_defined(standalone, final):
    assert metrics.collaborative_fairness(standalone, final) is None
    assert metrics.collaborative_fairness(final, standalone) is None


def test_shares_of_clients_that_gain():
    assert metrics.ir_ratio([1.0, 0.0, -0.1, 2.0]) == 0.75
    assert metrics.ir_ratio([NAN, -1.0]) == 0.0
    assert metrics.ir_ratio([1.0 * 0.3 * 3 - 0.1 * 3**2]) == 1.0  # 0 in decimals, -1e-16 in binary
    alone, together = [50, 60, 70, NAN, 80], [60, 60, 60, 99, 81]
    assert metrics.better_off(alone, together) == 0.5  # of the four known: 60 > 50 and 81 > 80
    assert metrics.better_off(alone, together, ties=True) == 0.75


# Laws.


@given(ACCURACIES, st.randoms())
def test_the_order_of_clients_does_not_matter(accuracy, random):
    samples = list(range(1, len(accuracy) + 1))
    order = random.sample(range(len(accuracy)), len(accuracy))
    shuffled = summarise([accuracy[i] for i in order], [samples[i] for i in order])
    assert shuffled == pytest.approx(summarise(accuracy, samples), rel=1e-9, abs=1e-9)


@given(ACCURACIES, st.floats(0.01, 1))
def test_scale_moves_levels_and_leaves_evenness(accuracy, factor):
    assume(min((a for a in accuracy if a > 0), default=1.0) > 1e-200)
    samples = np.ones(len(accuracy))
    full = summarise(accuracy, samples)
    scaled = summarise(factor * np.array(accuracy), samples)
    powers = dict.fromkeys(("accuracy", "accuracy_std", "worst_10", "best_10", "min", "range"), 1)
    powers |= {"accuracy_variance": 2, "accuracy_variance_weighted": 2}
    for key, value in full.items():
        assert scaled[key] == pytest.approx(
            value * factor ** powers.get(key, 0), rel=1e-9, abs=1e-9
        )


@given(ACCURACIES)
def test_levels_are_in_order_and_the_variance_is_numpys(accuracy):
    found = summarise(accuracy, np.ones(len(accuracy)))
    levels = [
        found["min"],
        found["worst_10"],
        found["accuracy"],
        found["best_10"],
        found["min"] + found["range"],
    ]
    assert all(low <= high + 1e-9 for low, high in pairwise(levels))
    assert found["accuracy_variance"] == pytest.approx(np.var(accuracy), rel=1e-9, abs=1e-9)
    assert found["accuracy_variance_weighted"] == pytest.approx(found["accuracy_variance"])
    assert found["accuracy_variance"] <= 2500 + 1e-9  # half of them at 0, half at 100


@given(AMOUNTS)
def test_evenness_keeps_its_bounds(amounts):
    size = len(amounts)
    most = float(log(size))  # which may be a last bit above that of the C library
    jain, gini, entropy, divergence = (metric(amounts) for metric in EVENNESS)
    assert 1 / size - 1e-12 <= jain <= 1
    assert 0 <= gini <= 1 - 1 / size + 1e-12
    assert 0 <= entropy <= most
    assert 0 <= divergence <= most
    assert entropy + divergence == pytest.approx(math.log(size))


@given(ACCURACIES)
def test_jain_is_the_squared_cosine_to_even(accuracy):
    assume(np.linalg.norm(accuracy) > 1e-100)
    even = np.ones(len(accuracy))
    cosine = np.dot(accuracy, even) / (np.linalg.norm(accuracy) * np.linalg.norm(even))
    assert metrics.jain(accuracy) == pytest.approx(cosine**2)


@given(ACCURACIES)
def test_jain_and_the_coefficient_of_variation_say_the_same(accuracy):
    mean = metrics.mean(accuracy)
    assume(mean > 1e-6)
    variation = metrics.variance(accuracy) / mean**2
    assert metrics.jain(accuracy) == pytest.approx(1 / (1 + variation))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=15))
def test_gini_and_entropy_are_their_definitions(amounts):
    x = np.array(amounts)
    pairs = np.abs(x[:, None] - x[None, :]).sum()
    assert metrics.gini(x) == pytest.approx(pairs / (2 * x.size * x.sum()), abs=1e-12)
    shares = x / x.sum()
    assert metrics.entropy(x) == pytest.approx(-sum(s * math.log(s) for s in shares), abs=1e-12)


@given(ACCURACIES, st.data())
def test_taking_from_the_better_for_the_worse_is_fairer(accuracy, data):
    assume(len(accuracy) > 1)
    before = np.sort(accuracy)
    gap = before[-1] - before[0]
    assume(gap > 0.1)  # else the gain drowns in rounding
    moved = data.draw(st.floats(0.01, 0.5)) * gap
    after = before + np.array([moved, *[0.0] * (before.size - 2), -moved])
    assert metrics.jain(after) > metrics.jain(before)
    assert metrics.gini(after) < metrics.gini(before)
    assert metrics.kl_uniform(after) < metrics.kl_uniform(before)
    assert metrics.variance(after) < metrics.variance(before)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), min_size=1, max_size=10))
def test_a_weight_is_so_many_copies(clients):
    accuracy, samples = zip(*clients, strict=True)
    copies = np.repeat(accuracy, samples)
    weighted = metrics.variance_weighted(accuracy, samples)
    assert weighted == pytest.approx(metrics.variance(copies), rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=20))
def test_the_correlation_is_numpys(pairs):
    x, y = np.array(pairs).T
    assume(np.ptp(x) > 1e-3)
    assume(np.ptp(y) > 1e-3)
    found = metrics.collaborative_fairness(x, y)
    assert found == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-6)
    assert -1 <= found <= 1


# Odd input.


@pytest.mark.parametrize("accuracy", [[], [NAN, NAN]])
def test_of_nobody_nothing_is_known(accuracy):
    found = summarise(accuracy, [3] * len(accuracy))
    assert found.pop("clients_scored") == 0
    assert set(found) == KEYS - {"clients_scored"}
    assert all(math.isnan(value) for value in found.values())
    assert all(math.isnan(value) for value in metrics.participation([], []).values())
    assert math.isnan(metrics.ir_ratio([]))
    assert math.isnan(metrics.better_off([], []))


@pytest.mark.parametrize("level", [0.0, 0.1, 33.3, 100.0])
@pytest.mark.parametrize("clients", [1, 3, 7])
def test_equal_accuracies_zero_included_are_perfectly_even(level, clients):
    found = summarise([level] * clients, range(1, clients + 1))
    for key in ("accuracy_variance", "accuracy_variance_weighted", "accuracy_std", "range"):
        assert found[key] == 0, key
    for key in ("accuracy", "worst_10", "best_10", "min"):
        assert found[key] == pytest.approx(level), key
    assert found["jain"] == pytest.approx(1.0, abs=1e-15)
    assert found["gini"] == pytest.approx(0.0, abs=1e-15)
    assert found["kl_uniform"] == pytest.approx(0.0, abs=1e-15)
    assert found["entropy"] == pytest.approx(math.log(clients), abs=1e-15)


def test_one_who_has_all_is_the_other_extreme():
    assert [metric([0, 0, 0, 7.0]) for metric in EVENNESS] == [0.25, 0.75, 0.0, math.log(4)]


def test_nobody_took_part():
    found = metrics.participation([0, 0], [0, 0])
    assert [found[f"selection_{name}"] for name in ("jain", "gini", "coverage")] == [1, 0, 0]


def test_clients_without_samples_have_no_weight():
    assert metrics.variance_weighted([10, 20, 90], [1, 1, 0]) == 25
    found = summarise([10, 20], [0, 0])
    assert math.isnan(found["accuracy_variance_weighted"])
    assert found["accuracy_variance"] == 25


def test_single_precision_may_round_above_a_hundred():
    assert metrics.mean(np.array([100.00001], dtype=np.float32)) == pytest.approx(100, abs=1e-4)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: summarise([101.0], [1]), "percentage from 0 to 100"),
        (lambda: summarise([-1.0], [1]), "percentage from 0 to 100"),
        (lambda: summarise([math.inf], [1]), "percentage from 0 to 100"),
        (lambda: summarise([1.0, 2.0], [1]), r"same length \(got 2 and 1\)"),
        (lambda: summarise([1.0], [-1]), "samples must be finite"),
        (lambda: metrics.participation([1], [1, 2]), r"same length \(got 1 and 2\)"),
        (lambda: metrics.participation([NAN], [1]), "selection counts must be finite"),
        (lambda: metrics.participation([1], [-1]), "epochs must be finite"),
        (lambda: metrics.jain([-1.0, 2.0]), "amounts must be finite"),
        (lambda: metrics.gini([math.inf]), "amounts must be finite"),
        (lambda: metrics.better_off([1.0], []), "same length"),
    ],
)
def test_what_is_no_accuracy_or_amount_is_refused(ask, says):
    with pytest.raises(FlammaError, match=says):
        ask()
