"""Every aggregator against its definition, written out once more in plain Python."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from flamma.aggregators import (
    MOST_KRUM_VECTORS,
    Reference,
    attackers_among,
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
    assert [attackers_among(n, 0.2) for n in (1, 4, 5, 9, 10, 100)] == [0, 0, 1, 1, 2, 20]
    assert attackers_among(100, 0.29) == 29
    assert [attackers_among(n, 3) for n in (1, 4, 5, 8, 9, 50)] == [0, 0, 1, 2, 3, 3]
    assert attackers_among(7, 0.49) == 2


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
    many = np.zeros((MOST_KRUM_VECTORS + 1, 1), np.float32)
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
