"""A run directory as a report reads it: what is damaged is left out and named, never fatal."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from flamma.clients.clock import ClockConfig
from flamma.errors import FlammaError, RunError
from flamma.experiments.folder import ABOUT, CLIENTS, CONFIG, FINITE, POPULATION, ROUNDS, RunFolder
from flamma.experiments.manifest import Manifest
from flamma.experiments.population import read_columns, read_names, whole
from flamma.experiments.scores import ScoreTable, read_score_table
from flamma.experiments.standstill import why_diverged
from flamma.experiments.stopped import StoppedEarly, read_stopped
from flamma.experiments.summary import is_personal, sample_of, score_kind_of
from flamma.metrics import METRICS, of_run
from flamma.options import from_table
from flamma.records import RoundRecord
from flamma.reports.confined import ConfinedRunFolder
from flamma.toml import parse_toml
from flamma.types import Ints, ScoreKind

MAX_CLIENTS = 10_000_000
"""A client number from here on is taken for damage."""

MAX_COUNT = 1 << 53
"""A number of epochs or bytes from here on is taken for damage."""


@dataclass(frozen=True, eq=False)
class PopulationTable:
    """What ``population.csv`` tells of the clients' data; empty if it cannot be read.

    ``class_counts`` has a row per client, without columns where the server does not know the
    classes; ``names`` are there for clients that have any.
    """

    samples: Ints
    class_counts: Ints
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RunView:
    """What could be read of a run directory.

    Attributes
    ----------
    path : Path
        The directory.
    config : dict
        The tables of ``config.toml``; empty if they cannot be read.
    config_text : str
        The file as it is written.
    rounds : list of RoundRecord
        The records that can be read, in order.
    about : dict
        ``run.json``.
    population : PopulationTable
        What is known of the clients.
    scores : ScoreTable
        The accuracies of single clients in the evaluated rounds.
    problems : list of str
        What is missing or damaged, one clause each.
    """

    path: Path
    config: dict[str, Any]
    config_text: str
    rounds: list[RoundRecord]
    about: dict[str, Any]
    population: PopulationTable
    scores: ScoreTable
    problems: list[str] = field(default_factory=list)

    @cached_property
    def clients(self) -> int:
        """How many clients there are: the most that any of the files tells."""
        told = self.table("data").get("clients")
        known = told if isinstance(told, int) and 0 < told <= MAX_CLIENTS else 0
        seen = [client for record in self.rounds for client in record.selected]
        scored = int(self.scores.clients.max(initial=-1)) + 1
        return max(known, self.population.samples.size, scored, max(seen, default=-1) + 1)

    @property
    def sample(self) -> int | None:
        """How many clients were drawn for the evaluations, None if all were evaluated."""
        return sample_of(self.rounds)

    @property
    def personal(self) -> bool:
        """Whether clients scored models of their own."""
        return is_personal(self.rounds)

    @property
    def score_kind(self) -> ScoreKind:
        """What clients are scored by."""
        return score_kind_of(self.rounds)

    @property
    def planned_rounds(self) -> int:
        """How many rounds the run is to have; those it has if the configuration is lost."""
        planned = self.config.get("rounds")
        return planned if isinstance(planned, int) and planned > 0 else len(self.rounds)

    @property
    def finished(self) -> bool:
        """Whether all rounds are there, up to that after which it was stopped, if it was."""
        last = self.planned_rounds if self.stopped is None else self.stopped.round
        return bool(self.rounds) and len(self.rounds) >= last

    @property
    def stopped(self) -> StoppedEarly | None:
        """After which round a callback ended the run, and why; None if none did."""
        return read_stopped(self.about)

    @cached_property
    def diverged(self) -> str:
        """In what the run has diverged, and the likely cause; empty if it has not."""
        rate = finite(self.table("training").get("learning_rate"))
        found = why_diverged(self.rounds, rate, self.about.get(FINITE) is not False)
        return found and f"the run diverged: {found}"

    @property
    def strategy(self) -> str:
        """The name of the strategy."""
        return str(self.table("strategy").get("name", "unknown strategy"))

    @property
    def numbers(self) -> list[int]:
        """The numbers of the rounds."""
        return [record.round for record in self.rounds]

    @property
    def command(self) -> str:
        """The command of the run as one types it, empty if it is not known."""
        told = self.about.get("command")
        if not isinstance(told, list) or not told:
            return ""
        program = Path(str(told[0])).name
        words = ["python", "-m", "flamma"] if program == "__main__.py" else [program]
        return shlex.join([*words, *map(str, told[1:])])

    def table(self, name: str) -> Mapping[str, Any]:
        """Return one table of the configuration, empty if there is none."""
        table = self.config.get(name, {})
        return table if isinstance(table, Mapping) else {}

    def client_label(self, client: int) -> str:
        """Return a client's number, with its name if it has one."""
        names = self.population.names
        return f"{client} {names[client]}" if client < len(names) else str(client)

    @property
    def targets(self) -> dict[str, float]:
        """What the times to accuracy and to fairness are measured to, by the names of metrics."""
        try:
            return ClockConfig(**from_table(ClockConfig, self.table("clock"), "clock.")).targets
        except FlammaError:
            return {}

    @property
    def times(self) -> list[float] | None:
        """The virtual time at the end of each round, None where one has none."""
        known = [finite(record.virtual_seconds) for record in self.rounds]
        found = [time for time in known if time is not None]
        return found if found and len(found) == len(known) else None

    def of_rounds(self, name: str) -> list[float | None]:
        """Return a metric of every round, None where it has none."""
        metric = METRICS[name]
        found = self._computed(name, lambda: [metric.of_round(name, r) for r in self.rounds])
        return [None] * len(self.rounds) if found is None else [finite(v) for v in found]

    def of_run(self, name: str) -> float | None:
        """Return a metric of the run, None where its rounds do not tell it."""
        return finite(
            self._computed(name, lambda: of_run(name, self.rounds, self.clients, self.targets))
        )

    def _computed(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what a metric computes; one that fails, such as another package's, is named."""
        try:
            return compute()
        except Exception as error:
            problem = f"the metric {name} failed ({error}) and is left out"
            if problem not in self.problems:
                self.problems.append(problem)
            return None


def read_run(path: Path) -> RunView:
    """Read what can be read of a run directory."""
    problems: list[str] = []
    folder = ConfinedRunFolder(path, problems)
    config, text = _read_config(folder, problems)
    rounds = _read_rounds(folder, problems)
    about = folder.read_json(ABOUT)
    if not about:
        problems.append(f"{ABOUT} is missing or damaged, so versions and command are not known")
    problems.extend(_changed_files(path))
    population = _read_population(folder, problems)
    scores = read_score_table(folder.text(CLIENTS), rounds, problems, MAX_CLIENTS)
    run = RunView(path, config, text, rounds, about, population, scores, problems)
    if not run.planned_rounds:
        problems.append("no round is finished yet")
    return run


def finite(value: object) -> float | None:
    """Return a finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _read_config(folder: RunFolder, problems: list[str]) -> tuple[dict[str, Any], str]:
    text = folder.text(CONFIG)
    try:
        if text:
            return parse_toml(text, CONFIG), text
        problems.append(f"{CONFIG} is missing, so the configuration is not known")
    except FlammaError as error:
        why = str(error).rstrip(".")
        problems.append(f"{CONFIG} is damaged ({why}), so the configuration is not known")
    return {}, text


def _read_rounds(folder: RunFolder, problems: list[str]) -> list[RoundRecord]:
    records, wrong = folder.read_rounds()
    problems.extend(wrong)
    usable = [record for record in records if _is_plausible(record)]
    for record in records:
        if not _is_plausible(record):
            problems.append(f"{ROUNDS}: the numbers of round {record.round} are out of range")
    return usable


def _is_plausible(record: RoundRecord) -> bool:
    """Return whether numbers are of a size that can be drawn: a record checks their types only."""
    counts = [*record.local_epochs, record.epochs_total, record.bytes_up, record.bytes_down]
    if record.survey is not None:
        counts += [record.survey.asked, record.survey.bytes_down]
    if record.warmup is not None:
        counts += [record.warmup.bytes_up, record.warmup.bytes_down]
    return max((*record.selected, *record.abstained), default=0) < MAX_CLIENTS and all(
        0 <= count < MAX_COUNT for count in counts
    )


def _read_population(folder: RunFolder, problems: list[str]) -> PopulationTable:
    found = _population(folder.text(POPULATION))
    if found is None:
        problems.append(f"{POPULATION} is missing or damaged, so the clients' data are not known")
        nothing = np.zeros(0, dtype=np.int64)
        return PopulationTable(nothing, nothing.reshape(0, 0))
    return found


@lru_cache(maxsize=1)  # a live page reads the same file again after every round
def _population(text: str) -> PopulationTable | None:
    try:
        columns = read_columns(text)
        samples, clients = whole(columns["samples"]), whole(columns["client"])
        classes = [whole(own) for name, own in columns.items() if name.startswith("class_")]
        if not clients.size or not np.array_equal(clients, np.arange(clients.size)):
            return None
    except (KeyError, ValueError):
        return None
    counts = np.array(classes, dtype=np.int64).reshape(len(classes), clients.size).T
    return PopulationTable(samples, counts, read_names(text))


def _changed_files(path: Path) -> list[str]:
    """Return which files are not as they were when the run began, one clause each."""
    try:
        manifest = Manifest.read(path)
        if manifest is not None:
            manifest.check(path)
    except RunError as error:
        return [str(error).partition(":")[0]]
    return []
