"""Synthetic(α, β): devices as its recipe has them, with the same bits everywhere."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from flamma.data.build import build_federation
from flamma.data.datasets import DATASETS, DEVICES, device_samples, device_sizes, load_dataset
from flamma.numerics import normal
from flamma.seeding import stream


@pytest.fixture(scope="module")
def data():
    return load_dataset("synthetic-11")


def test_the_entry_says_what_is_loaded(data):
    entry = DATASETS["synthetic-11"]
    assert (entry.train, entry.test) == (len(data.train_x), len(data.test_x))
    assert (entry.shape, entry.class_names) == (data.train_x.shape[1:], data.class_names)
    assert DATASETS["synthetic-00"].train == entry.train


def test_devices_are_groups_of_their_sizes(data):
    sizes = device_sizes()
    assert np.bincount(data.groups).tolist() == sizes.tolist()
    assert sizes.min() >= 50
    assert sizes.max() > 10 * np.median(sizes)  # few have many
    federation = build_federation("synthetic-11", "groups", DEVICES, 0, validation_samples=0)
    assert (federation.samples + np.diff(federation.held_offsets)).tolist() == sizes.tolist()


def test_labels_are_the_largest_score_of_the_device():
    x, y = device_samples(3, 40, 1.0, 1.0)
    rng = stream(0, "devices-model", client=3)
    u, _ = normal(rng, 2)
    weights = normal(rng, 61 * 10).reshape(61, 10) + u
    scores = x.astype(np.float64) @ weights[:60] + weights[60]
    assert y.tolist() == scores.argmax(axis=1).tolist()


def test_features_have_the_variances_of_the_recipe():
    x, _ = device_samples(5, 20_000, 1.0, 1.0)
    np.testing.assert_allclose(x.std(axis=0) ** 2, np.arange(1, 61) ** -1.2, rtol=0.06)


def centres(alpha, beta):
    """Return what the means of the features of each device have in common."""
    return np.array([device_samples(k, 2, alpha, beta)[0].mean() for k in range(DEVICES)])


def test_beta_moves_whole_devices():
    # A mean of 60 centres of variance 1 has variance 1/60, and beta besides.
    assert centres(1.0, 0.0).var() < 0.1
    assert 0.6 < centres(1.0, 1.0).var() < 1.6


def test_more_samples_begin_with_the_fewer():
    few, many = device_samples(7, 5, 1.0, 1.0), device_samples(7, 50, 1.0, 1.0)
    assert np.array_equal(few[0], many[0][:5])
    assert np.array_equal(few[1], many[1][:5])


def test_the_bits_are_the_same_everywhere(data):
    assert zlib.crc32(data.train_x[:1000].tobytes()) == CHECKED_SAMPLES
    assert zlib.crc32(data.train_y.astype("<i8").tobytes()) == CHECKED_LABELS


CHECKED_SAMPLES, CHECKED_LABELS = 155267512, 1933476559
