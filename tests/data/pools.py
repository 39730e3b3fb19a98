"""Pools of samples to be dealt, and their owners."""

from __future__ import annotations

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from flamma.data.splits import SPLITS, Pool, split_owners
from flamma.errors import DataError


def owners_by(name, pool, **options):
    """Return the owners by a split, which takes those of the options that are its own."""
    return split_owners(SPLITS.choose({"name": name, **options}, "split", shared=True), pool)


@st.composite
def pools(draw):
    """Return a pool of samples in any order, and options that may or may not be possible."""
    classes = draw(st.integers(1, 6))
    sizes = draw(st.lists(st.integers(0, 60), min_size=classes, max_size=classes))
    labels = np.repeat(np.arange(classes), sizes)
    np.random.default_rng(draw(st.integers(0, 99))).shuffle(labels)
    clients, groups = draw(st.integers(1, 12)), draw(st.integers(1, 20))
    pool = Pool(
        labels, classes, clients, draw(st.integers(0, 2**40)), np.arange(labels.size) % groups
    )
    return pool, {
        "shards_per_client": draw(st.integers(1, 4)),
        "classes_per_client": draw(st.integers(1, 6)),
        "alpha": draw(st.sampled_from([0.01, 0.5, 10.0, 1000.0])),
        "uneven": draw(st.sampled_from([0.0, 0.5, 3.0])),
    }


def possible(name, pool, options):
    try:
        return owners_by(name, pool, **options)
    except DataError:
        assume(False)
