"""The registry of datasets, and loading and fetching them by name.

Another package adds a dataset by an entry point of the group ``flamma.datasets`` that names a
:class:`~flamma.data.records.DatasetEntry`.
"""

from __future__ import annotations

from pathlib import Path

from flamma.data.adult import ADULT
from flamma.data.bible import BIBLE
from flamma.data.bundled import (
    SYNTHETIC_CLASSES,
    SYNTHETIC_FEATURES,
    SYNTHETIC_TEST_SAMPLES,
    load_digits,
    load_synthetic,
)
from flamma.data.catalogue import CIFAR10, DIGIT_NAMES, FASHION_MNIST, MNIST
from flamma.data.devices import SYNTHETIC_00, SYNTHETIC_11
from flamma.data.fetching import Delivery, Say, fetch
from flamma.data.flights import FLIGHTS
from flamma.data.insteval import INSTEVAL
from flamma.data.records import Dataset, DatasetEntry
from flamma.data.store import data_folder, looks_present, missing
from flamma.errors import DataError
from flamma.registry import Registry

DIGITS = DatasetEntry(
    about="handwritten digits, 8x8 enlarged to 28x28, inside scikit-learn",
    shape=(1, 28, 28),
    class_names=DIGIT_NAMES,
    train=1_442,
    test=355,
    load=load_digits,
)
SYNTHETIC = DatasetEntry(
    about="Gaussian clouds, as many samples as are asked for",
    shape=(SYNTHETIC_FEATURES,),
    class_names=tuple(f"class {label}" for label in range(SYNTHETIC_CLASSES)),
    train=10_000,
    test=SYNTHETIC_TEST_SAMPLES,
    load=load_synthetic,
    generated=True,
)

DATASETS: Registry[DatasetEntry] = Registry(
    "dataset",
    "flamma.datasets",
    {
        "digits": DIGITS,
        "mnist": MNIST,
        "fashion-mnist": FASHION_MNIST,
        "cifar10": CIFAR10,
        "adult": ADULT,
        "flights": FLIGHTS,
        "insteval": INSTEVAL,
        "bible": BIBLE,
        "synthetic": SYNTHETIC,
        "synthetic-00": SYNTHETIC_00,
        "synthetic-11": SYNTHETIC_11,
    },
)


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    samples: int | None = None,
    task: str | None = None,
) -> Dataset:
    """Return a dataset from this machine; nothing is downloaded here.

    Parameters
    ----------
    name : str
        One of :data:`DATASETS`.
    data_dir : Path, optional
        The folder of all datasets, instead of ``FLAMMA_DATA`` or the user's cache.
    samples : int, optional
        How many training samples a generated dataset makes; other datasets ignore it.
    task : str, optional
        What is to be predicted, if the dataset has several tasks.

    Raises
    ------
    DataError
        If there is no such dataset, or its files are missing or damaged.

    Examples
    --------
    >>> digits = load_dataset("digits")
    >>> digits.train_x.shape, digits.test_x.shape, digits.classes
    ((1442, 1, 28, 28), (355, 1, 28, 28), 10)
    """
    entry = DATASETS[name].for_task(task)
    return entry.load(data_folder(data_dir) / name, entry.train if samples is None else samples)


def check_fetched(name: str, data_dir: Path | None = None) -> None:
    """Refuse a dataset whose files are not on this machine, without reading any.

    Raises
    ------
    DataError
        With the command that fetches it.
    """
    folder = data_folder(data_dir) / name
    if not all((folder / file.name).exists() for file in DATASETS[name].files):
        raise DataError(missing(name, folder))


def fetch_dataset(
    name: str,
    data_dir: Path | None = None,
    from_folder: Path | None = None,
    say: Say = lambda _: None,
) -> list[Delivery]:
    """Fetch a dataset to this machine, from a folder or from its sources in order.

    Returns what came from each source; the list is empty if all files were there already.
    """
    entry = DATASETS[name]
    if not entry.files:
        raise DataError(f"{name} needs no download: it can be used as it is.")
    return fetch(name, entry, data_folder(data_dir) / name, from_folder, say)


def availability(name: str, data_dir: Path | None = None) -> str:
    """Return ``built in``, ``here`` or ``not fetched``, without reading files."""
    entry = DATASETS[name]
    if not entry.files:
        return "built in"
    here = looks_present(data_folder(data_dir) / name, entry.files)
    return "here" if here else "not fetched"
