"""A run directory as a report reads it: what is damaged is left out and said, never fatal."""

from __future__ import annotations

import csv
import io
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flamma.errors import RunError
from flamma.experiments.folder import ABOUT, CLIENTS, CONFIG, POPULATION, ROUNDS, RunFolder
from flamma.types import Floats, Ints

MOST_BYTES = 1 << 30
"""A file larger than this would not fit a report."""

MOST_CLIENTS = 1_000_000
"""A client number beyond this is damage, not a client."""


class Inside(RunFolder):
    """A run directory that is read without leaving it: no link out of it, nothing but files."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__(path)
        self.problems = problems

    def text(self, name: str) -> str:
        """Return the text of a file of the directory, empty if it is missing or not inside."""
        file = self.path / name
        if not file.exists():
            return ""
        problem = ""
        if not is_inside(file, self.path) or not file.is_file():
            problem = f"{name} is not a file of this directory and is not read"
        elif file.stat().st_size > MOST_BYTES:
            problem = f"{name} is larger than {MOST_BYTES >> 20} MB and is not read"
        if problem:
            if problem not in self.problems:
                self.problems.append(problem)
            return ""
        try:
            return super().text(name)
        except RunError as error:
            self.problems.append(str(error).rstrip("."))
            return ""


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path, its links followed, lies in a folder."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links in a circle
        return False


@dataclass(frozen=True, eq=False)
class People:
    """Who the clients are, empty if that is not known.

    ``costs`` are NaN where only the client knows; ``holdings`` are samples of each class, without
    columns where the server does not know them; ``names`` are there for clients that have any.
    """

    costs: Floats
    samples: Ints
    holdings: Ints
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What could be read of a run directory.

    Attributes
    ----------
    path : Path
        The directory.
    config : dict
        The tables of ``config.toml``; empty if they cannot be read.
    config_text : str
        The file as it is written.
    rounds : list of dict
        The whole records, in order.
    about : dict
        ``run.json``.
    people : People
        Who the clients are.
    scores : dict of int to ndarray
        Per judged round the accuracy of every client, NaN where it has none.
    problems : list of str
        What is missing or damaged, one clause each.
    """

    path: Path
    config: dict[str, Any]
    config_text: str
    rounds: list[dict[str, Any]]
    about: dict[str, Any]
    people: People
    scores: dict[int, Floats]
    problems: list[str] = field(default_factory=list)

    @property
    def clients(self) -> int:
        """How many clients there are, as far as anything tells."""
        told = self.table("data").get("clients")
        known = int(told) if isinstance(told, int) and 0 < told <= MOST_CLIENTS else 0
        seen = [client for record in self.rounds for client in record["selected"]]
        scored = max((scores.size for scores in self.scores.values()), default=0)
        return max(known, self.people.costs.size, scored, max(seen, default=-1) + 1)

    @property
    def planned_rounds(self) -> int:
        """How many rounds the run is to have; those it has if nothing tells."""
        planned = self.config.get("rounds")
        return planned if isinstance(planned, int) and planned > 0 else len(self.rounds)

    @property
    def finished(self) -> bool:
        """Whether all rounds are there."""
        return bool(self.rounds) and len(self.rounds) >= self.planned_rounds

    @property
    def strategy(self) -> str:
        """The name of the strategy."""
        return str(self.table("strategy").get("name", "unknown strategy"))

    def table(self, name: str) -> Mapping[str, Any]:
        """Return one table of the configuration, empty if there is none."""
        table = self.config.get(name, {})
        return table if isinstance(table, Mapping) else {}

    def label(self, client: int) -> str:
        """Return what a client is called: its number, and its name if it has one."""
        names = self.people.names
        return f"{client} {names[client]}" if client < len(names) else str(client)

    def series(self, key: str) -> list[float | None]:
        """Return one number of every round, None where it has none."""
        return [number(record.get(key)) for record in self.rounds]

    @property
    def numbers(self) -> list[int]:
        """The numbers of the rounds."""
        return [record["round"] for record in self.rounds]


def read_run(path: Path) -> RunRecord:
    """Read what can be read of a run directory."""
    problems: list[str] = []
    folder = Inside(path, problems)
    config, text = _read_config(folder, problems)
    rounds = _read_rounds(folder, problems)
    about = folder.read_json(ABOUT)
    if not about:
        problems.append(f"{ABOUT} is missing or damaged, so versions and command are not known")
    people = _read_population(folder, problems)
    run = RunRecord(path, config, text, rounds, about, people, {}, problems)
    run.scores.update(_read_scores(folder, run, problems))
    if not rounds:
        problems.append("no round is finished yet")
    elif not run.finished:
        problems.append(f"{len(rounds)} of {run.planned_rounds} rounds are finished")
    return run


def number(value: object) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _read_config(folder: RunFolder, problems: list[str]) -> tuple[dict[str, Any], str]:
    text = folder.text(CONFIG)
    try:
        if text:
            return tomllib.loads(text), text
        problems.append(f"{CONFIG} is missing, so the configuration is not known")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{CONFIG} is damaged ({error}), so the configuration is not known")
    return {}, text


def _read_rounds(folder: RunFolder, problems: list[str]) -> list[dict[str, Any]]:
    found, wrong = folder.read_rounds()
    problems.extend(wrong)
    records = []
    for record in found:
        whole = _whole_record(record)
        if whole is None:
            problems.append(
                f"{ROUNDS} has a damaged record of round {record['round']}, so the rounds from "
                f"there on are left out"
            )
            break
        records.append(whole)
    return records


def _whole_record(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return a record whose lists fit together, or None."""
    selected: Any = record.get("selected")
    epochs = record.get("local_epochs")
    if not (_is_clients(selected) and isinstance(epochs, list) and len(epochs) == len(selected)):
        return None
    if any(number(value) is None for value in epochs) or number(record.get("decay_factor")) is None:
        return None
    failed, abstained = record.get("failed", {}), record.get("abstained", [])
    if not isinstance(failed, dict) or not _is_clients(abstained):
        return None
    whole = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
    for key in ("contributions", "client_utilities"):
        values: Any = record.get(key)
        fits = isinstance(values, list) and len(values) == len(selected)
        whole[key] = [number(value) for value in values] if fits and values else None
    for key in ("epochs_total", "bytes_up", "bytes_down", "seconds"):
        whole[key] = number(record.get(key)) or 0
    warmup = record.get("warmup")
    if warmup is not None:
        told = warmup if isinstance(warmup, dict) else {}
        keys = ("epochs", "bytes_up", "bytes_down", "seconds")
        whole["warmup"] = {key: number(told.get(key)) or 0 for key in keys}
    return whole | {"failed": {str(k): str(v) for k, v in failed.items()}, "abstained": abstained}


def _is_clients(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(client, int) and not isinstance(client, bool) and 0 <= client < MOST_CLIENTS
        for client in value
    )


def _read_population(folder: RunFolder, problems: list[str]) -> People:
    rows = list(csv.DictReader(io.StringIO(folder.text(POPULATION))))
    try:
        classes = [name for name in (rows[0] if rows else {}) if str(name).startswith("class_")]
        costs = np.array([float(row["cost"]) for row in rows])
        samples = np.array([int(row["samples"]) for row in rows], dtype=np.int64)
        holdings = np.array([[int(row[name]) for name in classes] for row in rows], dtype=np.int64)
        in_order = all(int(row["client"]) == k for k, row in enumerate(rows))
        if rows and in_order and np.all(np.isnan(costs) | (np.isfinite(costs) & (costs > 0))):
            names = tuple(str(row["name"]) for row in rows) if "name" in rows[0] else ()
            return People(costs, samples, holdings.reshape(len(rows), len(classes)), names)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    problems.append(
        f"{POPULATION} is missing or damaged, so the clients' costs and data are not known"
    )
    nothing = np.zeros(0, dtype=np.int64)
    return People(np.zeros(0), nothing, nothing.reshape(0, 0))


def _read_scores(folder: RunFolder, run: RunRecord, problems: list[str]) -> dict[int, Floats]:
    last = len(run.rounds)
    found: dict[int, dict[int, float]] = {}
    skipped = 0
    lines = folder.text(CLIENTS).splitlines()[1:]
    for line in lines:
        try:
            number_, client, accuracy, _ = line.split(",", 3)
            row = (int(number_), int(client), float(accuracy))
        except ValueError:
            skipped += 1
            continue
        if not (0 <= row[1] < MOST_CLIENTS) or not (math.isnan(row[2]) or 0 <= row[2] <= 100.001):
            skipped += 1
        elif 1 <= row[0] <= last:
            found.setdefault(row[0], {})[row[1]] = row[2]
    if skipped:
        problems.append(f"{CLIENTS} has {_count(skipped, 'line')} that cannot be read")
    if not lines and run.rounds:
        problems.append(f"{CLIENTS} is missing or empty, so single clients' accuracies are unknown")
    most = max((client for scores in found.values() for client in scores), default=-1) + 1
    table = {}
    for round_, scores in sorted(found.items()):
        values = np.full(most, np.nan)
        values[list(scores)] = list(scores.values())
        table[round_] = values
    return table


def _count(amount: int, word: str) -> str:
    return f"{amount} {word}{'' if amount == 1 else 's'}"


def even_sample(amount: int, most: int) -> Sequence[int]:
    """Return which of many things are shown: all, or an even sample."""
    return [int(k) for k in np.unique(np.linspace(0, amount - 1, min(amount, most)).astype(int))]
