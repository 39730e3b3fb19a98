"""The same as Flower's aggregators, where they are defined alike: clients without weights."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.server.strategy import aggregate as flowers

from flamma.aggregators import coordinate_median, krum, multi_krum, trimmed_mean

CASES = [(seed, count) for seed in range(8) for count in (5, 10, 15)]


def draw(seed, count):
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
def test_median(seed, count):
    vectors, samples = draw(seed, count)
    ours = coordinate_median(vectors, samples / samples.sum(), weighted=False)
    theirs = flat(flowers.aggregate_median(results(vectors, samples)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(("seed", "count"), CASES)
@pytest.mark.parametrize("share", [0.2, 0.4])
def test_trimmed_mean(seed, count, share):
    vectors, samples = draw(seed, count)
    ours = trimmed_mean(vectors, samples / samples.sum(), share=share, weighted=False)
    theirs = flat(flowers.aggregate_trimmed_avg(results(vectors, samples), share))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("seed", "count"), CASES)
def test_krum_and_multi_krum(seed, count):
    vectors, samples = draw(seed, count)
    weights = samples / samples.sum()
    for attackers in (0, 1):
        ours = krum(vectors, weights, attackers=attackers)
        theirs = flat(flowers.aggregate_krum(results(vectors, samples), attackers, 0))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        for kept in (1, 3):
            ours = multi_krum(vectors, weights, attackers=attackers, kept=kept)
            theirs = flat(flowers.aggregate_krum(results(vectors, samples), attackers, kept))
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
