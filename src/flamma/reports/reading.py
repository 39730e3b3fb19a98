"""A run directory as a report reads it: what is damaged is left out and named, never fatal."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from flamma.clients.time import ClockConfig
from flamma.errors import FlammaError, RunError
from flamma.experiments.comparison import Comparison, Row, compared, parse_table, scored_alike
from flamma.experiments.config import make_config
from flamma.experiments.folder import (
    ABOUT,
    CONFIG,
    FINITE,
    POPULATION,
    ROUNDS,
    SITES,
    Manifest,
    RunFolder,
    SiteStates,
)
from flamma.experiments.loop import StoppedEarly, read_stopped, why_diverged
from flamma.experiments.population import read_columns, read_names, whole
from flamma.experiments.result import (
    ScoreTable,
    is_personal,
    read_score_table,
    sample_of,
    score_kind_of,
)
from flamma.experiments.run import Run
from flamma.experiments.suite import SUITE, Cell, Suite, families_compared, read_suite
from flamma.io import MAX_FILE_BYTES, parse_toml
from flamma.metrics import LAST_ROUNDS, METRICS, of_run
from flamma.records import RoundRecord
from flamma.registry import from_table
from flamma.reports.document import Document, PageProgress
from flamma.strategies import competes
from flamma.types import Ints, ScoreKind

# A directory from outside, of which nothing is read that does not lie in it.


class ConfinedRunFolder(RunFolder):
    """A run directory of which only regular files inside it are read.

    Links that lead out of it are not followed. What is not read is added to ``problems``.
    """

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__(path)
        self.problems = problems

    def text(self, name: str) -> str:
        """Return the text of a file of the directory, empty if it is missing or not read."""
        file = self.path / name
        if not file.exists():
            return ""
        problem = ""
        if not _is_inside(file, self.path) or not file.is_file():
            problem = f"{name} is not a file of this directory and is not read"
        elif file.stat().st_size > MAX_FILE_BYTES:
            problem = f"{name} is larger than {MAX_FILE_BYTES >> 20} MB and is not read"
        if not problem:
            try:
                return super().text(name)
            except RunError as error:
                problem = str(error).rstrip(".")
        if problem not in self.problems:
            self.problems.append(problem)
        return ""


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path, its links followed, lies in a folder."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links in a circle
        return False


_MAX_CLIENTS = 10_000_000
"""A client number from here on is taken for damage."""

_MAX_COUNT = 1 << 53
"""A number of epochs or bytes from here on is taken for damage."""


@dataclass(frozen=True, eq=False)
class _PopulationTable:
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
    population: _PopulationTable
    scores: ScoreTable
    problems: list[str] = field(default_factory=list)

    @cached_property
    def clients(self) -> int:
        """How many clients there are: the most that any of the files tells."""
        told = self.table("data").get("clients")
        known = told if isinstance(told, int) and 0 < told <= _MAX_CLIENTS else 0
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
        known = [finite(record.cost.virtual_seconds) for record in self.rounds]
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
    problems.extend(folder.changed_tables("params_sha256" in about))
    population = _read_population(folder, problems)
    scores = read_score_table(folder, rounds, problems, _MAX_CLIENTS)
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
    outcome, cost = record.outcome, record.cost
    counts = [*outcome.local_epochs, outcome.epochs_total, cost.bytes_up, cost.bytes_down]
    if record.survey is not None:
        counts += [record.survey.asked, record.survey.bytes_down]
    if record.warmup is not None:
        counts += [record.warmup.bytes_up, record.warmup.bytes_down]
    return max((*record.selected, *outcome.abstained), default=0) < _MAX_CLIENTS and all(
        0 <= count < _MAX_COUNT for count in counts
    )


def _read_population(folder: RunFolder, problems: list[str]) -> _PopulationTable:
    found = _population(folder.text(POPULATION))
    if found is None:
        problems.append(f"{POPULATION} is missing or damaged, so the clients' data are not known")
        nothing = np.zeros(0, dtype=np.int64)
        return _PopulationTable(nothing, nothing.reshape(0, 0))
    return found


@lru_cache(maxsize=1)  # a live page reads the same file again after every round
def _population(text: str) -> _PopulationTable | None:
    try:
        columns = read_columns(text)
        samples, clients = whole(columns["samples"]), whole(columns["client"])
        classes = [whole(own) for name, own in columns.items() if name.startswith("class_")]
        if not clients.size or not np.array_equal(clients, np.arange(clients.size)):
            return None
    except (KeyError, ValueError):
        return None
    counts = np.array(classes, dtype=np.int64).reshape(len(classes), clients.size).T
    return _PopulationTable(samples, counts, read_names(text))


def _changed_files(path: Path) -> list[str]:
    """Return which files are not as they were when the run began, one clause each."""
    try:
        manifest = Manifest.read(path)
        if manifest is not None:
            manifest.check(path)
    except RunError as error:
        return [str(error).partition(":")[0]]
    return []


# How far a run or a comparison is that has not finished, and how long the rest will take.


def run_progress(run: RunView) -> PageProgress | None:
    """Return how far a run is; None if it is finished, or if its length is not known.

    The time left is told at the pace of the last rounds; of a run that waits for sites, what it
    waits for.
    """
    if run.finished or not run.planned_rounds:
        return None
    paces = [record.cost.seconds for record in run.rounds[-LAST_ROUNDS:]]
    left = run.planned_rounds - len(run.rounds)
    seconds = finite(left * sum(paces) / len(paces)) if any(paces) else None
    progress = _progress(len(run.rounds), run.planned_rounds, "rounds", seconds)
    states = SiteStates.parse(ConfinedRunFolder(run.path, []).text(SITES))
    if states is None or not states.waiting_since:
        return progress
    return replace(progress, text=f"{progress.text}; {states.sentence()}", seconds_left=None)


def comparison_progress(path: Path, runs: Iterable[RunView]) -> PageProgress | None:
    """Return how far the runs of a comparison are together; None if all are finished.

    Of a comparison that does not tell its suite, only the runs that have begun are known.
    """
    begun, suite = list(runs), _read_planned_suite(path)
    done = sum(min(len(run.rounds), run.planned_rounds) for run in begun)
    if suite is None:
        planned, unit = sum(run.planned_rounds for run in begun), "rounds of the runs that began"
    else:
        planned, unit = sum(cell.config.rounds for cell in suite.cells()), "rounds of all runs"
    return _progress(done, planned, unit) if done < planned else None


def _progress(done: int, of: int, what: str, seconds: float | None = None) -> PageProgress:
    return PageProgress(done, of, f"{done:,} of {of:,} {what} are finished", seconds)


def _read_planned_suite(path: Path) -> Suite | None:
    """Return what a comparison is to run, None if that is not there or cannot be used."""
    text = ConfinedRunFolder(path, []).text(SUITE)
    try:
        suite = read_suite(parse_toml(text, SUITE)) if text else None
        return suite if suite and suite.cells() else None
    except FlammaError:
        return None


@dataclass
class Pace:
    """Tells the time left from what was done since one began to look, as of runs side by side."""

    since: float | None = None
    before: int = 0

    def timed(self, document: Document) -> Document:
        """Return a document whose progress has a time left, if the pace is known by now."""
        progress = document.progress
        if progress is None or progress.seconds_left is not None:
            return document
        now = time.monotonic()
        if self.since is None or progress.done < self.before:
            self.since, self.before = now, progress.done
        made = progress.done - self.before
        if not made:
            return document
        left = (progress.of - progress.done) * (now - self.since) / made
        return replace(document, progress=replace(progress, seconds_left=left))


# A comparison's directory as a report reads it, finished or not.

TABLE, RUNS = "table.json", "runs"

_RowKey = tuple[str, str, str]
"""Dataset, split and strategy: what a row of the table is about."""


@dataclass(frozen=True, eq=False)
class ComparisonView:
    """What could be read of a comparison.

    Attributes
    ----------
    path : Path
        The directory.
    comparison : Comparison
        Its table.
    runs : dict
        The runs of every row, by seed.
    missing : list of str
        What is missing or damaged besides the runs' own problems, one clause each.
    """

    path: Path
    comparison: Comparison
    runs: dict[_RowKey, dict[int, RunView]]
    missing: list[str]

    @property
    def panels(self) -> list[tuple[str, str]]:
        """The pairs of dataset and split, in the order of the table."""
        return list(dict.fromkeys((row.dataset, row.split) for row in self.comparison.rows))

    @property
    def strategies(self) -> list[str]:
        """The strategies, in the order of the table, family by family."""
        return list(dict.fromkeys(row.strategy for row in self.by_family(self.comparison.rows)))

    @property
    def score_kind(self) -> ScoreKind:
        """What clients are scored by."""
        return scored_alike(self.comparison.rows)

    @property
    def problems(self) -> list[str]:
        """Everything that is missing or damaged, one clause each."""
        return [
            *(
                f"{' '.join(key)} seed-{seed}: {text}"
                for key, by_seed in self.runs.items()
                for seed, run in by_seed.items()
                for text in (run.diverged, *run.problems)
                if text
            ),
            *self.missing,
        ]

    @cached_property
    def families(self) -> dict[str, list[str]]:
        """The strategies by family, if there are many."""
        behind: dict[str, str] = {}
        for (_, _, strategy), by_seed in self.runs.items():
            named = next(iter(by_seed.values())).table("strategy").get("name")
            behind |= {strategy: named} if isinstance(named, str) else {}
        return families_compared(self.comparison, behind)

    def rows(self, dataset: str, split: str) -> list[Row]:
        """Return the rows of one panel, family by family."""
        rows = self.comparison.rows
        return self.by_family(row for row in rows if (row.dataset, row.split) == (dataset, split))

    def by_family(self, rows: Iterable[Row]) -> list[Row]:
        """Return rows family by family, if there are families; else as they are."""
        order = list(self.families)
        return sorted(rows, key=lambda r: order.index(self.family(r.strategy)) if order else 0)

    def family(self, strategy: str) -> str:
        """Return the family of a strategy, empty if there are none."""
        return next((f for f, members in self.families.items() if strategy in members), "")

    def longest_runs(self, dataset: str, split: str, strategy: str) -> list[RunView]:
        """Return the runs with the most rounds: all seeds of a row, or some if it is unfinished."""
        found = self.runs.get((dataset, split, strategy), {}).values()
        most = max((len(run.rounds) for run in found), default=0)
        return [run for run in found if most and len(run.rounds) == most]


def is_comparison(path: Path) -> bool:
    """Return whether a directory holds a comparison rather than a run."""
    return not (path / CONFIG).exists() and ((path / TABLE).exists() or (path / RUNS).is_dir())


def read_comparison(path: Path) -> ComparisonView:
    """Read what can be read of a comparison's directory."""
    missing: list[str] = []
    runs = read_runs(path, missing)
    table = _read_table(path, missing, planned=_read_planned_suite(path) is not None)
    comparison = table or _from_runs(path.name, runs, missing)
    lost = [row for row in comparison.rows if (row.dataset, row.split, row.strategy) not in runs]
    if lost:
        missing.append(f"the runs of {len(lost)} rows of the table are not there, only its numbers")
    return ComparisonView(path, comparison, runs, missing)


def read_runs(path: Path, missing: list[str]) -> dict[_RowKey, dict[int, RunView]]:
    """Return the runs of a comparison by row and seed; what is not read is added to ``missing``."""
    found: dict[_RowKey, dict[int, RunView]] = {}
    for file in sorted((path / RUNS).glob(f"*/*/*/seed-*/{CONFIG}")):
        dataset, split, strategy, folder = file.parent.relative_to(path / RUNS).parts
        seed = re.fullmatch(r"seed-([0-9]{1,18})", folder)
        if seed is None or not _is_inside(file.parent, path):
            why = "is not named by a seed" if seed is None else "lies elsewhere"
            missing.append(f"{dataset} {split} {strategy} {folder} {why} and is not read")
        else:
            found.setdefault((dataset, split, strategy), {})[int(seed[1])] = read_run(file.parent)
    return {key: dict(sorted(by_seed.items())) for key, by_seed in found.items()}


def pareto(rows: list[Row]) -> list[Row]:
    """Return the rows that no other beats in both accuracy and variance, the worst score first.

    A strategy that does not compete, such as the ceiling, is left out.
    """
    rows = [row for row in rows if competes(row.strategy)] or rows
    sign = -1 if scored_alike(rows).lower_is_better else 1

    def of(row: Row) -> tuple[float, float]:
        return sign * row.mean["accuracy"], row.mean["accuracy_variance"]

    def beaten(row: Row) -> bool:
        accuracy, variance = of(row)
        return any(
            of(other)[0] >= accuracy and of(other)[1] <= variance and of(other) != of(row)
            for other in rows
        )

    return sorted((row for row in rows if not beaten(row)), key=of)


def _read_table(path: Path, missing: list[str], planned: bool) -> Comparison | None:
    """Return the table as it was written, None if it is not there or damaged.

    Where the page can say how far a planned comparison is, a table that is yet to come is no loss.
    """
    text = ConfinedRunFolder(path, missing).text(TABLE)
    try:
        return parse_table(text)
    except ValueError:
        what = "is damaged" if text else "is not there yet"
        if text or not planned:
            how = "so the table is computed from the runs that are finished"
            missing.append(f"{TABLE} {what}, {how}")
    return None


def _from_runs(
    name: str, runs: Mapping[_RowKey, Mapping[int, RunView]], missing: list[str]
) -> Comparison:
    """Return the table of the runs that are finished."""
    cells = [
        cell
        for key, by_seed in runs.items()
        for seed, run in by_seed.items()
        if run.finished and (cell := _as_cell(key, seed, run)) is not None
    ]
    try:
        return compared(name, cells)
    except Exception as error:  # a metric may be another package's function
        missing.append(f"the table could not be computed: {error}")
        return Comparison(name, [], [])


def _as_cell(key: _RowKey, seed: int, run: RunView) -> tuple[Cell, Run] | None:
    """Return a run as a table takes it; None if its configuration is not that of its records."""
    try:
        config = make_config(run.config, needs_strategy=False)
    except FlammaError as error:
        run.problems.append(f"{CONFIG} cannot be used ({error}), so it is not in the table")
        return None
    if config.data.clients < run.clients:
        run.problems.append(f"it has more clients than {CONFIG} says, so it is not in the table")
        return None
    return Cell(*key, seed, config), Run(
        run.path, config, run.rounds, run.about, known_scores=run.scores
    )
