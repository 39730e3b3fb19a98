"""From one's own data to a federation: classes numbered, clients dealt, samples held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flamma.data.cells import Label, shown_names
from flamma.data.federated import FederatedData
from flamma.data.own.adapters import gather
from flamma.data.own.gathered import GatheredSamples
from flamma.data.own.targets import class_numbers
from flamma.data.partition import HELD_OUT, partition, pool_size
from flamma.data.splits import MIN_SAMPLES, Pool
from flamma.errors import DataError
from flamma.registry import Choice
from flamma.tasks import DEFAULT_TASK, TASKS, Task
from flamma.types import Ints, Targets

BY_GROUPS = Choice("groups")
AT_RANDOM = Choice("iid", {"uneven": 0.0})
"""How samples are dealt that have no natural clients, if nothing else is asked for."""


def federated_from(
    data: Any,
    *,
    target: Any = None,
    group: Any = None,
    drop: Sequence[str] = (),
    test: Any = None,
    task: str | None = None,
    standardise: bool | None = None,
    clients: int | None = None,
    split: Choice | None = None,
    held_out: float = HELD_OUT,
    train_samples: int | None = None,
    validation_samples: int = 0,
    seed: int = 0,
) -> FederatedData:
    """Return a federation of one's own data, in whatever form they are.

    Parameters
    ----------
    data : any
        Arrays ``(x, y)``; a torch ``Dataset``; a pandas frame, a ``datasets.Dataset`` or a mapping
        of columns; a frame and its labels ``(frame, y)``; the path of a CSV or parquet file or of a
        folder of pictures; a partitioner of Flower's; or a list of these, or a mapping by name,
        with one for each client.
    target : str, optional
        The column to predict, of tables.
    group : str or array, optional
        The column that names the client of each sample, or one value for each sample.
    drop : sequence of str
        Columns of a table to leave out.
    test : any, optional
        The common test set in the same form; without it all held-out data together.
    task : {"classification", "regression", "next-token"}, optional
        What is learned; classification if not given.
    standardise : bool, optional
        Whether features are standardised by their mean and standard deviation over the training
        samples of all clients; if not given, tables and pictures are and arrays are not.
    clients : int, optional
        How many clients; as many as there are groups if not given.
    split : Choice, optional
        How samples are dealt to the clients: whole groups where there are groups, else at random.
    held_out : float
        The share of each client's samples that is held out.
    train_samples : int, optional
        Train on about so many samples in all; all of them if not given.
    validation_samples : int
        The size of the server's own validation set, cut off first.
    seed : int
        The seed of what is dealt and held out.

    Raises
    ------
    DataError
        With one sentence on what is wrong with the data and what to do.
    """
    if isinstance(data, FederatedData):
        return _as_it_is(data, target=target, group=group, test=test)
    kind = TASKS[task or DEFAULT_TASK]
    _check_share(held_out)
    own = gather(data, target=target, group=group, drop=drop)
    given_test = own.test if test is None else gather(test, target=target, drop=drop, like=own)
    y, labels, classes = _targets(own, given_test, kind)
    train_y, test_y = np.split(y, [len(own.x)])
    strata = train_y if kind.labels_samples else np.zeros(len(own.x), dtype=np.int64)
    pool = _pool(own, strata, classes if kind.labels_samples else 1, clients, seed)
    chosen = split or (AT_RANDOM if own.groups is None else BY_GROUPS)
    wanted = None if train_samples is None else pool_size(train_samples, held_out)
    part = partition(pool, chosen, wanted, validation_samples, held_out, own.name)
    own = _standardised(own, standardise, part.train)
    held_x, held_y = own.encoding.applied(own.x[part.held]), train_y[part.held]
    return FederatedData(
        own.encoding.applied(own.x[part.train]),
        train_y[part.train],
        part.train_offsets,
        held_x,
        held_y,
        part.held_offsets,
        held_x if given_test is None else own.encoding.applied(given_test.x),
        held_y if given_test is None else test_y,
        own.encoding.applied(own.x[part.validation]),
        train_y[part.validation],
        classes=classes,
        name=own.name,
        labels=labels,
        client_names=_names(own, pool, part.train, part.train_offsets),
        task=kind.name,
        encoding=own.encoding,
        sha256=own.sha256,
    )


def _as_it_is(data: FederatedData, **given: Any) -> FederatedData:
    for name, value in given.items():
        if value is not None:
            raise DataError(f"{name} has no effect on a federation that is made already.")
    return data


def _check_share(held_out: float) -> None:
    if not 0 < held_out < 1:
        raise DataError(f"held_out must lie between 0 and 1, not {held_out:g}.")


def _targets(
    own: GatheredSamples, test: GatheredSamples | None, task: Task
) -> tuple[Targets, tuple[Label, ...], int]:
    """Return the targets of samples and test samples, what classes are called, and how many."""
    parts = [own] if test is None else [own, test]
    if len({part.y.dtype.kind for part in parts}) > 1:
        raise DataError(f"targets of the test set are {parts[1].y.dtype}, others {own.y.dtype}.")
    both = np.concatenate([part.y for part in parts])
    if task.labels_samples:
        numbers, labels = class_numbers(both)
        return numbers, labels, len(labels)
    targets = task.targets(both, "targets")
    x = np.concatenate([part.x for part in parts]) if task.takes_tokens else own.x
    return targets, (), task.outputs(x, targets)


def _pool(own: GatheredSamples, strata: Ints, classes: int, clients: int | None, seed: int) -> Pool:
    """Return the samples to deal; every natural client must have enough of them."""
    if own.groups is None:
        if clients is None:
            raise DataError(
                "the data name no clients: give group=..., a list with one part for each client, "
                "or clients=... to deal the samples."
            )
        return Pool(strata, classes, clients, seed)
    sizes = np.bincount(own.groups)
    natural = int(sizes.size)
    if natural == 1 and clients in (None, 1):
        raise DataError(
            "all samples are of one client, but a federation needs at least two: leave group out "
            "and say how many clients to deal the samples to."
        )
    few = np.flatnonzero(sizes < MIN_SAMPLES)
    if few.size and clients in (None, natural):
        called = [own.client_names[k] if own.client_names else int(k) for k in few]
        raise DataError(
            f"every client needs {MIN_SAMPLES} samples, one to train on and one held out, but "
            f"these have fewer: {shown_names(called)}."
        )
    return Pool(strata, classes, clients or natural, seed, own.groups)


def _standardised(own: GatheredSamples, wanted: bool | None, train: Ints) -> GatheredSamples:
    usual = bool(own.encoding.columns) or own.encoding.scale != 1
    if not (usual if wanted is None else wanted):
        return own
    if own.encoding.dtype == "int64":
        own = replace(own, encoding=replace(own.encoding, dtype="float32"))
    return replace(own, encoding=own.encoding.fitted(own.x[train]))


def _names(own: GatheredSamples, pool: Pool, train: Ints, offsets: Ints) -> tuple[str, ...]:
    """Return what clients are called: by their group, or by the first of several groups."""
    if own.groups is None or not own.client_names:
        return ()
    names = []
    for client in range(pool.clients):
        groups = np.unique(own.groups[train[offsets[client] : offsets[client + 1]]])
        first = own.client_names[groups[0]]
        names.append(first if groups.size == 1 else f"{first} and {groups.size - 1} more")
    return tuple(names)
