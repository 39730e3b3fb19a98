"""Properties of every registered split, and what each split promises."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from data.pools import owners_by, pools, possible
from flamma.data.splits import SPLITS, Pool, _part_sizes, balanced_sample, held_out_mask, partition
from flamma.errors import DataError, FlammaError
from flamma.registry import Choice


@pytest.mark.parametrize("name", list(SPLITS))
@settings(max_examples=60)
@given(drawn=pools(), held_out=st.floats(0.01, 0.99))
def test_every_sample_has_one_owner_and_every_client_both_parts(name, drawn, held_out):
    pool = drawn[0]
    owners = possible(name, *drawn)
    assert owners.shape == pool.labels.shape
    assert 0 <= owners.min() <= owners.max() < pool.clients
    held = held_out_mask(owners, pool.labels, pool.clients, pool.seed, held_out)
    for client in range(pool.clients):
        mine = owners == client
        assert (mine & held).sum() >= 1
        assert (mine & ~held).sum() >= 1


@pytest.mark.parametrize("name", list(SPLITS))
@settings(max_examples=60)
@given(drawn=pools())
def test_the_same_seed_gives_the_same_split(name, drawn):
    assert np.array_equal(possible(name, *drawn), possible(name, *drawn))


@pytest.mark.parametrize("name", list(SPLITS))
def test_another_seed_gives_another_split(name):
    labels = np.arange(1000) % 10
    groups = np.arange(1000) % 40
    splits = {owners_by(name, Pool(labels, 10, 10, seed, groups)).tobytes() for seed in range(20)}
    assert len(splits) == 20


@settings(max_examples=60)
@given(seed=st.integers(0, 2**40), sizes=st.lists(st.integers(5, 40), min_size=10, max_size=10))
def test_one_shard_per_client_is_one_class_per_client(seed, sizes):
    labels = np.repeat(np.arange(10), sizes)
    owners = owners_by("shards", Pool(labels, 10, 10, seed), shards_per_client=1)
    held = held_out_mask(owners, labels, 10, seed, 0.2)
    classes = []
    for client in range(10):
        (label,) = set(labels[owners == client].tolist())
        assert set(labels[held & (owners == client)].tolist()) == {label}
        classes.append(label)
    assert sorted(classes) == list(range(10))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**40), per_client=st.integers(1, 4))
def test_a_client_has_at_most_as_many_classes_as_shards(seed, per_client):
    labels = np.arange(600) % 5
    owners = owners_by("shards", Pool(labels, 5, 10, seed), shards_per_client=per_client)
    held = [set(labels[owners == client].tolist()) for client in range(10)]
    assert max(map(len, held)) <= per_client
    assert np.bincount(owners).tolist() == [60] * 10


def test_shards_that_do_not_come_out_even_straddle_two_classes():
    labels = np.arange(300) % 10
    owners = owners_by("shards", Pool(labels, 10, 7, 3), shards_per_client=1)
    sizes = np.bincount(owners)
    assert sizes.max() - sizes.min() <= 1
    for client in range(7):
        held = np.unique(labels[owners == client])
        assert held.size <= 3
        assert np.all(np.diff(held) == 1)


@pytest.mark.parametrize("name", ["iid", "shards", "classes"])
def test_uneven_spreads_the_sizes(name):
    labels = np.arange(20_000) % 10
    spread = [
        np.log(np.bincount(owners_by(name, Pool(labels, 10, 100), uneven=u))).std()
        for u in (0.0, 0.5, 1.0)
    ]
    assert spread[0] < 0.05
    assert spread[0] + 0.2 < spread[1] < spread[2] - 0.2


def test_uneven_shards_of_whole_classes_are_cut_across_them():
    labels = np.arange(2000) % 10
    owners = owners_by("shards", Pool(labels, 10, 5), shards_per_client=2, uneven=1.0)
    sizes = np.bincount(owners)
    assert sizes.sum() == 2000
    assert np.log(sizes).std() > 0.2
    equal = owners_by("shards", Pool(labels, 10, 5), shards_per_client=2)
    assert np.bincount(equal).tolist() == [400] * 5


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**40),
    clients=st.integers(1, 30),
    classes=st.integers(2, 8),
    each=st.integers(1, 8),
)
def test_classes_gives_so_many_classes_to_each_and_each_to_about_as_many(
    seed, clients, classes, each
):
    assume(each <= classes <= clients * each)
    labels = np.arange(classes * 100) % classes
    pool = Pool(labels, classes, clients, seed)
    owners = owners_by("classes", pool, classes_per_client=each)
    counts = np.zeros((clients, classes), dtype=int)
    np.add.at(counts, (owners, labels), 1)
    assert ((counts > 0).sum(axis=1) == each).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1


def test_a_large_alpha_is_even_and_a_small_one_is_not():
    labels = np.arange(5000) % 10

    def largest_share(alpha):
        owners = owners_by("dirichlet", Pool(labels, 10, 10), alpha=alpha)
        counts = np.zeros((10, 10))
        np.add.at(counts, (owners, labels), 1)
        return (counts.max(axis=1) / counts.sum(axis=1)).mean()

    assert largest_share(10_000) < 0.12
    assert largest_share(0.1) > 0.4


def test_iid_is_a_fair_deal():
    labels = np.arange(10_000) % 10
    owners = owners_by("iid", Pool(labels, 10, 10))
    counts = np.zeros((10, 10))
    np.add.at(counts, (owners, labels), 1)
    assert counts.min() > 65
    assert counts.sum(axis=1).tolist() == [1000] * 10


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("iid", {"clients": 51}, "51 clients need at least 102 samples"),
        ("iid", {"clients": 0}, "clients must be at least 1"),
        ("iid", {"clients": 2, "seed": -1}, "seed must be at least 0"),
        ("iid", {"clients": 2, "uneven": 5.1}, r"uneven must lie in \[0, 5\], not 5\.1"),
        ("iid", {"clients": 2, "uneven": math.nan}, "uneven must be a finite number"),
        ("shards", {"clients": 5, "shards_per_client": 0}, "shards_per_client must be at least"),
        ("shards", {"clients": 30, "shards_per_client": 4}, "120 shards .* there are 100"),
        ("classes", {"clients": 5, "classes_per_client": 11}, "between 1 and 10, not 11"),
        (
            "classes",
            {"clients": 4, "classes_per_client": 2},
            "leave 2 of 10 classes without a client",
        ),
        (
            "classes",
            {"clients": 5, "classes_per_client": 2, "uneven": 0.5},
            "every class belongs to one of 5 clients",
        ),
        ("classes", {"clients": 50, "classes_per_client": 1, "uneven": 0}, None),
        ("dirichlet", {"clients": 40, "alpha": 0.01}, "no Dirichlet split with alpha 0.01"),
        ("dirichlet", {"clients": 2, "alpha": 0.0}, "alpha must lie"),
        ("dirichlet", {"clients": 2, "alpha": math.inf}, "alpha must be a finite number"),
        ("groups", {"clients": 2}, "groups needs a dataset with natural groups"),
        ("shard", {"clients": 2}, "did you mean shards"),
    ],
)
def test_impossible_splits_say_why_in_one_sentence(name, options, what):
    clients, seed = options.pop("clients"), options.pop("seed", 0)
    pool = Pool(np.arange(100) % 10, 10, clients, seed)
    if what is None:
        owners_by(name, pool, **options)
        return
    with pytest.raises(FlammaError, match=what) as caught:
        owners_by(name, pool, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message[-1] in ".?"


def test_a_class_with_too_few_samples_for_its_shards():
    labels = np.repeat([0, 1], [99, 1])
    with pytest.raises(DataError, match="1 samples cannot make 2 shards of at least 2"):
        owners_by("shards", Pool(labels, 2, 4), shards_per_client=1)


def test_a_split_of_others_is_checked(monkeypatch):
    monkeypatch.setitem(SPLITS._ours, "lazy", lambda pool: np.zeros_like(pool.labels))
    with pytest.raises(DataError, match="'lazy' did not give every client 2 samples"):
        owners_by("lazy", Pool(np.zeros(10, dtype=np.int64), 1, 2))


def test_groups_go_to_the_client_with_the_fewest_samples_so_far():
    groups = np.random.default_rng(5).integers(0, 60, 1000)
    pool = Pool(np.zeros(1000, dtype=np.int64), 1, 7, 3, groups)
    sizes, load, holder = np.bincount(groups), np.zeros(7, dtype=np.int64), np.zeros(60, dtype=int)
    for group in pool.stream().permutation(np.flatnonzero(sizes)):
        holder[group] = np.argmin(load)  # of several, the lowest number
        load[holder[group]] += sizes[group]
    assert np.array_equal(owners_by("groups", pool), holder[groups])


def test_as_many_clients_as_groups_are_the_groups_in_order():
    groups = np.array([7, 3, 3, 7, 5, 5, 7])
    owners = owners_by("groups", Pool(np.zeros(7, dtype=np.int64), 1, 3, groups=groups))
    assert owners.tolist() == [2, 0, 0, 2, 1, 1, 2]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(2, 30), min_size=2, max_size=15),
    clients=st.integers(1, 14),
    seed=st.integers(0, 99),
)
def test_fewer_clients_than_groups_share_whole_groups(sizes, clients, seed):
    assume(clients < len(sizes))
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    pool = Pool(np.zeros(groups.size, dtype=np.int64), 1, clients, seed, groups)
    owners = owners_by("groups", pool)
    for group in range(len(sizes)):
        assert np.unique(owners[groups == group]).size == 1
    counts = np.bincount(owners, minlength=clients)
    # No client has a whole group more than the one with the fewest samples.
    assert counts.max() - counts.min() <= max(sizes)


def test_more_clients_than_groups_are_refused():
    pool = Pool(np.zeros(8, dtype=np.int64), 1, 3, groups=np.arange(8) % 2)
    with pytest.raises(DataError, match="2 groups for 3 clients: use at most 2 clients"):
        owners_by("groups", pool)


# What splits are made of.


@given(
    total=st.integers(0, 5000),
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=50),
    least=st.integers(0, 3),
)
def test_part_sizes_add_up_and_follow_the_weights(total, weights, least):
    assume(total >= least * len(weights))
    sizes = _part_sizes(total, np.array(weights), least)
    assert sizes.sum() == total
    ideal = least + (total - least * len(weights)) * np.array(weights) / sum(weights)
    assert np.abs(sizes - ideal).max() <= 1 + 1e-9


# Which sample is whose: no sample in two places, and parts that are balanced over the classes.

LABELS = np.arange(400) % 10


@settings(max_examples=50)
@given(
    split=st.sampled_from(list(SPLITS)),
    clients=st.integers(5, 20),
    seed=st.integers(0, 2**40),
    pool=st.one_of(st.none(), st.integers(200, 350)),
    validation=st.integers(0, 50),
    held_out=st.floats(0.05, 0.6),
)
def test_no_sample_is_in_two_places(split, clients, seed, pool, validation, held_out):
    samples = Pool(LABELS, 10, clients, seed, groups=np.arange(400) % 20)
    chosen = SPLITS.choose({"name": split, "alpha": 2.0}, "split", shared=True)
    part = partition(samples, chosen, pool, validation, held_out)
    everything = np.concatenate([part.train, part.held, part.validation])
    assert np.unique(everything).size == everything.size
    assert everything.size == validation + (400 - validation if pool is None else pool)
    assert part.validation.size == validation
    for offsets, samples in ((part.train_offsets, part.train), (part.held_offsets, part.held)):
        assert offsets[0] == 0
        assert offsets[-1] == samples.size
        assert (np.diff(offsets) >= 1).all()


@settings(max_examples=100)
@given(drawn=pools(), held_out=st.floats(0.05, 0.95))
def test_held_out_parts_are_cut_class_by_class(drawn, held_out):
    pool, labels = drawn[0], drawn[0].labels
    owners = possible("iid", *drawn)
    held = held_out_mask(owners, labels, pool.clients, pool.seed, held_out)
    for client in range(pool.clients):
        mine = owners == client
        share = (held & mine).sum() / mine.sum()
        assert (
            abs((held & mine).sum() - held_out * mine.sum()) <= 0.5 + 1e-9
            or min((held & mine).sum(), (~held & mine).sum()) == 1
        )
        for label in range(pool.classes):
            group = mine & (labels == label)
            assert abs((held & group).sum() - share * group.sum()) < 1 + 1e-9


@given(drawn=pools(), count=st.integers(0, 100))
def test_a_balanced_sample_is_as_balanced_as_can_be(drawn, count):
    labels, classes = drawn[0].labels, drawn[0].classes
    rng = np.random.default_rng(drawn[0].seed)
    chosen = balanced_sample(labels, classes, count, rng)
    there = np.bincount(labels, minlength=classes)
    taken = np.bincount(labels[chosen], minlength=classes)
    assert len(set(chosen.tolist())) == chosen.size == min(count, labels.size)
    unused = taken < there
    if unused.any():
        assert taken.max() - taken[unused].min() <= 1


def test_a_part_of_the_samples_has_some_of_every_group():
    groups = np.repeat([0, 1, 2], [200, 3, 2])
    pool = Pool(np.zeros(205, dtype=np.int64), 1, 3, 0, groups, labelled=False)
    for seed in range(10):
        part = partition(replace(pool, seed=seed), Choice("groups"), wanted=20)
        held = np.diff(part.held_offsets)
        sizes = np.diff(part.train_offsets) + held
        assert held.min() >= 1
        assert sizes[1:].min() >= 2
        assert 20 <= sizes.sum() <= 24
        taken = np.concatenate((part.train, part.held))
        assert np.unique(taken).size == taken.size
    with pytest.raises(DataError):  # one of few clients is not to be a group
        partition(replace(pool, clients=4), Choice("groups"), wanted=20)
