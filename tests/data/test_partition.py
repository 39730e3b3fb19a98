"""Which sample is whose: no sample in two places, and parts that are balanced over the classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.pools import pools, possible
from flamma.data.splits import SPLITS, Pool, balanced_sample, held_out_mask, partition
from flamma.errors import DataError
from flamma.registry import Choice

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
