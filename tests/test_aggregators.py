"""Every aggregator against its definition, written out once more in plain Python."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from flwr.server.strategy import aggregate as flowers

from flamma.aggregators import (
    _MAX_KRUM_VECTORS,
    AGGREGATORS,
    Reference,
    _attackers_among,
    aggregated,
    coordinate_median,
    fltrust,
    geometric_median,
    krum,
    multi_krum,
    norm_clipping,
    trimmed_mean,
    weighted_mean,
)
from flamma.errors import StrategyError
from flamma.registry import Choice

SEEDS = range(25)


def draw(seed, count=None, size=None):
    """Return vectors, some of whose coordinates are tied, and whole weights, some of them 0."""
    rng = np.random.default_rng(seed)
    count, size = count or int(rng.integers(1, 12)), size or int(rng.integers(1, 9))
    vectors = rng.normal(size=(count, size)).astype(np.float32)
    vectors[:, ::2] = np.round(vectors[:, ::2])
    weights = rng.integers(0, 5, count)
    weights[rng.integers(count)] += 1
    return vectors, weights


def median_by_hand(values, weights):
    """Repeat every value as often as its weight says, and take the middle of the list."""
    line = sorted(
        v for v, w in zip(values.tolist(), weights.tolist(), strict=True) for _ in range(w)
    )
    half = len(line) // 2
    return line[half] if len(line) % 2 else (line[half - 1] + line[half]) / 2


def trimmed_by_hand(values, weights, share):
    """Cut the list of repeated values at both ends, exactly; one at the cut counts in part."""
    line = sorted((v, w) for v, w in zip(values.tolist(), weights.tolist(), strict=True))
    total = sum(weights.tolist())
    low, high = share * total, (1 - share) * total
    sums = counted = place = Fraction(0)
    for value, weight in line:
        kept = max(Fraction(0), min(place + weight, high) - max(place, low))
        sums, counted, place = sums + kept * Fraction(value), counted + kept, place + weight
    return float(sums / counted)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("unit", [1.0, 1 / 3, 0.01])
def test_median(seed, unit):
    vectors, weights = draw(seed)
    found = coordinate_median(vectors, weights * unit)
    expected = [median_by_hand(column, weights) for column in vectors.T]
    np.testing.assert_allclose(found, np.array(expected) * weights.sum() * unit, rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_weights_the_median_is_numpys(seed):
    vectors, weights = draw(seed)
    found = coordinate_median(list(vectors), weights / weights.sum(), weighted=False)
    np.testing.assert_allclose(found, np.median(vectors[weights > 0].astype(float), axis=0))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [Fraction(0), Fraction(1, 10), Fraction(1, 5), Fraction(49, 100)])
def test_trimmed_mean(seed, share):
    vectors, weights = draw(seed)
    found = trimmed_mean(vectors, weights / weights.sum(), share=float(share))
    expected = [trimmed_by_hand(column, weights, share) for column in vectors.T]
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("count", [5, 10, 20, 35])
def test_a_trimmed_client_leaves_no_trace_by_rounding(count):
    vectors = np.zeros((count, 1), dtype=np.float32)
    vectors[: count // 5] = np.finfo(np.float32).max
    for unit in (1.0, 0.1, 1 / 7):
        assert trimmed_mean(vectors, np.full(count, unit), share=0.2)[0] == 0.0


def test_nothing_trimmed_is_the_mean():
    vectors, weights = draw(3, count=7, size=20)
    shares = weights / weights.sum()
    found = trimmed_mean(vectors, shares, share=0.0)
    np.testing.assert_allclose(found, weighted_mean(vectors, shares), rtol=1e-12, atol=1e-15)


def away(point, vectors, weights):
    """Return the sum of weighted distances, which the geometric median makes smallest."""
    return sum(w * math.dist(point, v) for v, w in zip(vectors.tolist(), weights, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_point_is_nearer_to_all_than_the_geometric_median(seed):
    vectors, weights = draw(seed)
    rng = np.random.default_rng(seed)
    found = geometric_median(vectors, weights, iterations=20_000, smoothing=1e-9) / weights.sum()
    least = away(found, vectors, weights)
    others = [
        *vectors.astype(float),
        *(found + 0.1**k * rng.normal(size=found.size) for k in range(7)),
    ]
    for other in others:
        assert least <= away(other, vectors, weights) * (1 + 1e-6)


def test_the_geometric_median_of_a_triangle_is_its_fermat_point():
    corners = np.array([[0, 0], [4, 0], [1, 3]], dtype=np.float32)
    found = geometric_median(corners, np.ones(3), iterations=10_000, smoothing=1e-12) / 3
    sides = corners - found
    for first in range(3):
        one, other = sides[first], sides[(first + 1) % 3]
        angle = math.acos(one @ other / math.hypot(*one) / math.hypot(*other))
        assert math.degrees(angle) == pytest.approx(120, abs=1e-4)


def test_the_geometric_median_does_not_stay_at_a_vector_that_the_search_begins_near():
    # The coordinate-wise median is the second corner, whose angle is less than 120 degrees.
    corners = np.array([[0, 0], [1, 0.1], [1.1, 10]], dtype=np.float32)
    np.testing.assert_array_equal(coordinate_median(corners, np.ones(3)) / 3, corners[1])
    found = geometric_median(corners, np.ones(3)) / 3
    assert away(found, corners, np.ones(3)) < away(corners[1], corners, np.ones(3)) - 1e-3


def test_a_vector_with_more_than_half_of_the_weight_is_the_geometric_median():
    vectors, _ = draw(5, count=4, size=6)
    found = geometric_median(vectors, np.array([1.0, 6.0, 2.0, 2.0]) / 11, iterations=1000)
    np.testing.assert_allclose(found, vectors[1], atol=1e-5)


def krum_by_hand(vectors, weights, attackers):
    """Return the places of the vectors by score, plain sums over plain lists."""
    points = vectors.astype(float).tolist()
    scores = []
    for place, one in enumerate(points):
        others = [math.dist(one, other) ** 2 for k, other in enumerate(points) if k != place]
        scores.append(sum(sorted(others)[: max(1, len(points) - attackers - 2)]))
    return sorted(range(len(points)), key=lambda k: (scores[k], -weights[k], k))


@pytest.mark.parametrize("seed", SEEDS)
def test_krum_and_multi_krum(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 14))
    vectors = rng.normal(size=(count, 6)).astype(np.float32)
    weights = rng.integers(1, 9, count) / 8
    attackers = int(rng.integers(0, (count - 3) // 2 + 1))
    order = krum_by_hand(vectors, weights, attackers)
    found = krum(vectors, weights, attackers=attackers)
    np.testing.assert_allclose(found, weights.sum() * vectors[order[0]].astype(float))
    for kept in (None, 1, 2, count + 5):
        best = order[: count - attackers if kept is None else kept]
        found = multi_krum(vectors, weights, attackers=attackers, kept=kept)
        expected = np.average(vectors[best].astype(float), axis=0, weights=weights[best])
        np.testing.assert_allclose(found, weights.sum() * expected, rtol=1e-6)
    alike = multi_krum(vectors, weights, attackers=attackers, kept=2, weighted=False)
    expected = vectors[order[:2]].astype(float).mean(axis=0)
    np.testing.assert_allclose(alike, weights.sum() * expected, rtol=1e-6)


def test_of_equal_scores_krum_takes_the_heavier_then_the_first():
    pair = np.array([[0, 1], [5, 5]], dtype=np.float32)
    np.testing.assert_allclose(krum(pair, np.array([0.4, 0.6])), pair[1])
    np.testing.assert_allclose(krum(pair, np.array([0.5, 0.5])), pair[0])


def test_attackers_are_a_number_or_a_share_and_never_more_than_can_be_told_apart():
    assert [_attackers_among(n, 0.2) for n in (1, 4, 5, 9, 10, 100)] == [0, 0, 1, 1, 2, 20]
    assert _attackers_among(100, 0.29) == 29
    assert [_attackers_among(n, 3) for n in (1, 4, 5, 8, 9, 50)] == [0, 0, 1, 2, 3, 3]
    assert _attackers_among(7, 0.49) == 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("radius", [None, 0.5, 2.0, 1e9])
def test_norm_clipping(seed, radius):
    vectors, weights = draw(seed)
    received = np.random.default_rng(seed + 100).normal(size=vectors.shape[1]).astype(np.float32)
    found = norm_clipping(vectors, weights, Reference(received), radius=radius)
    lengths = [math.dist(vector, received) for vector in vectors.astype(float)]
    most = median_by_hand(np.array(lengths), weights) if radius is None else radius
    step = np.zeros(received.size)
    for vector, weight, length in zip(vectors, weights, lengths, strict=True):
        step += weight * min(1.0, most / length) * (vector.astype(float) - received)
    np.testing.assert_allclose(found, weights.sum() * received + step, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighted", [True, False])
def test_fltrust(seed, weighted):
    vectors, weights = draw(seed, size=5)
    rng = np.random.default_rng(seed + 100)
    received, own = rng.normal(size=5).astype(np.float32), rng.normal(size=5)
    found = fltrust(vectors, weights, Reference(received, lambda: own), weighted=weighted)
    step, believed = np.zeros(5), 0.0
    for vector, weight in zip(vectors, weights, strict=True):
        update = vector.astype(float) - received
        cosine = update @ own / np.linalg.norm(update) / np.linalg.norm(own)
        trust = max(0.0, cosine) * (weight if weighted else weight > 0)
        step += trust * update * np.linalg.norm(own) / np.linalg.norm(update)
        believed += trust
    expected = received + (step / believed if believed else 0)
    np.testing.assert_allclose(found, weights.sum() * expected, rtol=1e-6, atol=1e-9)


def test_where_no_client_is_trusted_fltrust_leaves_the_model():
    received = np.array([1.0, 2.0], dtype=np.float32)
    vectors = np.stack([received, received + np.float32([0, 3])])
    for own in (np.array([0.0, -1.0]), np.zeros(2), np.array([np.inf, 0.0])):
        found = fltrust(vectors, np.full(2, 0.5), Reference(received, lambda own=own: own))
        np.testing.assert_array_equal(found, received)


def test_without_a_server_that_trains_fltrust_says_so():
    with pytest.raises(StrategyError, match="the server cannot train"):
        fltrust(np.ones((2, 3), np.float32), np.ones(2), Reference(np.zeros(3, np.float32)))


def test_updates_that_changed_nothing_do_not_divide_by_zero():
    received = np.ones(3, np.float32)
    vectors = np.stack([received, received])
    reference = Reference(received, lambda: np.ones(3))
    for found in (
        norm_clipping(vectors, np.full(2, 0.5), reference),
        fltrust(vectors, np.full(2, 0.5), reference),
        geometric_median(vectors, np.full(2, 0.5)),
    ):
        np.testing.assert_array_equal(found, received)


def test_one_vector_is_its_own_centre_and_two_alike_have_the_middle():
    one, two = draw(8, count=1, size=4)[0], draw(9, count=2, size=4)[0]
    reference = Reference(np.zeros(4, np.float32))
    for reduce in (coordinate_median, trimmed_mean, geometric_median, krum, multi_krum):
        np.testing.assert_allclose(reduce(one, np.array([0.7])), 0.7 * one[0], rtol=1e-6)
    np.testing.assert_allclose(
        norm_clipping(one, np.array([0.7]), reference), 0.7 * one[0], rtol=1e-6
    )
    middle = two.astype(float).mean(axis=0)
    for reduce in (coordinate_median, trimmed_mean, geometric_median, multi_krum):
        np.testing.assert_allclose(reduce(two, np.full(2, 0.5)), middle, rtol=1e-6, atol=1e-7)


def test_without_any_weight_there_is_nothing_to_reduce():
    with pytest.raises(StrategyError, match="positive weight"):
        coordinate_median(np.ones((2, 3), np.float32), np.zeros(2))


def test_krum_refuses_more_pairs_than_it_can_compare():
    many = np.zeros((_MAX_KRUM_VECTORS + 1, 1), np.float32)
    with pytest.raises(StrategyError, match="too much for 2,001 of them"):
        krum(many, np.ones(len(many)))


def test_many_columns_are_reduced_in_parts_as_they_are_in_one():
    vectors = np.random.default_rng(0).normal(size=(5, 20_000)).astype(np.float32)
    weights = np.array([1.0, 2.0, 3.0, 1.0, 2.0])
    for reduce in (coordinate_median, trimmed_mean):
        found = reduce(vectors, weights)
        for first in (0, 8190, 19_990):
            part = reduce(vectors[:, first : first + 10], weights)
            np.testing.assert_array_equal(found[first : first + 10], part)


# What all robust aggregators have in common: symmetry, and a bound on what attackers can do.

SIZE, HONEST = 8, 12
EVERY = list(AGGREGATORS)
ROBUST = [name for name in EVERY if name != "mean"]
FAR = (1e3, 1e12, 1e38)
RECEIVED = np.linspace(-1, 1, SIZE).astype(np.float32)
OWN = np.ones(SIZE)


def reduce(name, vectors, weights, received=RECEIVED, **options):
    choice = AGGREGATORS.choose({"name": name, **options}, "aggregator")
    return aggregated(choice, vectors, weights, Reference(received, lambda: OWN))


def draw_properties(seed, count=HONEST):
    rng = np.random.default_rng(seed)
    vectors = (RECEIVED + OWN + rng.normal(size=(count, SIZE))).astype(np.float32)
    return vectors, rng.uniform(0.5, 1.5, count)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_vectors_does_not_matter(name, seed):
    vectors, weights = draw_properties(seed)
    order = np.random.default_rng(seed).permutation(HONEST)
    np.testing.assert_allclose(
        reduce(name, vectors, weights), reduce(name, vectors[order], weights[order]), rtol=1e-9
    )


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("seed", range(10))
def test_moving_all_vectors_moves_the_result_along(name, seed):
    vectors, weights = draw_properties(seed)
    weights /= weights.sum()
    shift = np.float32(4.0)
    moved = reduce(name, vectors + shift, weights, RECEIVED + shift)
    np.testing.assert_allclose(moved, reduce(name, vectors, weights) + shift, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_it_is_as_large_as_the_weights_are_together(name):
    vectors, weights = draw_properties(1)
    np.testing.assert_allclose(
        reduce(name, vectors, 0.25 * weights), 0.25 * reduce(name, vectors, weights), rtol=1e-12
    )


@pytest.mark.parametrize("name", EVERY)
def test_vectors_of_no_weight_do_not_count(name):
    vectors, weights = draw_properties(2)
    more = np.concatenate((vectors, np.full((3, SIZE), 1e30, np.float32)))
    np.testing.assert_allclose(
        reduce(name, more, np.append(weights, np.zeros(3))), reduce(name, vectors, weights)
    )


@pytest.mark.parametrize("name", EVERY)
def test_rows_of_a_matrix_are_reduced_as_a_list_of_vectors_and_are_left_as_they_are(name):
    vectors, weights = draw_properties(3)
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
        vectors, _ = draw_properties(seed)
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
    vectors, _ = draw_properties(0, 3)
    bad = np.full((3, SIZE), 1e20, dtype=np.float32)
    together = np.concatenate((vectors, bad))

    def moved(attackers_weight):
        honest = 1 - attackers_weight
        weights = np.repeat([honest / 3, attackers_weight / 3], 3)
        return np.linalg.norm(reduce(name, together, weights) - RECEIVED)

    assert moved(0.45) < 100
    assert moved(0.55) > 1e15


def test_a_trimmed_mean_breaks_where_attackers_have_more_than_its_share():
    vectors, _ = draw_properties(0, 8)
    bad = np.full((2, SIZE), 1e20, dtype=np.float32)
    together, weights = np.concatenate((vectors, bad)), np.full(10, 0.1)
    assert np.abs(reduce("trimmed-mean", together, weights, share=0.2)).max() < 100
    assert np.abs(reduce("trimmed-mean", together, weights, share=0.15)).max() > 1e15


def mixed(honest, attackers):
    """Return vectors of which some are far away and all the same, with equal weights."""
    bad = np.full((attackers, SIZE), 1e20, dtype=np.float32)
    together = np.concatenate((draw_properties(0, honest)[0], bad))
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
        vectors, weights = draw_properties(0)
        found = aggregated(Choice("first", {"times": 2.0}), vectors, weights, None)
        np.testing.assert_array_equal(found, 2 * vectors[0])
    finally:
        AGGREGATORS.discard("first")


# The same as Flower's aggregators, where they are defined alike: clients without weights.

CASES = [(seed, count) for seed in range(8) for count in (5, 10, 15)]


def draw_against_flower(seed, count):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, 30)).astype(np.float32)
    return vectors, rng.integers(1, 50, count)


def results(vectors, samples):
    """Return vectors as Flower has them: layers, and how many samples each client has."""
    return [
        ([vector[:10].reshape(2, 5), vector[10:]], int(own))
        for vector, own in zip(vectors, samples, strict=True)
    ]


def flat(layers):
    return np.concatenate([np.ravel(layer) for layer in layers])


@pytest.mark.parametrize(("seed", "count"), CASES)
def test_median_against_flower(seed, count):
    vectors, samples = draw_against_flower(seed, count)
    ours = coordinate_median(vectors, samples / samples.sum(), weighted=False)
    theirs = flat(flowers.aggregate_median(results(vectors, samples)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(("seed", "count"), CASES)
@pytest.mark.parametrize("share", [0.2, 0.4])
def test_trimmed_mean_against_flower(seed, count, share):
    vectors, samples = draw_against_flower(seed, count)
    ours = trimmed_mean(vectors, samples / samples.sum(), share=share, weighted=False)
    theirs = flat(flowers.aggregate_trimmed_avg(results(vectors, samples), share))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("seed", "count"), CASES)
def test_krum_and_multi_krum_against_flower(seed, count):
    vectors, samples = draw_against_flower(seed, count)
    weights = samples / samples.sum()
    for attackers in (0, 1):
        ours = krum(vectors, weights, attackers=attackers)
        theirs = flat(flowers.aggregate_krum(results(vectors, samples), attackers, 0))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        for kept in (1, 3):
            ours = multi_krum(vectors, weights, attackers=attackers, kept=kept)
            theirs = flat(flowers.aggregate_krum(results(vectors, samples), attackers, kept))
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
