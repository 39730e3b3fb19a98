"""What all robust aggregators have in common: symmetry, and a bound on what attackers can do."""

from __future__ import annotations

import numpy as np
import pytest

from flamma.aggregators import AGGREGATORS, Reference, aggregated
from flamma.registry import Choice

SIZE, HONEST = 8, 12
EVERY = list(AGGREGATORS)
ROBUST = [name for name in EVERY if name != "mean"]
FAR = (1e3, 1e12, 1e38)
RECEIVED = np.linspace(-1, 1, SIZE).astype(np.float32)
OWN = np.ones(SIZE)


def reduce(name, vectors, weights, received=RECEIVED, **options):
    choice = AGGREGATORS.choose({"name": name, **options}, "aggregator")
    return aggregated(choice, vectors, weights, Reference(received, lambda: OWN))


def draw(seed, count=HONEST):
    rng = np.random.default_rng(seed)
    vectors = (RECEIVED + OWN + rng.normal(size=(count, SIZE))).astype(np.float32)
    return vectors, rng.uniform(0.5, 1.5, count)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_vectors_does_not_matter(name, seed):
    vectors, weights = draw(seed)
    order = np.random.default_rng(seed).permutation(HONEST)
    np.testing.assert_allclose(
        reduce(name, vectors, weights), reduce(name, vectors[order], weights[order]), rtol=1e-9
    )


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("seed", range(10))
def test_moving_all_vectors_moves_the_result_along(name, seed):
    vectors, weights = draw(seed)
    weights /= weights.sum()
    shift = np.float32(4.0)
    moved = reduce(name, vectors + shift, weights, RECEIVED + shift)
    np.testing.assert_allclose(moved, reduce(name, vectors, weights) + shift, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_it_is_as_large_as_the_weights_are_together(name):
    vectors, weights = draw(1)
    np.testing.assert_allclose(
        reduce(name, vectors, 0.25 * weights), 0.25 * reduce(name, vectors, weights), rtol=1e-12
    )


@pytest.mark.parametrize("name", EVERY)
def test_vectors_of_no_weight_do_not_count(name):
    vectors, weights = draw(2)
    more = np.concatenate((vectors, np.full((3, SIZE), 1e30, np.float32)))
    np.testing.assert_allclose(
        reduce(name, more, np.append(weights, np.zeros(3))), reduce(name, vectors, weights)
    )


@pytest.mark.parametrize("name", EVERY)
def test_rows_of_a_matrix_are_reduced_as_a_list_of_vectors_and_are_left_as_they_are(name):
    vectors, weights = draw(3)
    before = vectors.copy()
    np.testing.assert_array_equal(
        reduce(name, vectors, weights), reduce(name, list(vectors), weights)
    )
    np.testing.assert_array_equal(vectors, before)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("attackers", [1, 3])
@pytest.mark.parametrize("far", FAR)
def test_attackers_move_the_result_no_further_than_honest_clients_are_apart(name, attackers, far):
    # Three of fifteen are a fifth of the clients, which every aggregator bears by default.
    for seed in range(5):
        vectors, _ = draw(seed)
        rng = np.random.default_rng(seed)
        bad = (np.sign(rng.normal(size=(attackers, SIZE))) * far).astype(np.float32)
        together = np.concatenate((vectors, bad))
        count = len(together)
        found = reduce(name, together, np.full(count, 1 / count))
        spread = np.abs(vectors - RECEIVED).max() * np.sqrt(SIZE)
        assert np.linalg.norm(found - RECEIVED) <= 2 * spread
        mean = reduce("mean", together, np.full(count, 1 / count))
        assert np.linalg.norm(mean - RECEIVED) > 2 * spread  # which the mean does not hold


@pytest.mark.parametrize("name", ["median", "geometric-median", "norm-clipping"])
def test_the_breakdown_point_is_half_of_the_weight(name):
    vectors, _ = draw(0, 3)
    bad = np.full((3, SIZE), 1e20, dtype=np.float32)
    together = np.concatenate((vectors, bad))

    def moved(attackers_weight):
        honest = 1 - attackers_weight
        weights = np.repeat([honest / 3, attackers_weight / 3], 3)
        return np.linalg.norm(reduce(name, together, weights) - RECEIVED)

    assert moved(0.45) < 100
    assert moved(0.55) > 1e15


def test_a_trimmed_mean_breaks_where_attackers_have_more_than_its_share():
    vectors, _ = draw(0, 8)
    bad = np.full((2, SIZE), 1e20, dtype=np.float32)
    together, weights = np.concatenate((vectors, bad)), np.full(10, 0.1)
    assert np.abs(reduce("trimmed-mean", together, weights, share=0.2)).max() < 100
    assert np.abs(reduce("trimmed-mean", together, weights, share=0.15)).max() > 1e15


def mixed(honest, attackers):
    """Return vectors of which some are far away and all the same, with equal weights."""
    bad = np.full((attackers, SIZE), 1e20, dtype=np.float32)
    together = np.concatenate((draw(0, honest)[0], bad))
    return together, np.full(len(together), 1 / len(together))


def test_krum_breaks_where_attackers_are_one_anothers_neighbours():
    assert np.abs(reduce("krum", *mixed(6, 5), attackers=4)).max() < 100
    assert np.abs(reduce("krum", *mixed(5, 6), attackers=4)).max() > 1e15


def test_multi_krum_breaks_where_it_keeps_more_than_are_honest():
    assert np.abs(reduce("multi-krum", *mixed(7, 4), attackers=4)).max() < 100
    assert np.abs(reduce("multi-krum", *mixed(7, 4), attackers=3)).max() > 1e15
    assert np.abs(reduce("multi-krum", *mixed(7, 4), attackers=3, kept=7)).max() < 100


def test_with_weights_or_without_who_says_to_have_more_data_moves_the_median_or_not():
    vectors = np.array([[0.0], [1.0], [2.0], [50.0]], dtype=np.float32)
    weights = np.array([1.0, 1.0, 1.0, 1000.0]) / 1003
    for name in ("median", "trimmed-mean", "geometric-median"):
        assert reduce(name, vectors, weights, np.zeros(1, np.float32))[0] > 49
        alike = reduce(name, vectors, weights, np.zeros(1, np.float32), weighted=False)[0]
        assert alike < 20


def test_an_aggregator_of_another_package_needs_to_know_nothing_of_references():
    AGGREGATORS.add("first", lambda vectors, weights, *, times=1.0: times * vectors[0])
    try:
        vectors, weights = draw(0)
        found = aggregated(Choice("first", {"times": 2.0}), vectors, weights, None)
        np.testing.assert_array_equal(found, 2 * vectors[0])
    finally:
        AGGREGATORS.discard("first")
