"""How a pool of samples is dealt to clients.

A split names the owner of every sample, so by its form each sample has exactly one. Another
package adds one by an entry point of the group ``flamma.splits`` that names a function
``(labels, classes, options) -> owners``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from flamma.errors import DataError
from flamma.registry import Registry
from flamma.seeding import stream
from flamma.types import Floats, Ints

LEAST = 2
"""The fewest samples of a client: one to train on, one held out."""
ATTEMPTS = 50
"""How often the Dirichlet split draws anew before it gives up."""


@dataclass(frozen=True)
class SplitOptions:
    """What a split can be told; each split reads what concerns it.

    ``uneven`` is the standard deviation of the logarithm of the sizes: 0 makes parts equal, 1
    makes one in six parts more than 2.7 times the median.
    """

    clients: int
    seed: int = 0
    shards_per_client: int = 1
    classes_per_client: int = 2
    alpha: float = 0.5
    uneven: float = 0.0


Split = Callable[[Ints, int, SplitOptions], Ints]


def split_iid(labels: Ints, _classes: int, options: SplitOptions) -> Ints:
    """Deal the samples at random, so that every client has about the same mix.

    ``uneven`` above 0 makes some clients larger than others.
    """
    rng = stream(options.seed, "split")
    sizes = part_sizes(labels.size, _weights(options.clients, options.uneven, rng), LEAST)
    return rng.permutation(np.repeat(np.arange(options.clients), sizes))


def split_shards(labels: Ints, classes: int, options: SplitOptions) -> Ints:
    """Sort by label, cut into shards, deal ``shards_per_client`` of them to each client.

    Where the number of shards is a multiple of the number of classes, each class is cut by
    itself and every shard has one class; otherwise the sorted pool is cut as a whole, and a
    shard can have the end of one class and the beginning of the next.
    """
    count = options.clients * options.shards_per_client
    least = -(-LEAST // options.shards_per_client)
    if count * least > labels.size:
        raise DataError(
            f"{count} shards ({options.clients} clients with {options.shards_per_client} each) "
            f"need at least {count * least} samples, but there are {labels.size}."
        )
    rng = stream(options.seed, "split")
    order = _by_label(labels, rng)
    present = np.bincount(labels, minlength=classes)
    groups = present if count % classes == 0 else np.array([labels.size])
    weights = _weights(count, options.uneven, rng).reshape(groups.size, -1)
    sizes = np.concatenate(
        [part_sizes(int(n), w, least, "shards") for n, w in zip(groups, weights, strict=True)]
    )
    holder = rng.permutation(np.repeat(np.arange(options.clients), options.shards_per_client))
    owners = np.empty(labels.size, dtype=np.int64)
    owners[order] = np.repeat(holder, sizes)
    return owners


def split_classes(labels: Ints, classes: int, options: SplitOptions) -> Ints:
    """Give every client ``classes_per_client`` different classes, each class to about as many.

    The samples of a class are shared out among the clients that have it.
    """
    each, clients = options.classes_per_client, options.clients
    if not 1 <= each <= classes:
        raise DataError(f"classes_per_client must lie between 1 and {classes}, not {each}.")
    if clients * each < classes:
        raise DataError(
            f"{clients} clients with {each} classes each leave {classes - clients * each} of "
            f"{classes} classes to nobody: take more clients or more classes per client."
        )
    rng = stream(options.seed, "split")
    held = _deal_classes(clients, each, classes, rng)
    order = _by_label(labels, rng)
    sizes = np.bincount(labels, minlength=classes)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    least = -(-LEAST // each)
    owners = np.empty(labels.size, dtype=np.int64)
    for label in range(classes):
        holders = rng.permutation(np.flatnonzero((held == label).any(axis=1)))
        weights = _weights(holders.size, options.uneven, rng)
        parts = part_sizes(int(sizes[label]), weights, least, f"parts of class {label}")
        owners[order[starts[label] : starts[label + 1]]] = np.repeat(holders, parts)
    return owners


def split_dirichlet(labels: Ints, classes: int, options: SplitOptions) -> Ints:
    """Share out each class by weights drawn from a symmetric Dirichlet(``alpha``) distribution.

    A small alpha gives each class to few clients, a large one approaches equal shares (Hsu, Qi,
    Brown: Measuring the effects of non-identical data distribution, 2019). Drawn anew, a bounded
    number of times, until every client has two samples.
    """
    clients, alpha = options.clients, options.alpha
    if not (math.isfinite(alpha) and 1e-3 <= alpha <= 1e6):
        raise DataError(f"alpha must lie between 0.001 and 1000000, not {alpha:g}.")
    present = np.bincount(labels, minlength=classes)
    fewest = 0
    for attempt in range(ATTEMPTS):
        rng = stream(options.seed, "split", round=attempt)
        shares = rng.dirichlet(np.full(clients, alpha), size=classes)
        cuts = np.rint(np.cumsum(shares, axis=1) * present[:, None]).astype(np.int64)
        cuts[:, -1] = present
        parts = np.diff(cuts, axis=1, prepend=0)
        fewest = int(parts.sum(axis=0).min())
        if fewest >= LEAST:
            owners = np.empty(labels.size, dtype=np.int64)
            everybody = np.tile(np.arange(clients), classes)
            owners[_by_label(labels, rng)] = np.repeat(everybody, parts.ravel())
            return owners
    raise DataError(
        f"no Dirichlet split with alpha {alpha:g} gave each of {clients} clients {LEAST} of the "
        f"{labels.size} samples in {ATTEMPTS} draws: raise alpha, or take fewer clients or more "
        f"samples."
    )


SPLITS: Registry[Split] = Registry(
    "split",
    "flamma.splits",
    {
        "iid": split_iid,
        "shards": split_shards,
        "classes": split_classes,
        "dirichlet": split_dirichlet,
    },
)


def split_owners(name: str, labels: Ints, classes: int, options: SplitOptions) -> Ints:
    """Return the owner of every sample by the split of this name.

    Raises
    ------
    DataError
        If there is no such split, or the samples cannot be split as asked.

    Examples
    --------
    >>> labels = np.repeat([0, 1], 4)
    >>> owners = split_owners("shards", labels, 2, SplitOptions(clients=2, seed=1))
    >>> [sorted(set(labels[owners == client].tolist())) for client in (0, 1)]
    [[0], [1]]
    """
    split = SPLITS[name]
    _check(labels, options)
    owners = split(labels, classes, options)
    counts = np.bincount(owners, minlength=options.clients)
    if owners.shape != labels.shape or counts.size != options.clients or counts.min() < LEAST:
        raise DataError(f"the split {name!r} did not give every client {LEAST} samples.")
    return owners


def part_sizes(total: int, weights: Floats, least: int, what: str = "clients") -> Ints:
    """Return whole sizes that add up to a total, at least ``least`` each, the rest by weight.

    Examples
    --------
    >>> part_sizes(10, np.array([1.0, 1.0, 2.0]), 1)
    array([3, 3, 4])
    """
    rest = total - least * weights.size
    if rest < 0:
        raise DataError(
            f"{total} samples cannot make {weights.size} {what} of at least {least}: take more "
            f"samples or fewer clients."
        )
    ideal = rest * (weights / weights.sum())
    sizes: Ints = np.floor(ideal).astype(np.int64)
    short = rest - int(sizes.sum())
    sizes[np.argsort(sizes - ideal, kind="stable")[:short]] += 1
    sizes += least
    return sizes


def _weights(count: int, uneven: float, rng: np.random.Generator) -> Floats:
    return np.exp(uneven * rng.standard_normal(count))


def _by_label(labels: Ints, rng: np.random.Generator) -> Ints:
    """Return the samples sorted by label, in random order within each."""
    shuffled = rng.permutation(labels.size)
    order: Ints = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return order


def _deal_classes(clients: int, each: int, classes: int, rng: np.random.Generator) -> Ints:
    """Return a row of different classes per client, using each class about equally often.

    Clients in a block take turns around a circle of all classes in random order; after as many
    clients as it takes to come out even, the next block has a circle of its own.
    """
    block = Fraction(classes, each).numerator
    circles = rng.permuted(np.tile(np.arange(classes), (-(-clients // block), 1)), axis=1)
    slots = (np.arange(block)[:, None] * each + np.arange(each)) % classes
    dealt = circles[:, slots].reshape(-1, each)[:clients]
    return rng.permutation(dealt, axis=0)


def _check(labels: Ints, options: SplitOptions) -> None:
    for name in ("clients", "shards_per_client", "classes_per_client"):
        if getattr(options, name) < 1:
            raise DataError(f"{name} must be at least 1, not {getattr(options, name)}.")
    if options.seed < 0:
        raise DataError(f"seed must be at least 0, not {options.seed}.")
    if not 0 <= options.uneven <= 5:  # false for NaN too
        raise DataError(f"uneven must lie between 0 and 5, not {options.uneven:g}.")
    if labels.size < LEAST * options.clients:
        raise DataError(
            f"{options.clients} clients need at least {LEAST * options.clients} samples, one to "
            f"train on and one held out each, but there are {labels.size}."
        )
