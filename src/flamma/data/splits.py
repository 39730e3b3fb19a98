"""Splits: functions that deal a pool of samples to clients.

A split returns the owner of every sample, so each sample has exactly one. Its keyword parameters
are its options. Another package adds a split by an entry point of the group ``flamma.splits`` that
names a function ``(pool, **options) -> owners``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError
from flamma.numerics import dirichlet, exp, normal, total
from flamma.registry import Between, Choice, Registry, at_least
from flamma.seeding import stream
from flamma.types import Floats, Ints

# What splits are made of: sizes of parts, random orders within classes, and classes dealt out.


def _part_sizes(samples: int, weights: Floats, least: int, what: str = "clients") -> Ints:
    """Return integer sizes with the given sum: ``least`` each, the rest in proportion to weights.

    Examples
    --------
    >>> _part_sizes(10, np.array([1.0, 1.0, 2.0]), 1)
    array([3, 3, 4])
    """
    rest = samples - least * weights.size
    if rest < 0:
        raise DataError(
            f"{samples} samples cannot make {weights.size} {what} of at least {least}: take more "
            f"samples or fewer clients."
        )
    ideal = rest * (weights / total(weights))
    sizes: Ints = np.floor(ideal).astype(np.int64)
    short = rest - int(sizes.sum())
    sizes[np.argsort(sizes - ideal, kind="stable")[:short]] += 1
    sizes += least
    return sizes


def _uneven_weights(count: int, uneven: float, rng: np.random.Generator) -> Floats:
    """Return random weights whose logarithms have the standard deviation ``uneven``."""
    return exp(uneven * normal(rng, count))


def _by_label(labels: Ints, rng: np.random.Generator) -> Ints:
    """Return the samples sorted by label, in random order within each."""
    shuffled = rng.permutation(labels.size)
    order: Ints = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return order


def deal_classes(clients: int, each: int, classes: int, rng: np.random.Generator) -> Ints:
    """Return a row of distinct classes per client, with each class used about equally often.

    The clients of a block take consecutive classes of a random circular order of all classes; a
    block has as many clients as it takes to use each class equally often.
    """
    block = Fraction(classes, each).numerator
    circles = rng.permuted(np.tile(np.arange(classes), (-(-clients // block), 1)), axis=1)
    slots = (np.arange(block)[:, None] * each + np.arange(each)) % classes
    dealt = circles[:, slots].reshape(-1, each)[:clients]
    return rng.permutation(dealt, axis=0)


MIN_SAMPLES = 2
"""The fewest samples of a client: one to train on, one held out."""
GROUPS_SPLIT = "groups"
"""The split by natural groups."""
_MAX_DRAWS = 50
"""How many times the Dirichlet split draws before it gives up."""


@dataclass(frozen=True, eq=False)
class Pool:
    """The samples to deal, and the number of clients to deal them to.

    Attributes
    ----------
    labels : ndarray
        The class of each sample.
    classes, clients : int
        How many classes and clients there are.
    seed : int
        The seed of the split.
    groups : ndarray, optional
        The natural group of each sample (its writer, hospital, airline), numbered from 0.
    labelled : bool
        Whether ``labels`` are classes; else they are all 0.
    """

    labels: Ints
    classes: int
    clients: int
    seed: int = 0
    groups: Ints | None = None
    labelled: bool = True

    def stream(self, attempt: int = 0) -> np.random.Generator:
        """Return the random stream of the split."""
        return stream(self.seed, "split", round=attempt)


_Positive = Annotated[int, at_least(1)]
_Uneven = Annotated[float, Between(0, 5)]
"""The standard deviation of the logarithm of sizes; 0 makes them equal."""

Split = Callable[..., Ints]
"""``(pool, **options) -> owners``: the number of the client that owns each sample."""


def split_iid(pool: Pool, *, uneven: _Uneven = 0.0) -> Ints:
    """Deal the samples at random, so that all clients have about the same distribution.

    Parameters
    ----------
    uneven : float
        The standard deviation of the logarithm of the clients' sizes: 0 makes them equal, 1 makes
        one client in six larger than 2.7 times the median.
    """
    rng = pool.stream()
    sizes = _part_sizes(pool.labels.size, _uneven_weights(pool.clients, uneven, rng), MIN_SAMPLES)
    return rng.permutation(np.repeat(np.arange(pool.clients), sizes))


def split_shards(pool: Pool, *, shards_per_client: _Positive = 2, uneven: _Uneven = 0.0) -> Ints:
    """Sort by label, cut into shards, deal ``shards_per_client`` of them to each client.

    If the number of shards is a multiple of the number of classes, each class is cut separately
    and every shard has a single class. Otherwise, and where whole classes would have to be uneven
    shards, the sorted pool is cut as a whole, and a shard can have the end of one class and the
    beginning of the next.

    Parameters
    ----------
    shards_per_client : int
        How many shards each client has.
    uneven : float
        The standard deviation of the logarithm of the shards' sizes; 0 makes them equal.
    """
    _needs_labels("shards", pool)
    labels, clients = pool.labels, pool.clients
    count = clients * shards_per_client
    least = -(-MIN_SAMPLES // shards_per_client)
    if count * least > labels.size:
        raise DataError(
            f"{count} shards ({clients} clients with {shards_per_client} each) "
            f"need at least {count * least} samples, but there are {labels.size}."
        )
    rng = pool.stream()
    order = _by_label(labels, rng)
    present = np.bincount(labels, minlength=pool.classes)
    separately = count % pool.classes == 0 and not (uneven and count == pool.classes)
    cuts = present if separately else np.array([labels.size])
    weights = _uneven_weights(count, uneven, rng).reshape(cuts.size, -1)
    sizes = np.concatenate(
        [_part_sizes(int(n), w, least, "shards") for n, w in zip(cuts, weights, strict=True)]
    )
    holder = rng.permutation(np.repeat(np.arange(clients), shards_per_client))
    owners = np.empty(labels.size, dtype=np.int64)
    owners[order] = np.repeat(holder, sizes)
    return owners


def split_classes(pool: Pool, *, classes_per_client: _Positive = 2, uneven: _Uneven = 0.0) -> Ints:
    """Give every client ``classes_per_client`` classes, and each class to about as many clients.

    The samples of a class are divided among the clients that have it.

    Parameters
    ----------
    classes_per_client : int
        How many different classes each client has.
    uneven : float
        The standard deviation of the logarithm of the parts' sizes; 0 makes them equal.
    """
    _needs_labels("classes", pool)
    labels, classes, clients, each = pool.labels, pool.classes, pool.clients, classes_per_client
    if each > classes:
        raise DataError(f"classes_per_client must lie between 1 and {classes}, not {each}.")
    if clients * each < classes:
        raise DataError(
            f"{clients} clients with {each} classes each leave {classes - clients * each} of "
            f"{classes} classes without a client: take more clients or more classes per client."
        )
    if uneven and clients * each == classes:
        raise DataError(
            f"every class belongs to one of {clients} clients with {each} each, so that there are "
            f"no uneven parts of one: take more clients or classes per client, or uneven = 0."
        )
    rng = pool.stream()
    held = deal_classes(clients, each, classes, rng)
    order = _by_label(labels, rng)
    sizes = np.bincount(labels, minlength=classes)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    least = -(-MIN_SAMPLES // each)
    owners = np.empty(labels.size, dtype=np.int64)
    for label in range(classes):
        holders = rng.permutation(np.flatnonzero((held == label).any(axis=1)))
        weights = _uneven_weights(holders.size, uneven, rng)
        parts = _part_sizes(int(sizes[label]), weights, least, f"parts of class {label}")
        owners[order[starts[label] : starts[label + 1]]] = np.repeat(holders, parts)
    return owners


def split_dirichlet(pool: Pool, *, alpha: Annotated[float, Between(1e-3, 1e6)] = 0.5) -> Ints:
    """Divide each class by weights drawn from a symmetric Dirichlet(``alpha``) distribution.

    A small alpha gives each class to few clients, a large one approaches equal shares (Hsu, Qi,
    Brown: Measuring the effects of non-identical data distribution, 2019). The weights are drawn
    again, a limited number of times, until every client has two samples.

    Parameters
    ----------
    alpha : float
        The concentration.
    """
    _needs_labels("dirichlet", pool)
    labels, classes, clients = pool.labels, pool.classes, pool.clients
    present = np.bincount(labels, minlength=classes)
    fewest = 0
    for attempt in range(_MAX_DRAWS):
        rng = pool.stream(attempt)
        shares = np.stack([dirichlet(rng, alpha, clients) for _ in range(classes)])
        cuts = np.rint(np.cumsum(shares, axis=1) * present[:, None]).astype(np.int64)
        cuts[:, -1] = present
        parts = np.diff(cuts, axis=1, prepend=0)
        fewest = int(parts.sum(axis=0).min())
        if fewest >= MIN_SAMPLES:
            owners = np.empty(labels.size, dtype=np.int64)
            holders = np.tile(np.arange(clients), classes)
            owners[_by_label(labels, rng)] = np.repeat(holders, parts.ravel())
            return owners
    raise DataError(
        f"no Dirichlet split with alpha {alpha:g} gave each of {clients} clients {MIN_SAMPLES} of "
        f"the {labels.size} samples in {_MAX_DRAWS} draws: raise alpha, or take fewer clients or "
        f"more samples."
    )


def split_groups(pool: Pool) -> Ints:
    """Give every client whole natural groups of the dataset, such as all samples of a writer.

    With as many clients as groups, each group is a client, in their order. With fewer clients,
    the groups are dealt in random order, each to the client with the fewest samples so far.
    """
    if pool.groups is None:
        raise DataError("the split groups needs a dataset with natural groups: use another split.")
    groups, clients = pool.groups, pool.clients
    sizes = np.bincount(groups)
    present = np.flatnonzero(sizes)
    if clients > present.size:
        raise DataError(
            f"the dataset has {present.size} groups for {clients} clients: use at most "
            f"{present.size} clients."
        )
    holder = np.zeros(sizes.size, dtype=np.int64)
    if clients == present.size:
        holder[present] = np.arange(clients)
        return holder[groups]
    # The client with the fewest samples is first in the heap, of several the lowest number.
    load = [(0, client) for client in range(clients)]
    for group in pool.stream().permutation(present).tolist():
        samples, holder[group] = load[0]
        heapq.heapreplace(load, (samples + int(sizes[group]), int(holder[group])))
    return holder[groups]


SPLITS: Registry[Split] = Registry(
    "split",
    "flamma.splits",
    {
        "iid": split_iid,
        "shards": split_shards,
        "classes": split_classes,
        "dirichlet": split_dirichlet,
        "groups": split_groups,
    },
)


def split_owners(split: Choice, pool: Pool) -> Ints:
    """Return the owner of every sample by the chosen split.

    Raises
    ------
    DataError
        If there is no such split, or the samples cannot be split as asked.

    Examples
    --------
    >>> labels = np.repeat([0, 1], 4)
    >>> pool = Pool(labels, classes=2, clients=2, seed=1)
    >>> owners = split_owners(Choice("shards", {"shards_per_client": 1}), pool)
    >>> [sorted(set(labels[owners == client].tolist())) for client in (0, 1)]
    [[0], [1]]
    """
    deal = SPLITS.bind(SPLITS.choose(split, "split"))
    if pool.clients < 1:
        raise DataError(f"clients must be at least 1, not {pool.clients}.")
    if pool.seed < 0:
        raise DataError(f"seed must be at least 0, not {pool.seed}.")
    check_enough(pool.clients, pool.labels.size)
    owners: Ints = deal(pool)
    counts = np.bincount(owners, minlength=pool.clients)
    if (
        owners.shape != pool.labels.shape
        or counts.size != pool.clients
        or counts.min() < MIN_SAMPLES
    ):
        raise DataError(
            f"the split {split.name!r} did not give every client {MIN_SAMPLES} samples."
        )
    return owners


def check_enough(clients: int, samples: int) -> None:
    """Refuse more clients than there are samples for.

    Raises
    ------
    DataError
        If not every client can have a sample to train on and one that is held out.
    """
    if samples < MIN_SAMPLES * clients:
        raise DataError(
            f"{clients} clients need at least {MIN_SAMPLES * clients} samples, one to train on and "
            f"one held out each, but there are {samples}."
        )


def _needs_labels(split: str, pool: Pool) -> None:
    if not pool.labelled:
        raise DataError(
            f"the split {split} deals samples by their class, and these have none: use iid or "
            f"groups."
        )


# Which sample is whose: dealt to clients, held out there, or kept by the server.

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
            drawn = _with_each_group(drawn, samples.groups[rest], samples.clients)
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
    order = _by_label(labels, rng)
    sizes = np.bincount(labels, minlength=classes)
    rank = np.arange(labels.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # First one sample of each class, then a second one, and so on; classes that have run out are
    # skipped. Which classes give one more at the end is random.
    turn = rng.permutation(classes)[labels[order]]
    chosen = order[np.argsort(classes * rank + turn)[:count]]  # all differ: any sort will do
    return rng.permutation(chosen)


def _with_each_group(drawn: Ints, groups: Ints, clients: int) -> Ints:
    """Return a sample with what it lacks of small groups, if each group is to be a client.

    A client needs one sample to train on and one that is held out; the first ones that were not
    drawn are added.

    Examples
    --------
    >>> _with_each_group(np.array([4, 0, 1]), np.array([0, 0, 0, 1, 1]), clients=2)
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
