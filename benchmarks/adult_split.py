"""People with and without a doctorate, with Adult's own training and test set.

The runs of adult.toml, but nobody is held out of the training set: accuracy and loss of the last
round are those of both groups in the test set, 181 people with a doctorate and 16,100 without.

    flamma data fetch adult
    python benchmarks/adult_split.py
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import flamma
from flamma.data.datasets import load_dataset
from flamma.data.federated import FederatedData, from_arrays
from flamma.data.fetch import data_folder
from flamma.data.tables_bundled import FILE, GROUP_COLUMN
from flamma.io import csv_rows

STRATEGIES: tuple[dict[str, Any], ...] = (
    {"name": "fedavg"},
    {"name": "qffl", "q": 0.0},
    {"name": "qffl", "q": 1.0},
    {"name": "qffl", "q": 5.0},
    {"name": "afl", "step": 0.1},
    {"name": "term", "t": 5.0},
    {"name": "term", "t": 20.0},
)


def main() -> None:
    data = federation()
    print("strategy                      accuracy: doctorate, none   loss: doctorate, none")
    for strategy in STRATEGIES:
        tables = {
            "rounds": 500,
            "per_round": 2,
            "strategy": strategy,
            "model": "logistic",
            "training": {"epochs": 1, "batch_size": 32_768, "learning_rate": 0.5},
            "evaluation": {"every": 500},
        }
        with tempfile.TemporaryDirectory() as folder:
            done = flamma.run(tables, data=data, out=Path(folder) / "run")
            with (done.path / "clients.csv").open() as file:
                last = list(csv.DictReader(file))[-2:]
        cells = [float(row[column]) for column in ("accuracy", "loss") for row in last]
        print(f"{strategy!s:30s}{cells[0]:8.1f}{cells[1]:8.1f}{cells[2]:22.3f}{cells[3]:8.3f}")


def federation() -> FederatedData:
    """Return two clients with their parts of the training set, and of the test set to score."""
    adult = load_dataset("adult")
    _, names = next(csv_rows((data_folder() / "adult" / FILE.name).read_bytes(), FILE.name))
    place = names.index(GROUP_COLUMN)  # of the features too, for what they leave out comes last
    parts = []
    for stored, labels in ((adult.train_x, adult.train_y), (adult.test_x, adult.test_y)):
        own = [stored[:, place] == doctorate for doctorate in (1, 0)]
        parts.append([(adult.standardised(stored[rows]), labels[rows]) for rows in own])
    return from_arrays(*parts)


if __name__ == "__main__":
    main()
