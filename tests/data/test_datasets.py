"""Datasets by name: what they are, and that they load without a network."""

from __future__ import annotations

import sys
import zlib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from flamma import registry
from flamma.cli import main
from flamma.data.build import build_federation
from flamma.data.datasets import (
    DATASETS,
    DEVICES,
    _device_sizes,
    availability,
    device_samples,
    fetch_dataset,
    load_dataset,
    synthetic,
)
from flamma.data.fetch import data_folder
from flamma.data.records import Dataset, DatasetEntry
from flamma.errors import ConfigError, DataError
from flamma.numerics import normal
from flamma.seeding import stream

OTHERS = DatasetEntry("another package's", (1,), ("0",), 1, 1, lambda folder, samples: None)


def test_digits_are_those_of_scikit_learn(monkeypatch):
    read = load_dataset("digits")
    monkeypatch.setattr(Path, "exists", lambda self: False)  # where the file has moved
    imported = load_dataset("digits")
    for part in ("train_x", "train_y", "test_x", "test_y"):
        np.testing.assert_array_equal(getattr(read, part), getattr(imported, part))
        assert getattr(read, part).dtype == getattr(imported, part).dtype


def test_digits_load_offline():
    digits = load_dataset("digits")
    assert digits.train_x.shape[1:] == DATASETS["digits"].shape
    assert (len(digits.train_x), len(digits.test_x)) == (1442, 355)
    assert digits.train_x.max() == digits.full_scale == 16
    # Every pixel is repeated three times each way, inside a margin of two.
    assert not digits.train_x[:, :, :2].any()
    blocks = digits.train_x[:, 0, 2:26, 2:26].reshape(-1, 8, 3, 8, 3)
    assert (blocks == blocks[:, :, :1, :, :1]).all()
    x = digits.standardised(digits.train_x)
    assert abs(float(x.mean())) < 1e-3
    assert float(x.std()) == pytest.approx(1, abs=1e-3)
    assert np.bincount(digits.test_y).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]


def test_the_entries_say_what_is_loaded():
    for name in ("digits", "synthetic"):
        entry, data = DATASETS[name], load_dataset(name)
        assert (entry.train, entry.test) == (len(data.train_x), len(data.test_x))
        assert entry.class_names == data.class_names
        assert entry.shape == data.train_x.shape[1:]


def test_synthetic_is_standardised_balanced_and_grows():
    small, large = synthetic(1000, 500), synthetic(100_000, 500)
    assert np.array_equal(large.train_x[:1000], small.train_x)
    assert np.array_equal(large.test_x, small.test_x)
    assert np.bincount(large.train_y).tolist() == [20_000] * 5
    assert np.abs(np.asarray(large.train_x).mean(axis=0)).max() < 0.02
    assert np.abs(np.asarray(large.train_x).std(axis=0) - 1).max() < 0.02


def test_synthetic_can_be_learnt_but_not_perfectly():
    data = synthetic(5000, 2000)
    centres = np.stack([data.train_x[data.train_y == k].mean(axis=0) for k in range(5)])
    distances = ((data.test_x[:, None] - centres) ** 2).sum(axis=2)
    assert 0.8 < (distances.argmin(axis=1) == data.test_y).mean() < 0.97


def test_synthetic_takes_parameters():
    data = synthetic(30, 6, features=4, classes=3)
    assert data.train_x.shape == (30, 4)
    assert data.classes == 3


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown dataset 'mnst': did you mean mnist\?"):
        load_dataset("mnst")
    with pytest.raises(ConfigError, match="known: digits, mnist"):
        load_dataset("zzzzz")


def test_missing_data_say_how_to_get_them(tmp_path):
    with pytest.raises(DataError) as caught:
        load_dataset("cifar10", tmp_path)
    assert f"flamma data fetch cifar10 --data-dir {tmp_path}`" in str(caught.value)
    assert availability("cifar10", tmp_path) == "not fetched"
    assert availability("digits", tmp_path) == "built in"


def test_what_is_built_in_is_not_fetched():
    with pytest.raises(DataError, match="digits needs no download"):
        fetch_dataset("digits")


@pytest.mark.parametrize(
    ("labels", "what"),
    [([0, 1], "3 test samples, but 2 labels"), ([0, 1, 2], "labels from 0 to 2"), ([], "0 labels")],
)
def test_samples_and_labels_must_fit(labels, what):
    x, y = np.zeros((3, 4), dtype=np.float32), np.array([0, 1, 0])
    with pytest.raises(DataError, match=what):
        Dataset("odd", x, y, x, np.array(labels, dtype=np.int64), ("a", "b"))


def test_other_packages_add_datasets(monkeypatch, capsys):
    others = ModuleType("others")
    others.ENTRY = OTHERS
    monkeypatch.setitem(sys.modules, "others", others)
    points = [
        EntryPoint("theirs", "others:ENTRY", "flamma.datasets"),
        EntryPoint("digits", "others:ENTRY", "flamma.datasets"),
        EntryPoint("broken", "others:NOTHING", "flamma.datasets"),
    ]
    monkeypatch.setattr(registry, "_points", lambda group, path: {p.name: p for p in points})
    assert list(DATASETS)[-2:] == ["broken", "theirs"]
    assert list(DATASETS).count("digits") == 1
    assert DATASETS["theirs"].about == OTHERS.about
    assert DATASETS["digits"].about != OTHERS.about
    with pytest.raises(ConfigError, match="'broken' of others:NOTHING cannot be loaded"):
        DATASETS["broken"]
    assert main(["data", "list"]) == 0
    listed = capsys.readouterr()
    assert "theirs" in listed.out  # though another one is broken
    assert "'broken' of others:NOTHING cannot be loaded" in listed.err


def test_where_data_are_kept(monkeypatch):
    home = Path("/home/me")
    monkeypatch.setattr(Path, "home", lambda: home)
    for environment, platform, expected in [
        ({}, "linux", home / ".cache/flamma/data"),
        ({"XDG_CACHE_HOME": "/c"}, "linux", Path("/c/flamma/data")),
        ({"XDG_CACHE_HOME": "relative"}, "linux", home / ".cache/flamma/data"),
        ({}, "darwin", home / "Library/Caches/flamma/data"),
        ({"LOCALAPPDATA": "/local"}, "win32", Path("/local/flamma/data")),
        ({}, "win32", home / "AppData/Local/flamma/data"),
        ({"FLAMMA_DATA": "/d", "XDG_CACHE_HOME": "/c"}, "linux", Path("/d")),
    ]:
        assert data_folder(None, environment, platform) == expected
    assert data_folder(Path("/chosen"), {"FLAMMA_DATA": "/d"}) == Path("/chosen")


# Synthetic(α, β): devices as its recipe has them, with the same bits everywhere.


@pytest.fixture(scope="module")
def data():
    return load_dataset("synthetic-11")


def test_the_entry_says_what_is_loaded(data):
    entry = DATASETS["synthetic-11"]
    assert (entry.train, entry.test) == (len(data.train_x), len(data.test_x))
    assert (entry.shape, entry.class_names) == (data.train_x.shape[1:], data.class_names)
    assert DATASETS["synthetic-00"].train == entry.train


def test_devices_are_groups_of_their_sizes(data):
    sizes = _device_sizes()
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
