"""What holds for every split, whatever it is given; and what each promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flamma.data.build import balanced_sample, held_out_mask
from flamma.data.splits import SPLITS, SplitOptions, part_sizes, split_owners
from flamma.errors import DataError, FlammaError


@st.composite
def pools(draw):
    """Return labels in any order, and options that may or may not be possible."""
    classes = draw(st.integers(1, 6))
    sizes = draw(st.lists(st.integers(0, 60), min_size=classes, max_size=classes))
    labels = np.repeat(np.arange(classes), sizes)
    np.random.default_rng(draw(st.integers(0, 99))).shuffle(labels)
    options = SplitOptions(
        clients=draw(st.integers(1, 12)),
        seed=draw(st.integers(0, 2**40)),
        shards_per_client=draw(st.integers(1, 4)),
        classes_per_client=draw(st.integers(1, 6)),
        alpha=draw(st.sampled_from([0.01, 0.5, 10.0, 1000.0])),
        uneven=draw(st.sampled_from([0.0, 0.5, 3.0])),
    )
    return labels, classes, options


def possible(name, labels, classes, options):
    try:
        return split_owners(name, labels, classes, options)
    except DataError:
        assume(False)


@pytest.mark.parametrize("name", list(SPLITS))
@settings(max_examples=60)
@given(pool=pools(), held_out=st.floats(0.01, 0.99))
def test_every_sample_has_one_owner_and_every_client_both_parts(name, pool, held_out):
    labels, classes, options = pool
    owners = possible(name, labels, classes, options)
    assert owners.shape == labels.shape
    assert 0 <= owners.min() <= owners.max() < options.clients
    held = held_out_mask(owners, labels, options, held_out)
    for client in range(options.clients):
        mine = owners == client
        assert (mine & held).sum() >= 1
        assert (mine & ~held).sum() >= 1


@pytest.mark.parametrize("name", list(SPLITS))
@settings(max_examples=60)
@given(pool=pools())
def test_the_same_seed_gives_the_same_split(name, pool):
    owners = possible(name, *pool)
    assert np.array_equal(owners, split_owners(name, *pool))


@pytest.mark.parametrize("name", list(SPLITS))
def test_another_seed_gives_another_split(name):
    labels = np.arange(1000) % 10
    splits = {
        split_owners(name, labels, 10, SplitOptions(10, seed)).tobytes() for seed in range(20)
    }
    assert len(splits) == 20


@settings(max_examples=60)
@given(seed=st.integers(0, 2**40), sizes=st.lists(st.integers(5, 40), min_size=10, max_size=10))
def test_one_shard_per_client_is_one_class_per_client(seed, sizes):
    labels = np.repeat(np.arange(10), sizes)
    owners = split_owners("shards", labels, 10, SplitOptions(10, seed))
    held = held_out_mask(owners, labels, SplitOptions(10, seed), 0.2)
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
    options = SplitOptions(10, seed, shards_per_client=per_client)
    owners = split_owners("shards", labels, 5, options)
    held = [set(labels[owners == client].tolist()) for client in range(10)]
    assert max(map(len, held)) <= per_client
    assert np.bincount(owners).tolist() == [60] * 10


def test_shards_that_do_not_come_out_even_straddle_two_classes():
    labels = np.arange(300) % 10
    owners = split_owners("shards", labels, 10, SplitOptions(7, 3))
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
        np.log(np.bincount(split_owners(name, labels, 10, SplitOptions(100, 0, uneven=u)))).std()
        for u in (0.0, 0.5, 1.0)
    ]
    assert spread[0] < 0.05
    assert spread[0] + 0.2 < spread[1] < spread[2] - 0.2


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
    options = SplitOptions(clients, seed, classes_per_client=each)
    owners = split_owners("classes", labels, classes, options)
    counts = np.zeros((clients, classes), dtype=int)
    np.add.at(counts, (owners, labels), 1)
    assert ((counts > 0).sum(axis=1) == each).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1


def test_a_large_alpha_is_even_and_a_small_one_is_not():
    labels = np.arange(5000) % 10

    def largest_share(alpha):
        owners = split_owners("dirichlet", labels, 10, SplitOptions(10, 0, alpha=alpha))
        counts = np.zeros((10, 10))
        np.add.at(counts, (owners, labels), 1)
        return (counts.max(axis=1) / counts.sum(axis=1)).mean()

    assert largest_share(10_000) < 0.12
    assert largest_share(0.1) > 0.4


def test_iid_is_a_fair_deal():
    labels = np.arange(10_000) % 10
    owners = split_owners("iid", labels, 10, SplitOptions(10, 0))
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
        ("iid", {"clients": 2, "uneven": math.nan}, "uneven must lie"),
        ("shards", {"clients": 5, "shards_per_client": 0}, "shards_per_client must be at least"),
        ("shards", {"clients": 30, "shards_per_client": 4}, "120 shards .* there are 100"),
        ("classes", {"clients": 5, "classes_per_client": 11}, "between 1 and 10, not 11"),
        ("classes", {"clients": 4, "classes_per_client": 2}, "leave 2 of 10 classes to nobody"),
        ("classes", {"clients": 50, "classes_per_client": 1, "uneven": 0}, None),
        ("dirichlet", {"clients": 40, "alpha": 0.01}, "no Dirichlet split with alpha 0.01"),
        ("dirichlet", {"clients": 2, "alpha": 0.0}, "alpha must lie"),
        ("dirichlet", {"clients": 2, "alpha": math.inf}, "alpha must lie"),
        ("shard", {"clients": 2}, "did you mean shards"),
    ],
)
def test_impossible_splits_say_why_in_one_sentence(name, options, what):
    labels = np.arange(100) % 10
    if what is None:
        split_owners(name, labels, 10, SplitOptions(**options))
        return
    with pytest.raises(FlammaError, match=what) as caught:
        split_owners(name, labels, 10, SplitOptions(**options))
    message = str(caught.value)
    assert "\n" not in message
    assert message[-1] in ".?"


def test_a_class_with_too_few_samples_for_its_shards():
    labels = np.repeat([0, 1], [99, 1])
    with pytest.raises(DataError, match="1 samples cannot make 2 shards of at least 2"):
        split_owners("shards", labels, 2, SplitOptions(4))


def test_a_split_of_others_is_checked(monkeypatch):
    monkeypatch.setitem(SPLITS._ours, "lazy", lambda labels, classes, o: np.zeros_like(labels))
    with pytest.raises(DataError, match="'lazy' did not give every client 2 samples"):
        split_owners("lazy", np.zeros(10, dtype=np.int64), 1, SplitOptions(2))


@given(
    total=st.integers(0, 5000),
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=50),
    least=st.integers(0, 3),
)
def test_part_sizes_add_up_and_follow_the_weights(total, weights, least):
    assume(total >= least * len(weights))
    sizes = part_sizes(total, np.array(weights), least)
    assert sizes.sum() == total
    ideal = least + (total - least * len(weights)) * np.array(weights) / sum(weights)
    assert np.abs(sizes - ideal).max() <= 1 + 1e-9


@settings(max_examples=100)
@given(pool=pools(), held_out=st.floats(0.05, 0.95))
def test_held_out_parts_are_cut_class_by_class(pool, held_out):
    labels, classes, options = pool
    owners = possible("iid", labels, classes, options)
    held = held_out_mask(owners, labels, options, held_out)
    for client in range(options.clients):
        mine = owners == client
        share = (held & mine).sum() / mine.sum()
        assert (
            abs((held & mine).sum() - held_out * mine.sum()) <= 0.5 + 1e-9
            or min((held & mine).sum(), (~held & mine).sum()) == 1
        )
        for label in range(classes):
            group = mine & (labels == label)
            assert abs((held & group).sum() - share * group.sum()) < 1 + 1e-9


@given(pool=pools(), count=st.integers(0, 100))
def test_a_balanced_sample_is_as_balanced_as_can_be(pool, count):
    labels, classes, options = pool
    rng = np.random.default_rng(options.seed)
    chosen = balanced_sample(labels, classes, count, rng)
    there = np.bincount(labels, minlength=classes)
    taken = np.bincount(labels[chosen], minlength=classes)
    assert len(set(chosen.tolist())) == chosen.size == min(count, labels.size)
    unused = taken < there
    if unused.any():
        assert taken.max() - taken[unused].min() <= 1
