"""One's own arrays, mappings and lists as a federation: clients, classes, shares, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.data.federated import FederatedData, federated_from_arrays
from flamma.data.own import federated_from
from flamma.errors import DataError, FlammaError
from flamma.registry import Choice

X = np.arange(24.0).reshape(12, 2)
Y = np.array([0, 1] * 6)
SITES = ["north"] * 4 + ["south"] * 8


def clients_of(data, part="train"):
    offsets = getattr(data, f"{part}_offsets")
    return np.split(getattr(data, f"{part}_x"), offsets[1:-1])


def test_samples_go_to_the_client_that_group_names_and_none_is_lost():
    data = federated_from((X, Y), group=SITES)
    assert data.client_names == ("north", "south")
    assert data.samples.tolist() == [3, 6]  # a fifth of 4 and of 8, rounded, is held out
    own = zip(clients_of(data), clients_of(data, "held"), strict=True)
    north, south = (sorted(np.concatenate(parts).tolist()) for parts in own)
    assert (north, south) == (X[:4].tolist(), X[4:].tolist())
    assert data.test_x is data.held_x
    assert data.validation_y.size == 0


def test_the_seed_decides_what_is_held_out_and_the_same_seed_the_same():
    first, again, other = (federated_from((X, Y), group=SITES, seed=s) for s in (1, 1, 2))
    assert (first.held_x == again.held_x).all()
    assert not (first.held_x == other.held_x).all()


def test_labels_of_a_sample_stay_its_labels():
    labels = np.array(["well", "ill", "unclear"] * 4)
    data = federated_from((X, labels), group=SITES)
    assert data.labels == ("ill", "unclear", "well")
    assert data.classes == 3
    for x, y in zip(data.train_x, data.train_y, strict=True):
        assert data.labels[y] == labels[int(x[0]) // 2]


@pytest.mark.parametrize(
    ("targets", "labels"),
    [
        ([True, False] * 6, (False, True)),
        ([7, -3] * 6, (-3, 7)),
        ([2.0, 1.0] * 6, (1.0, 2.0)),
        ([2**62, 5] * 6, (5, 2**62)),
        (list("ba") * 6, ("a", "b")),
    ],
)
def test_classes_are_numbered_in_sorted_order(targets, labels):
    data = federated_from((X, targets), group=SITES)
    assert data.labels == labels
    assert [type(label) for label in data.labels] == [type(label) for label in labels]
    assert set(data.train_y.tolist()) == {0, 1}


def test_a_list_has_one_part_for_each_client_in_its_order():
    data = federated_from([(X[:4], Y[:4]), (X[4:], Y[4:])])
    assert data.client_names == ()
    assert [sorted(part[:, 0] < 8)[0] for part in clients_of(data)] == [True, False]


def test_a_mapping_names_the_clients_in_its_order():
    data = federated_from({"south": (X[4:], Y[4:]), "north": (X[:4], Y[:4])})
    assert data.client_names == ("south", "north")
    assert data.samples.tolist() == [6, 3]


def test_two_clients_in_a_tuple_are_no_samples_and_labels():
    assert federated_from(((X[:4], Y[:4]), (X[4:], Y[4:]))).clients == 2


def test_without_groups_samples_are_dealt_by_a_split():
    data = federated_from((X, Y), clients=3)
    assert data.clients == 3
    assert data.samples.sum() + data.held_y.size == 12
    shards = Choice("shards", {"shards_per_client": 1, "uneven": 0.0})
    data = federated_from((X, Y), clients=2, split=shards)
    assert (data.class_counts() > 0).sum(axis=1).tolist() == [1, 1]


def test_fewer_clients_than_groups_get_whole_groups():
    group = np.repeat(["a", "b", "c"], 4)
    data = federated_from((X, Y), group=group, clients=2)
    held = {tuple(row) for row in X[:4]}
    owners = [held & {tuple(row) for row in part} for part in clients_of(data)]
    assert sum(map(bool, owners)) == 1
    assert sorted(name.count(" more") for name in data.client_names) == [0, 1]


def test_whole_numbers_stay_whole_and_bytes_of_pictures_become_shares():
    tokens = federated_from((X.astype(np.int32), Y), group=SITES)
    assert tokens.train_x.dtype == np.int64
    pixels = np.full((12, 1, 2, 2), 51, dtype=np.uint8)
    pictures = federated_from((pixels, Y), group=SITES, standardise=False)
    assert pictures.train_x.dtype == np.float32
    assert np.unique(pictures.train_x) == np.float32(0.2)


def test_arrays_are_standardised_only_if_asked_and_by_the_training_samples():
    plain, scaled = (federated_from((X, Y), group=SITES, standardise=s) for s in (None, True))
    assert set(plain.train_x.ravel()) <= set(X.ravel().tolist())
    by_hand = (plain.held_x - plain.train_x.mean(0)) / plain.train_x.std(0)
    np.testing.assert_allclose(scaled.held_x, by_hand, rtol=1e-6)
    np.testing.assert_array_equal(scaled.encode(plain.held_x), scaled.held_x)


def test_a_test_set_is_encoded_as_the_samples_are():
    data = federated_from((X, Y), group=SITES, test=(X[:3], Y[:3]), standardise=True)
    np.testing.assert_array_equal(data.test_x, data.encode(X[:3]))
    assert data.test_y.tolist() == [0, 1, 0]


def test_a_validation_set_is_cut_off_first():
    data = federated_from((X, Y), group=SITES, validation_samples=2)
    assert data.validation_y.size == 2
    assert data.samples.sum() + data.held_y.size == 10


def test_regression_keeps_quantities():
    data = federated_from((X, X[:, 0] / 7), group=SITES, task="regression")
    assert data.task == "regression"
    assert data.train_y.dtype == np.float32
    np.testing.assert_array_equal(data.train_y, (data.train_x[:, 0] / 7).astype(np.float32))


def test_next_token_keeps_rows_of_ids():
    ids = np.arange(48).reshape(12, 4) % 9
    data = federated_from((ids, (ids + 1) % 9), group=SITES, task="next-token")
    assert data.train_y.shape == (9, 4)
    assert (data.train_y == (data.train_x + 1) % 9).all()
    assert data.classes == 9


def test_a_federation_passes_through():
    data = federated_from_arrays([(X, Y)] * 2, [(X, Y)] * 2)
    assert federated_from(data) is data
    with pytest.raises(DataError, match="group has no effect"):
        federated_from(data, group="hospital")


@pytest.mark.parametrize(
    ("given", "options", "sentence"),
    [
        ((X, Y), {}, "the data name no clients"),
        ((X, Y), {"group": ["a"] * 12}, "all samples are of one client"),
        ((X, Y), {"group": ["a"] * 11 + ["b"]}, r"every client needs 2 samples.*'b'"),
        ((X, Y), {"group": SITES[:-1]}, "for each of 12 samples, but has 11"),
        ((X, Y), {"group": [None, *SITES[1:]]}, "column 'group' has 1 missing values"),
        ((X, Y), {"group": "hospital"}, "arrays have no column 'hospital'"),
        ((X, Y[:-1]), {"group": SITES}, r"shapes are \(12, 2\) and \(11,\)"),
        ((X[:, 0], Y), {"group": SITES}, r"make x of shape \(samples, 1\)"),
        ((X, Y * 0), {"group": SITES}, "all targets are 0: a classifier needs at least two"),
        ((X, Y + 0.5), {"group": SITES}, 'have fractions.*task="regression"'),
        ((X, X), {"group": SITES}, r"targets have shape \(12, 2\)"),
        ((X * np.nan, Y), {"group": SITES}, "not finite"),
        ((X + np.inf, Y), {"group": SITES}, "not finite"),
        ((X * 1e60, Y), {"group": SITES}, "too large for single precision"),
        ((X.astype(object), Y), {"group": SITES}, "must be numbers, not object"),
        ((X.astype(str), Y), {"group": SITES}, "must be numbers, not <U"),
        ((X + 1j, Y), {"group": SITES}, "must be numbers, not complex"),
        ((np.full((12, 2), 2**63, dtype=np.uint64), Y), {"group": SITES}, "more than 63 bits"),
        (([[1, 2], [3]], [0, 1]), {"clients": 1}, "all samples must have one shape"),
        ((X, [0, "a"] * 6), {"group": SITES}, "has int and str"),
        (
            (X, list("ab") * 6),
            {"group": SITES, "task": "regression"},
            "targets must be numbers, not object",
        ),
        ((X, Y), {"group": SITES, "task": "clustering"}, "unknown task 'clustering'"),
        ((X, Y), {"group": SITES, "held_out": 1.0}, "held_out must lie between 0 and 1"),
        ((X, Y), {"group": SITES, "clients": 3}, "2 groups for 3 clients"),
        ((X, Y), {"group": SITES, "test": (X[:, :1], Y)}, r"test samples have the shape \(1,\)"),
        ([], {}, "no clients"),
        ([(X, Y)], {}, "one client"),
        ([(X, Y), (X[:, :1], Y)], {}, r"must be alike, but are \(1,\) and \(2,\)"),
        ([(X, Y), (X[:0], Y[:0])], {}, "client 1 has no samples"),
        ([(X, Y), X], {}, "samples of client 1 are a ndarray"),
        ([(X, Y), (X, Y)], {"group": SITES}, "group has no effect"),
        (X, {}, "samples are a ndarray"),
        (None, {}, "samples are a NoneType"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(given, options, sentence):
    with pytest.raises(FlammaError, match=sentence) as caught:
        federated_from(given, **options)
    assert str(caught.value).endswith(".")


@given(
    group=st.lists(st.integers(0, 4), min_size=4, max_size=60),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_every_sample_is_at_its_client_once_or_the_data_are_refused(group, share, seed):
    x = np.arange(len(group), dtype=np.float64)[:, None]
    y = np.arange(len(group)) % 2
    sizes = np.unique(group, return_counts=True)[1]
    if sizes.size == 1 or sizes.min() < 2:
        with pytest.raises(DataError):
            federated_from((x, y), group=group, held_out=share, seed=seed)
        return
    data = federated_from((x, y), group=group, held_out=share, seed=seed)
    assert isinstance(data, FederatedData)
    for client, name in enumerate(data.client_names):
        own = [*clients_of(data)[client].ravel(), *clients_of(data, "held")[client].ravel()]
        assert sorted(own) == [k for k, g in enumerate(group) if str(g) == name]
    assert np.diff(data.held_offsets).min() >= 1
    assert data.samples.min() >= 1
