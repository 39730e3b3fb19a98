"""Builds a federation by name: loads a dataset, splits it over clients, holds samples out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flamma.data.datasets import DATASETS, load_dataset
from flamma.data.federated import DataDescription, FederatedData
from flamma.data.splits import (
    GROUPS_SPLIT,
    HELD_OUT,
    SPLITS,
    Pool,
    balanced_sample,
    check_enough,
    check_samples,
    partition,
    pool_size,
)
from flamma.errors import DataError
from flamma.processes import shared_zeros
from flamma.registry import Choice
from flamma.seeding import stream
from flamma.tasks import TASKS
from flamma.types import Ints

_GENERATED_SAMPLES_PER_CLIENT = 10
"""Training samples per client that a generated dataset makes by default."""

VALIDATION_SAMPLES = 200
"""The default size of the server's validation set."""


DEFAULT_SPLIT = Choice("shards")


def build_federation(
    dataset: str,
    split: str | Choice,
    clients: int,
    seed: int,
    *,
    train_samples: int | None = None,
    test_samples: int | None = None,
    validation_samples: int = VALIDATION_SAMPLES,
    held_out: float = HELD_OUT,
    data_dir: Path | None = None,
    task: str | None = None,
    **options: Any,
) -> FederatedData:
    """Return a dataset split over clients, each with a held-out part of the same distribution.

    1. The server's validation set, if any, is a random sample of the training set, balanced over
       the classes.
    2. The rest is used in full, or with ``train_samples`` a random, balanced sample of
       ``train_samples / (1 - held_out)``, so that about ``train_samples`` remain to train on
       after the held-out parts are cut off.
    3. The split deals these samples to the clients.
    4. Each client's samples are cut into a training and a held-out part, class by class, with
       at least one sample in each.

    The test set is that of the dataset, whatever the seed; with ``test_samples`` a fixed,
    balanced sample of it.

    Parameters
    ----------
    dataset : str
        A name, such as ``"mnist"``.
    split : str or Choice
        A name, such as ``"shards"``, whose options are ``options``; or a name with its options.
    clients : int
        How many clients there are.
    seed : int
        The seed of the samples and of the split.
    train_samples, test_samples, validation_samples : int
        How many samples of the dataset to use. A generated dataset makes as many as are needed:
        by default ten per client, and at least 10,000.
    held_out : float
        The share of each client's samples that is held out.
    data_dir : Path, optional
        The folder of all datasets, instead of ``FLAMMA_DATA`` or the user's cache.
    task : str, optional
        What is to be predicted, if the dataset has several tasks.
    **options
        Options of the split, such as ``alpha``; see :mod:`flamma.data.splits`.

    Raises
    ------
    DataError
        If the dataset is not on this machine, or cannot be split as asked.

    Examples
    --------
    >>> data = build_federation("digits", "shards", clients=10, seed=0, shards_per_client=1)
    >>> data.clients, data.shape, data.classes
    (10, (1, 28, 28), 10)
    >>> (data.class_counts() > 0).sum(axis=1).tolist()
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    named = split if isinstance(split, Choice) else {"name": split, **options}
    chosen = SPLITS.choose(named, "split")
    check_counts(train_samples, test_samples, validation_samples, held_out, seed)
    pool = None if train_samples is None else pool_size(train_samples, held_out)
    wanted = _wanted(dataset, clients, pool, validation_samples)
    source = load_dataset(dataset, data_dir, wanted, task)
    learnt = TASKS[source.task]
    # Where targets are no classes, all samples are of one, which a split by label refuses.
    labelled = learnt.labels_samples
    labels = source.train_y if labelled else np.zeros(len(source.train_y), dtype=np.int64)
    classes = source.classes if labelled else 1
    samples = Pool(labels, classes, clients, seed, source.groups, labelled)
    part = partition(samples, chosen, pool, validation_samples, held_out, dataset)
    natural = chosen.name == GROUPS_SPLIT and clients == len(source.group_names)
    test: Ints | slice = slice(None)
    if test_samples is not None:
        test_labels = source.test_y if labelled else np.zeros(len(source.test_y), np.int64)
        if test_samples > len(test_labels):
            raise DataError(f"{dataset} has {len(test_labels)} test samples, not {test_samples}.")
        drawn = balanced_sample(test_labels, classes, test_samples, stream(0, "test-subset"))
        test = np.sort(drawn)
    rows = np.concatenate((part.train, part.held, part.validation))
    cuts = np.cumsum((part.train.size, part.held.size))
    train_x, held_x, validation_x = np.split(source.training_samples(rows), cuts)
    given = np.asarray(source.train_y, dtype=learnt.target_type)
    targets = shared_zeros((rows.size, *given.shape[1:]), learnt.target_type)
    np.take(given, rows, axis=0, out=targets, mode="clip")  # "raise" would copy
    train_y, held_y, validation_y = np.split(targets, cuts)
    return FederatedData(
        train_x,
        train_y,
        part.train_offsets,
        held_x,
        held_y,
        part.held_offsets,
        source.standardised(source.test_x[test]),
        np.asarray(source.test_y[test], dtype=learnt.target_type),
        validation_x,
        validation_y,
        source.classes,
        DataDescription(
            dataset, client_names=source.group_names if natural else (), task=source.task
        ),
    )


def choose_split(
    table: Mapping[str, Any], keys: Collection[str], where: str = "data"
) -> tuple[Choice, dict[str, Any]]:
    """Return the split that a table chooses, and what it has for other ``keys``.

    The key ``split`` names the split, whose options are further keys of the table. Options of
    other splits have no effect, so that one table can serve several splits.

    Raises
    ------
    ConfigError
        If a key of the table is unknown (the nearest match is named), or a value is unusable.

    Examples
    --------
    >>> choose_split({"clients": 3, "split": "dirichlet", "alpha": 2}, ["clients"])
    (Choice(name='dirichlet', options={'alpha': 2.0}), {'clients': 3})
    """
    rest = {key: value for key, value in table.items() if key in keys}
    given = {"split": DEFAULT_SPLIT.name} | {k: v for k, v in table.items() if k not in keys}
    return SPLITS.choose(given, where, key="split", shared=True, beside=keys), rest


def _wanted(dataset: str, clients: int, pool: int | None, validation: int) -> int:
    entry = DATASETS[dataset]
    if not entry.generated:
        return entry.train
    usual = max(_GENERATED_SAMPLES_PER_CLIENT * clients, entry.train)
    return (usual if pool is None else pool) + validation


def check_sizes(
    dataset: str, split: str, clients: int, train: int | None, validation: int, held_out: float
) -> None:
    """Refuse more samples or clients than a dataset is said to have, without loading it.

    Raises
    ------
    DataError
        As :func:`build_federation` would.
    """
    pool = None if train is None else pool_size(train, held_out)
    there = _wanted(dataset, clients, pool, validation)
    check_samples(dataset, there, pool, validation, held_out)
    if split != GROUPS_SPLIT:  # which adds what small groups lack
        check_enough(clients, there - validation if pool is None else pool)


def check_counts(
    train: int | None, test: int | None, validation: int, held_out: float, seed: int
) -> None:
    """Refuse numbers of samples that no federation can have.

    Raises
    ------
    DataError
        If one is too small, or nothing would be held out or trained on.
    """
    for name, value in (("train_samples", train), ("test_samples", test)):
        if value is not None and value < 1:
            raise DataError(f"{name} must be at least 1, not {value}.")
    if validation < 0:
        raise DataError(f"validation_samples must be at least 0, not {validation}.")
    if not 0 < held_out < 1:
        raise DataError(f"held_out must lie between 0 and 1, not {held_out:g}.")
    if seed < 0:
        raise DataError(f"seed must be at least 0, not {seed}.")
