"""Which sample is whose: dealt to clients, held out there, or kept by the server."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flamma.data.dealing import by_label
from flamma.data.splits import GROUPS_SPLIT, MIN_SAMPLES, Pool, split_owners
from flamma.errors import DataError
from flamma.registry import Choice
from flamma.seeding import stream
from flamma.types import Ints

HELD_OUT = 0.2
"""The default share of each client's samples that is held out."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The training samples of each client and of the server; no sample is in two places."""

    train: Ints
    train_offsets: Ints
    held: Ints
    held_offsets: Ints
    validation: Ints


def partition(
    samples: Pool,
    split: Choice,
    wanted: int | None = None,
    validation: int = 0,
    held_out: float = HELD_OUT,
    name: str = "the dataset",
) -> Partition:
    """Return the owner of each sample, as :func:`build_federation` describes, from labels alone."""
    labels, classes, seed = samples.labels, samples.classes, samples.seed
    check_samples(name, labels.size, wanted, validation, held_out)
    rng = stream(seed, "split-validation")
    server = balanced_sample(labels, classes, validation, rng)
    rest = np.delete(np.arange(labels.size), server)
    if wanted is not None:
        rng = stream(seed, "split-subset")
        drawn = balanced_sample(labels[rest], classes, wanted, rng)
        if samples.groups is not None and split.name == GROUPS_SPLIT:
            drawn = with_each_group(drawn, samples.groups[rest], samples.clients)
        rest = rest[drawn]
    groups = None if samples.groups is None else samples.groups[rest]
    owners = split_owners(split, replace(samples, labels=labels[rest], groups=groups))
    held = held_out_mask(owners, labels[rest], samples.clients, seed, held_out)
    train, train_offsets = _grouped(rest[~held], owners[~held], samples.clients)
    kept, held_offsets = _grouped(rest[held], owners[held], samples.clients)
    return Partition(train, train_offsets, kept, held_offsets, server)


def balanced_sample(labels: Ints, classes: int, count: int, rng: np.random.Generator) -> Ints:
    """Return the indices of ``count`` samples, balanced over the classes, in random order.

    A class with too few samples gives all it has, and the others give more.

    Examples
    --------
    >>> labels = np.array([0, 0, 0, 0, 0, 0, 1, 2, 2, 2])
    >>> chosen = balanced_sample(labels, 3, 7, np.random.default_rng(0))
    >>> np.bincount(labels[chosen])
    array([3, 1, 3])
    """
    if not count:
        return np.zeros(0, dtype=np.int64)
    order = by_label(labels, rng)
    sizes = np.bincount(labels, minlength=classes)
    rank = np.arange(labels.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # First one sample of each class, then a second one, and so on; classes that have run out are
    # skipped. Which classes give one more at the end is random.
    turn = rng.permutation(classes)[labels[order]]
    chosen = order[np.argsort(classes * rank + turn)[:count]]  # all differ: any sort will do
    return rng.permutation(chosen)


def with_each_group(drawn: Ints, groups: Ints, clients: int) -> Ints:
    """Return a sample with what it lacks of small groups, if each group is to be a client.

    A client needs one sample to train on and one that is held out; the first ones that were not
    drawn are added.

    Examples
    --------
    >>> with_each_group(np.array([4, 0, 1]), np.array([0, 0, 0, 1, 1]), clients=2)
    array([4, 0, 1, 3])
    """
    sizes = np.bincount(groups)
    if clients != np.count_nonzero(sizes):
        return drawn
    lacking = MIN_SAMPLES - np.bincount(groups[drawn], minlength=sizes.size)
    left = np.setdiff1d(np.arange(groups.size), drawn)
    added = [left[groups[left] == group][: lacking[group]] for group in np.flatnonzero(lacking > 0)]
    return np.concatenate((drawn, *added))


def held_out_mask(
    owners: Ints, labels: Ints, clients: int, seed: int, held_out: float
) -> NDArray[np.bool_]:
    """Return which samples are held out: a share of each client's, stratified by class.

    A client's samples are ordered by class, at random within a class, and picked at equal
    distances from a random start, so that each class gives its share up to one sample.
    """
    rng = stream(seed, "split-held-out")
    # By owner, class and a random number: one sort of whole numbers is much faster than three keys.
    shuffled = np.argsort(rng.random(labels.size), kind="stable")
    key = owners * (int(labels.max()) + 1) + labels
    order = shuffled[np.argsort(key[shuffled], kind="stable")]
    sizes = np.bincount(owners, minlength=clients)
    picked = np.clip(np.rint(sizes * held_out).astype(np.int64), 1, sizes - 1)
    start = rng.integers(0, sizes)
    who = owners[order]
    place = np.arange(labels.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    before = (place * picked[who] + start[who]) // sizes[who]
    after = ((place + 1) * picked[who] + start[who]) // sizes[who]
    mask = np.zeros(labels.size, dtype=bool)
    mask[order] = after > before
    return mask


def pool_size(train_samples: int, held_out: float) -> int:
    """Return how many samples are dealt so that about ``train_samples`` remain to train on."""
    return math.ceil(round(train_samples / (1 - held_out), 6))


def _grouped(samples: Ints, owners: Ints, clients: int) -> tuple[Ints, Ints]:
    counts = np.bincount(owners, minlength=clients)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return samples[np.argsort(owners, kind="stable")], offsets


def check_samples(
    name: str, there: int, pool: int | None, validation: int, held_out: float
) -> None:
    """Refuse to draw more samples for the clients and for validation than there are.

    Raises
    ------
    DataError
        With what is asked for.
    """
    if validation + (pool or 0) <= there:
        return
    parts = [f"{validation} for validation"] if validation else []
    if pool is not None:
        parts.insert(0, f"{pool} for the clients ({held_out:.0%} of them held out)")
    raise DataError(
        f"{name} has {there} training samples, but these are asked for: {', '.join(parts)}."
    )
