"""The metrics of runs that are compared: their own, and those that depend on the other runs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

import flamma
from flamma.errors import InputFileError, RunError, naming_settings
from flamma.experiments.folder import RunFolder, signed, verified
from flamma.experiments.jobs import OnProgress, Progress, RunJob, check_processes, do_jobs
from flamma.experiments.progress_bar import ProgressBar, wants_bar
from flamma.experiments.result import (
    PresentedResult,
    Run,
    ScratchFolder,
    Summary,
    at_budget,
    output_directory,
    sample_text,
    score_kind_of,
    sparkline,
    text_table,
)
from flamma.experiments.run import check_runnable
from flamma.experiments.settings import keyword_of
from flamma.experiments.statistics import (
    CONFIDENCE,
    RANKED_METRICS,
    REFERENCE,
    AcrossSettings,
    AgainstReference,
    across_settings,
    best_of,
    explain_marks,
)
from flamma.experiments.suite import (
    SUITE,
    Cell,
    Suite,
    asked_suite,
    families_compared,
    family_name,
    read_suite,
    suite_names,
)
from flamma.experiments.user_objects import NO_OBJECTS, Asked, UserObjects, names_given
from flamma.io import JsonTable, TableView, parse_toml, read_text, write_atomically
from flamma.metrics import (
    LAST_ROUNDS,
    METRICS,
    BesideLocalMetric,
    ComparedMetric,
    EqualWorkMetric,
    Metric,
    Place,
    TimeToMetric,
    finite_or_none,
    last_rounds,
    shown_in,
)
from flamma.numerics import total, totals
from flamma.strategies import RETIRED, competes, label_of
from flamma.strategies.personal import Local
from flamma.types import ACCURACY_SCORE, Floats, Ints, NamesItsScore, ScoreKind

_CellRuns = Sequence[tuple[Cell, Run]]
"""Finished runs, and what each is of."""


def _compared_metrics(
    runs: _CellRuns, summaries: Sequence[Summary], names: Sequence[str]
) -> list[dict[str, float | None]]:
    """Return these metrics of every run, None where a run does not have one.

    Metrics of equal work are taken when a run has spent as many local epochs as the run of the
    same dataset and split that spent the fewest in all, the ceiling left out. Metrics beside
    training alone are taken where a run of ``local`` has the same dataset, split and seed.
    """
    budgets = _fewest_epochs(runs, summaries)
    # The clients' accuracies when each trains alone, by dataset, split and seed.
    alone: dict[tuple[str, str, int], tuple[Ints, Floats]] = {}
    for cell, run in runs:
        if _is_alone(cell) and _place(cell) not in alone:
            alone[_place(cell)] = last_accuracies(run)
    found = []
    for (cell, run), summary in zip(runs, summaries, strict=True):
        values: dict[str, float | None] = {}
        for name in names:
            metric = METRICS[name]
            if isinstance(metric, EqualWorkMetric):
                budget = budgets.get((cell.dataset, cell.split), math.inf)
                values[name] = at_budget(run.history, budget, metric.of)
            elif isinstance(metric, BesideLocalMetric):
                values[name] = _beside(metric, alone.get(_place(cell)), cell, run)
            else:
                values[name] = summary[name]
        found.append(values)
    return found


def _fewest_epochs(runs: _CellRuns, summaries: Sequence[Summary]) -> dict[tuple[str, str], float]:
    """Return the epochs of the thriftiest run of every dataset and split."""
    budgets: dict[tuple[str, str], float] = {}
    for (cell, _), summary in zip(runs, summaries, strict=True):
        where, spent = (cell.dataset, cell.split), summary["epochs_total"]
        if competes(cell.strategy) and spent is not None:
            budgets[where] = min(spent, budgets.get(where, spent))
    return budgets


def _place(cell: Cell) -> tuple[str, str, int]:
    return cell.dataset, cell.split, cell.seed


def _is_alone(cell: Cell) -> bool:
    """Return whether every client trains alone, under whatever name in the suite."""
    return isinstance(cell.config.strategy, Local)


def _beside(
    metric: BesideLocalMetric, alone: tuple[Ints, Floats] | None, cell: Cell, run: Run
) -> float | None:
    """Return a metric of the clients whose accuracies are known of both runs."""
    if alone is None or _is_alone(cell):
        return None
    clients, together = last_accuracies(run)
    _, own, other = np.intersect1d(alone[0], clients, assume_unique=True, return_indices=True)
    sign = -1 if score_kind_of(run.history).lower_is_better else 1
    return finite_or_none(metric.compare(sign * alone[1][own], sign * together[other]))


def last_accuracies(run: Run) -> tuple[Ints, Floats]:
    """Return the clients with scores, and each one's mean accuracy over the last ten rounds.

    Of these rounds those count that were evaluated; a client without any score in them has NaN.
    """
    scores, last = run.scores, run.history[-LAST_ROUNDS:]
    rows = [scores.rounds[record.round] for record in last if record.round in scores.rounds]
    if not rows:
        return scores.clients, np.full(scores.clients.size, np.nan)
    accuracies = np.stack(rows, axis=1)
    known = ~np.isnan(accuracies)
    counts = np.count_nonzero(known, axis=1)
    sums = totals(np.where(known, accuracies, 0.0))
    return scores.clients, np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


# The table of a comparison: the paper's Table I, as data.

TABLE_VERSION = 2
"""Of ``table.json``: the first one had no version, no hashes and no suite."""


@dataclass(frozen=True)
class Row(NamesItsScore):
    """One strategy on one dataset and split; every metric by name, as mean and spread over seeds.

    Of a suite of settings, ``dataset`` is the name of the setting.
    ``values`` has the metrics of the runs in the order of ``seeds``, and ``weights_sha256`` the
    SHA-256 of their final weights as little-endian float32; empty where it is not known.
    ``rounds_averaged`` is how many evaluated rounds went into the means of each run; tables of
    FLamma 0.2 have none.
    ``sample`` is how many clients were drawn for the evaluations, and of how many; None if all were
    evaluated. ``personal`` is whether they scored models of their own, ``scored_by`` what they are
    scored by, empty for accuracy, and ``less_is_better`` whether less of that is better.
    """

    dataset: str
    split: str
    strategy: str
    seeds: tuple[int, ...]
    mean: dict[str, float]
    std: dict[str, float]
    values: dict[str, list[float]]
    weights_sha256: tuple[str, ...] = ()
    sample: tuple[int, int] | None = None
    personal: bool = False
    scored_by: str = ""
    less_is_better: bool = False
    rounds_averaged: tuple[int, ...] = ()

    def texts(self, name: str, digits: int = 2) -> tuple[str, str]:
        """Return mean and spread of a metric, to more digits where scores are not in percent."""
        in_percent = METRICS[name].unit == METRICS[name].scored_by(self.score_kind).unit
        digits = digits if in_percent else digits + 2
        return f"{self.mean[name]:.{digits}f}", f"{self.std[name]:.{digits}f}"


@dataclass(frozen=True, repr=False)
class Comparison(PresentedResult):
    """All rows of a comparison, the runs they come from, and those that failed, with the reason.

    ``suite`` is what was compared, as TOML, ``trainers`` what trained, and ``flamma`` the version
    that made it; they are empty where a table does not tell. ``path`` is its directory where it is
    known, and ``scratch`` keeps that for as long as the comparison if it is to be nowhere else.
    """

    name: str
    rows: list[Row]
    folders: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    suite: str = ""
    trainers: tuple[str, ...] = ()
    flamma: str = ""
    path: Path | None = field(default=None, compare=False)
    scratch: ScratchFolder | None = field(default=None, compare=False)

    def as_json(self) -> JsonTable:
        """Return the comparison as ``table.json`` has it, wherever it is."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        return own | {"rows": [asdict(row) for row in self.rows]}

    @cached_property
    def runs(self) -> dict[tuple[str, str, str], dict[int, Run]]:
        """The runs by dataset, split and strategy, then by seed; none if they are not there."""
        found: dict[tuple[str, str, str], dict[int, Run]] = {}
        for folder in self.folders:
            if self.path is None:
                break
            dataset, split, strategy, _ = Path(folder).parts[-4:]
            with suppress(RunError):
                run = replace(Run.load(self.path / folder), scratch=self.scratch)
                found.setdefault((dataset, split, strategy), {})[run.config.seed] = run
        return found

    @property
    def history(self) -> list[JsonTable]:
        """Every round of every run: its metrics, and which run it is of."""
        return [
            {"dataset": place[0], "split": place[1], "strategy": place[2], "seed": seed, **row}
            for place, by_seed in self.runs.items()
            for seed, run in by_seed.items()
            for row in run.rows()
        ]

    def row(self, dataset: str, split: str, strategy: str) -> Row:
        """Return one row."""
        for row in self.rows:
            if (row.dataset, row.split, row.strategy) == (dataset, split, strategy):
                return row
        raise KeyError((dataset, split, strategy))

    def contenders(self, dataset: str, split: str) -> list[Row]:
        """Return the rows that are compared: all but the ceiling, unless it stands alone."""
        rows = [r for r in self.rows if (r.dataset, r.split) == (dataset, split)]
        return [r for r in rows if competes(r.strategy)] or rows

    def best(self, dataset: str, split: str, metric: str) -> tuple[str, ...]:
        """Return the leading strategy, and after it those not significantly different from it.

        Nothing is returned with too few seeds to test: see :mod:`flamma.experiments.statistics`.
        """
        rows = [r for r in self.contenders(dataset, split) if metric in r.values]
        values = {r.strategy: dict(zip(r.seeds, r.values[metric], strict=True)) for r in rows}
        better = METRICS[metric].scored_by(scored_alike(rows)).better
        return () if better == "neither" else best_of(values, 1 if better == "higher" else -1)

    def across_settings(self, metric: str, reference: str = REFERENCE) -> AcrossSettings | None:
        """Return ranks and tests over all settings; None where there are too few of them."""
        return across_settings(self.rows, metric, reference)

    def mark(self, row: Row, metric: str) -> str:
        """Return ``best`` for a single best row, ``tied`` for those that share the lead, or ""."""
        best = self.best(row.dataset, row.split, metric)
        return "" if row.strategy not in best else "best" if len(best) == 1 else "tied"

    def evaluation_notes(self, dataset: str | None = None) -> list[str]:
        """Return a sentence for whatever is not of all clients, or not of the global model."""
        rows = [row for row in self.rows if dataset in (None, row.dataset)]
        found = {
            (row.dataset, row.split, sample_text(*row.sample)): None
            for row in rows
            if row.sample is not None
        }
        own = list(dict.fromkeys(label_of(row.strategy) for row in rows if row.personal))
        names = " and ".join([", ".join(own[:-1]), own[-1]] if len(own) > 1 else own)
        return [
            *(f"Accuracies of {name} ({split}) are over {text}." for name, split, text in found),
            *([f"Accuracies of {names} are of the clients' own models."] if own else []),
        ]

    def __repr__(self) -> str:

        return as_text(self)

    def _headline(self) -> str:
        strategies, seeds = ({getattr(r, k) for r in self.rows} for k in ("strategy", "seeds"))
        places = dict.fromkeys(f"{row.dataset} ({row.split})" for row in self.rows)
        most = max((len(own) for own in seeds), default=0)
        what = f"{len(strategies)} strategies on {', '.join(places)}, {most} seeds"
        return what + (f", {len(self.failed)} runs failed" if self.failed else "")

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:

        found = []
        for caption, header, lines in layout(self, _STARS):
            dataset = caption.partition(",")[0]
            splits = dict.fromkeys(row.split for row in self.rows if row.dataset == dataset)
            curves = {
                label_of(name): [self._curve(dataset, split, name) for split in splits]
                for name in dict.fromkeys(row.strategy for row in self.rows)
            }
            told = [[*line, *curves.get(line[0], [])] for line in lines]
            found.append((caption, [*header, *(f"rounds ({split})" for split in splits)], told))
        return found

    def _curve(self, dataset: str, split: str, strategy: str) -> str:
        """Return the first metric of the curves, mean over seeds, as a sparkline."""
        runs = list(self.runs.get((dataset, split, strategy), {}).values())
        for name in shown_in("curves"):
            values = [run.of_rounds(name) for run in runs]
            means = [
                None if None in own else total([v for v in own if v is not None]) / len(own)
                for own in zip(*values, strict=False)
            ]
            if drawn := sparkline(means):
                return drawn
        return ""

    def _records(self) -> list[JsonTable]:
        """Return one row for each run, with its metrics."""
        return [
            {
                "dataset": row.dataset,
                "split": row.split,
                "strategy": row.strategy,
                "seed": seed,
                **{name: values[place] for name, values in row.values.items()},
            }
            for row in self.rows
            for place, seed in enumerate(row.seeds)
        ]


def compared(
    name: str,
    runs: _CellRuns,
    failed: Mapping[str, str] | None = None,
    suite: str = "",
) -> Comparison:
    """Return the comparison of finished runs."""
    summaries = [run.summary() for _, run in runs]
    metrics = _compared_metrics(runs, summaries, shown_metrics())
    groups: dict[tuple[str, str, str], dict[int, dict[str, float | None]]] = {}
    hashes: dict[tuple[str, str, str], list[str]] = {}
    samples: dict[tuple[str, str, str], tuple[int, int]] = {}
    personal: set[tuple[str, str, str]] = set()
    averaged: dict[tuple[str, str, str], list[int]] = {}
    kinds: dict[tuple[str, str, str], ScoreKind] = {}
    for (cell, run), summary, found in zip(runs, summaries, metrics, strict=True):
        place = (cell.dataset, cell.split, cell.strategy)
        groups.setdefault(place, {})[cell.seed] = found
        hashes.setdefault(place, []).append(run.params_sha256 or "")
        averaged.setdefault(place, []).append(summary.rounds_averaged)
        if summary.sample is not None:
            samples[place] = (summary.sample, summary.clients)
        if summary.personal:
            personal.add(place)
        kinds[place] = summary.score_kind
    trainers = {str(run.about["trainer"]) for _, run in runs if "trainer" in run.about}
    return Comparison(
        name,
        [
            replace(
                _row(place, by_seed, hashes[place], samples.get(place)),
                personal=place in personal,
                scored_by=kinds[place].title,
                less_is_better=kinds[place].lower_is_better,
                rounds_averaged=tuple(averaged[place]),
            )
            for place, by_seed in groups.items()
        ],
        [str(cell.folder) for cell, _ in runs],
        dict(failed or {}),
        suite,
        tuple(sorted(trainers)),
        flamma.__version__,
    )


def with_spread(row: Row, mean: str, spread: str) -> str:
    """Return a mean over the seeds of a row with its spread, which a single seed has not."""
    return mean if len(row.seeds) < 2 else f"{mean} ± {spread}"


def told_by(rows: Sequence[Row], place: Place) -> dict[str, Metric]:
    """Return the metrics of a place; those that few comparisons have only where a row has one."""
    return {
        name: metric
        for name, metric in shown_in(place, scored_alike(rows)).items()
        if not isinstance(metric, BesideLocalMetric | TimeToMetric)
        or any(name in row.mean for row in rows)
    }


def scored_alike(rows: Iterable[Row]) -> ScoreKind:
    """Return what the clients of all rows are scored by: just a score if they differ."""
    found = {row.score_kind for row in rows} or {ACCURACY_SCORE}
    return found.pop() if len(found) == 1 else ScoreKind("score")


def shown_metrics() -> list[str]:
    """Return the metrics of a row: what is shown in its files, in tables or on a page."""
    wanted = [*shown_in("csv"), *shown_in("table"), *shown_in("page")]
    return [name for name in METRICS if name in wanted]


def _row(
    place: tuple[str, str, str],
    by_seed: dict[int, dict[str, float | None]],
    hashes: Sequence[str],
    sample: tuple[int, int] | None,
) -> Row:
    """Return a row; a metric that a run does not have, such as that of a game, is left out."""
    values = {}
    for metric in shown_metrics():
        found = [own[metric] for own in by_seed.values()]
        known = [value for value in found if value is not None]
        if len(known) == len(found):
            values[metric] = known
    return Row(
        *place,
        tuple(by_seed),
        {metric: total(found) / len(found) for metric, found in values.items()},
        {metric: _deviation(found) for metric, found in values.items()},
        values,
        tuple(hashes),
        sample,
    )


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample, 0 of a single value."""
    if len(values) < 2:
        return 0.0
    offsets = np.asarray(values) - total(values) / len(values)
    return math.sqrt(total(np.square(offsets)) / (len(values) - 1))


def capitalised(text: str) -> str:
    """Return a text with its first letter large."""
    return text[:1].upper() + text[1:]


# Statistics over settings as text: for terminals and as Markdown.

_SMALLEST_P = 0.001


def statistics_of(rows: Sequence[Row]) -> list[AcrossSettings]:
    """Return the statistics of the metrics that are ranked, none where settings are too few."""
    found = (across_settings(rows, metric) for metric in RANKED_METRICS)
    return [own for own in found if own is not None]


def statistics_table(found: AcrossSettings) -> tuple[str, list[str], list[list[str]]]:
    """Return a caption, a header and a line for each strategy, the best mean rank first."""
    metric = METRICS[found.metric]
    which = "higher is better" if metric.better == "higher" else "lower is better"
    caption = f"{metric.label} over {len(found.settings)} settings ({which})"
    against = {own.strategy: own for own in found.against}
    header = ["Algorithm", "Mean rank"]
    if against:
        reference = label_of(found.reference)
        interval = f"{CONFIDENCE:.0%} interval"
        header += [f"Won-tied-lost against {reference}", "Difference", interval]
        header += ["p (sign)", "p (Wilcoxon)", "p (Holm)"]
    lines = []
    for name, rank in found.ranks.items():
        cells = _cells(against[name]) if name in against else ["-"] * (len(header) - 2)
        lines.append([label_of(name), f"{rank:.2f}", *cells])
    return caption, header, lines


def statistics_note(found: Sequence[AcrossSettings]) -> str:
    """Return what the numbers are, and what the tests of all strategies together say."""
    told = []
    for own in found:
        label = METRICS[own.metric].label
        told.append(
            f"{label}: Friedman's test p {_p_text(own.friedman_p)}, mean ranks that differ by less "
            f"than {own.critical_difference:.2f} are not significantly different (Nemenyi)"
        )
    left_out = dict.fromkeys(label_of(name) for own in found for name in own.left_out)
    missing = f" Not in every setting, and left out: {', '.join(left_out)}." if left_out else ""
    return (
        "Mean ranks are over settings. Won and lost: clear by differences paired over seeds. "
        "Difference: the mean over settings of paired differences, with a bootstrap interval over "
        f"settings and seeds. {'; '.join(told)}.{missing}"
    )


def _p_text(p: float) -> str:
    """Return a p-value, not more exactly than it is worth.

    Examples
    --------
    >>> _p_text(0.0421), _p_text(0.00002)
    ('0.042', '<0.001')
    """
    return f"<{_SMALLEST_P:g}" if p < _SMALLEST_P else f"{p:.3f}"


def _cells(own: AgainstReference) -> list[str]:
    return [
        f"{own.wins}-{own.ties}-{own.losses}",
        f"{own.difference:+.2f}",
        f"{own.low:+.2f} to {own.high:+.2f}",
        _p_text(own.sign_p),
        _p_text(own.wilcoxon_p),
        _p_text(own.holm_p),
    ]


# The table of a comparison as text: for terminals, as Markdown, CSV and JSON.

_SHORT_HASH_DIGITS = 12

_Marks = tuple[tuple[str, str], tuple[str, str]]
"""What stands before and after the best value, and before and after values as good as the best."""


_STARS: _Marks = (("", "*"), ("", "*"))
"""The marks of plain text."""

_LONGEST_LINE = 100
"""Characters of a line of notes in plain text."""

ONE_SEED = "With a single seed no difference can be tested, so nothing is marked."
"""What stands in place of how the best is found."""

SPENT = (
    ("epochs_total", "Local epochs", 1.0),
    ("bytes_up", "MB up", 1e6),
    ("bytes_down", "MB down", 1e6),
    ("seconds", "Seconds", 1.0),
)
"""What a strategy's runs took: metrics, each with the title of its column and its unit."""


def write_tables(comparison: Comparison, folder: Path) -> None:
    """Write table.json, table.csv and table.md."""
    found = [own.as_json() for own in statistics_of(comparison.rows)]
    across = {"across_settings": found} if found else {}
    texts = {
        "table.json": signed({"version": TABLE_VERSION, **comparison.as_json(), **across}),
        "table.csv": _as_csv(comparison),
        "table.md": as_markdown(comparison) + _hashes(comparison),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())


def layout(comparison: Comparison, marks: _Marks) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return the paper's layout: per dataset a header and one line of cells per strategy.

    A metric is the mean over seeds ± the standard deviation, which a single seed has not, with the
    marks of the best. Of many
    strategies more columns are told, and before each family stands a line with its name alone.
    """
    families = families_compared(comparison)
    spent = SPENT if families else SPENT[:1]
    tables = []
    for dataset in dict.fromkeys(row.dataset for row in comparison.rows):
        rows = [row for row in comparison.rows if row.dataset == dataset]
        shown = metrics_in_lines(rows, bool(families))
        splits = list(dict.fromkeys(row.split for row in rows))
        alone = bool(families) and len(splits) == 1
        header = ["Algorithm", *column_titles(shown, splits, alone)]
        header += [title for _, title, _ in spent]
        lines: dict[str, list[str]] = {}
        for strategy in dict.fromkeys(row.strategy for row in rows):
            own = [row for row in rows if row.strategy == strategy]
            by_split = {row.split: row for row in own}
            cells = [
                _cell(comparison, by_split.get(split), metric, marks)
                for split in splits
                for metric in shown
            ]
            took = [spent_text(own, metric, unit) for metric, _, unit in spent]
            lines[strategy] = [label_of(strategy), *cells, *took]
        caption = f"{dataset}, {splits[0]}" if alone else dataset
        tables.append((caption, header, _under_families(lines, families)))
    return tables


def column_titles(metrics: Mapping[str, Metric], splits: Sequence[str], alone: bool) -> list[str]:
    """Return the titles of the metrics of every split, which need not be told of one alone."""
    return [
        capitalised(metric.label) if alone else f"{capitalised(metric.label)} ({split})"
        for split in splits
        for metric in metrics.values()
    ]


def metrics_in_lines(rows: Sequence[Row], many: bool) -> dict[str, Metric]:
    """Return the metrics of a strategy's line for each split; the worst tenth too if many."""
    shown = told_by(rows, "table")
    wanted = {*shown, "worst_10"} if many else {*shown}
    kind = scored_alike(rows)
    return {name: METRICS[name].scored_by(kind) for name in METRICS if name in wanted}


def spent_text(rows: Sequence[Row], metric: str, unit: float) -> str:
    """Return what the runs of a strategy took, mean over its rows, in a unit of so many."""
    known = [row.mean[metric] / unit for row in rows if metric in row.mean]
    if not known:
        return "-"
    mean = sum(known) / len(known)
    if unit == 1 and (mean >= 10 or mean.is_integer()):
        return f"{mean:.0f}"
    return f"{mean:.1f}" if mean >= 1 else f"{mean:.2g}"


def _under_families(
    lines: Mapping[str, list[str]], families: Mapping[str, Sequence[str]]
) -> list[list[str]]:
    """Return the lines of strategies, each family under a line of one cell with its name."""
    if not families:
        return list(lines.values())
    found = []
    for family, members in families.items():
        own = [lines[name] for name in members if name in lines]
        found += [[family_name(family)], *own] if own else []
    return found


def _cell(comparison: Comparison, row: Row | None, metric: str, marks: _Marks) -> str:
    if row is None or metric not in row.mean:
        return "-"
    text = with_spread(row, *row.texts(metric))
    mark = comparison.mark(row, metric)
    before, after = ("", "") if not mark else marks[0] if mark == "best" else marks[1]
    return f"{before}{text}{after}"


def as_markdown(comparison: Comparison) -> str:
    """Return the tables as Markdown."""
    tables = layout(comparison, (("**", "**"), ("*", "*")))
    parts = [_markdown_table(*table) for table in tables]
    if found := statistics_of(comparison.rows):
        parts += [_markdown_table(*statistics_table(own)) for own in found]
        parts.append(statistics_note(found))
    marks = _mark_notes(comparison, "Bold", "Italics")
    notes = " ".join([legend(comparison.rows), *marks, *comparison.evaluation_notes()])
    return "\n\n".join([*parts, notes]) + "\n"


def as_text(comparison: Comparison, origins: Sequence[str] = ()) -> str:
    """Return the tables as plain text, and under them what their numbers and marks mean.

    ``origins`` are further notes: where the settings of the runs come from.
    """
    parts = []
    for caption, header, lines in layout(comparison, _STARS):
        # Cells have a space where others of their column have a star.
        starred = {k for line in lines for k, cell in enumerate(line) if cell.endswith("*")}
        aligned = [
            [cell + " " * (k in starred and not cell.endswith("*")) for k, cell in enumerate(line)]
            for line in lines
        ]
        parts.append(f"{caption}\n{text_table(header, aligned)}")
    found = statistics_of(comparison.rows)
    for caption, header, lines in map(statistics_table, found):
        parts.append(f"{caption}\n{text_table(header, lines)}")
    notes = [
        *([statistics_note(found), ""] if found else []),
        legend(comparison.rows),
        *comparison.evaluation_notes(),
        *origins,
        *_mark_notes(comparison, "*", "*"),
    ]
    parts.append("\n".join(fill(note, _LONGEST_LINE, break_on_hyphens=False) for note in notes))
    return "\n\n".join(parts)


def _markdown_table(caption: str, header: list[str], lines: list[list[str]]) -> str:
    """Return a table as Markdown; a line of one cell is the name of a family."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    headed = [
        line if len(line) > 1 else [f"**{line[0]}**", *[""] * len(rule[1:])] for line in lines
    ]
    rows = [header, rule, *headed]
    return f"### {caption}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _hashes(comparison: Comparison) -> str:
    """Return the hashes of the final weights as Markdown, shortened."""
    lines = []
    for row in comparison.rows:
        cells = (row.dataset, row.split, label_of(row.strategy), " ".join(short_hashes(row)))
        lines.append(f"| {' | '.join(cells)} |")
    title = "SHA-256 of the final weights, one for each seed (whole ones are in table.json):"
    header = "| Data | Split | Algorithm | Weights |\n| --- | --- | --- | --- |"
    return "\n".join(["", title, "", header, *lines, ""])


def short_hashes(row: Row) -> list[str]:
    """Return the beginnings of the hashes of a row's final weights, for people to compare."""
    return [digest[:_SHORT_HASH_DIGITS] or "-" for digest in row.weights_sha256]


def legend(rows: Sequence[Row]) -> str:
    """Return what the numbers of a table are."""
    told = told_by(rows, "table")
    units = [f"{metric.label} in {metric.unit}" for metric in told.values() if metric.unit]
    beside = [f" {note}" for note in further_notes(told, rows)]
    several = any(len(row.seeds) > 1 for row in rows)
    spread = ", ± standard deviation over seeds" if several else ""
    best = "" if several else f" {ONE_SEED}"
    return f"Mean over {averaged_rounds(rows)}{spread}; {', '.join(units)}.{best}{''.join(beside)}"


def averaged_rounds(rows: Sequence[Row]) -> str:
    """Return over which rounds the means of rows are, and which rows differ from most others."""
    rows_of: dict[str, list[Row]] = {}
    for row in rows:
        rows_of.setdefault(last_rounds(row.rounds_averaged), []).append(row)
    usual, *others = sorted(rows_of, key=lambda text: -len(rows_of[text])) or [last_rounds()]
    if not others:
        return usual
    differing = [f"{_which(rows_of[text], rows)}: {text}" for text in others]
    return f"{usual} ({'; '.join(differing)})"


def _which(some: Sequence[Row], rows: Sequence[Row]) -> str:
    """Return the names of some rows: of whole datasets, or else of strategies."""
    datasets = list(dict.fromkeys(row.dataset for row in some))
    if sum(row.dataset in datasets for row in rows) == len(some):
        return ", ".join(datasets)
    return ", ".join(f"{label_of(row.strategy)} on {row.dataset} ({row.split})" for row in some)


def _mark_notes(comparison: Comparison, best: str, tied: str) -> list[str]:
    """Return what the marks of a table mean, nothing where a single seed marks nothing."""
    several = any(len(row.seeds) > 1 for row in comparison.rows)
    return [explain_marks(best, tied)] if several else []


def further_notes(metrics: Mapping[str, Metric], rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each of these metrics that is beside training alone, or a time."""
    return [
        f"{capitalised(metric.label)}: {metric.aggregation(averaged_rounds(rows))}."
        for metric in metrics.values()
        if isinstance(metric, BesideLocalMetric | TimeToMetric)
    ]


def _as_csv(comparison: Comparison) -> str:
    buffer = io.StringIO()
    columns = ["dataset", "split", "strategy", "seeds"]
    metrics = list(shown_in("csv"))
    for metric in metrics:
        columns += [f"{metric}_mean", f"{metric}_std"]
    columns += ["clients_sampled", "own_models"]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*columns, "weights_sha256"])
    for row in comparison.rows:
        cells: list[object] = [row.dataset, row.split, row.strategy, len(row.seeds)]
        for metric in metrics:
            cells += [row.mean.get(metric, ""), row.std.get(metric, "")]
        cells += ["" if row.sample is None else row.sample[0], "yes" if row.personal else ""]
        writer.writerow([*cells, " ".join(row.weights_sha256)])
    return buffer.getvalue()


# Comparing strategies: all of them on the same datasets, splits and seeds.


def compare(
    suite: Suite | TableView | str | Path | None = None,
    *,
    strategies: Sequence[str] | str | None = None,
    datasets: Sequence[str] | str | None = None,
    splits: Sequence[str] | str | None = None,
    seeds: int | None = None,
    data: Any = None,
    model: Any = None,
    rounds: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Comparison:
    """Run every strategy on every dataset, split and seed, and compare them.

    Started again with the same ``out``, it keeps what is finished and goes on with what is not; a
    run that is damaged is set aside and done again. A run whose process is killed, again and
    again, is left out of the tables and named. The tables are written to ``out`` as
    ``table.json``, ``table.csv`` and ``table.md``, last and whole.

    Parameters
    ----------
    suite : Suite, mapping, name or path
        What to compare; ``quick`` if not given, and with your own data its strategies.
    strategies, datasets, splits : sequence of str, or str, optional
        In place of those of the suite; one text may have commas between names. In a suite of
        settings, names of settings or of datasets, and splits, choose among them.
    seeds : int, optional
        How many seeds; as many as the suite has if not given.
    data, model : any, optional
        Your own data and model, as of :func:`flamma.run`; another comparison in the same
        directory must have the same data.
    rounds : int, optional
        How many rounds all runs have; as many as in the suite if not given.
    out : path, optional
        The directory of the comparison; a temporary one if not given, as of :func:`flamma.run`.
    progress : bool, optional
        Whether a progress bar is shown; by default in terminals and notebooks.
    on_progress : callable, optional
        Called whenever a round has finished somewhere.
    **settings
        Any other setting of all runs, as of :func:`flamma.run`: ``learning_rate=0.1``,
        ``costs__kind="lognormal"``; they win over what the suite has. ``first_seed`` is the first
        of the seeds (0), ``processes`` how many runs go on at the same time (as many as there are
        cores; the results do not depend on it), and ``data_dir`` where datasets are kept.
    """
    given = dict(locals())
    with naming_settings(keyword_of):
        asked = Asked.of(given, "first_seed", "processes", "data_dir")
        kinds = {"strategies": strategies, "datasets": datasets, "splits": splits}
        lists = {kind: names_given(kind, names) for kind, names in kinds.items()}
        first_seed, processes, data_dir = asked.further.values()
        chosen, objects = asked_suite(
            suite, seeds, asked.settings, lists, data, asked.group, asked.objects, first_seed
        )
        path, scratch = output_directory(out, "comparison")
        with ProgressBar(wants_bar(progress), 1, "rounds") as bar:

            def told(news: Progress) -> None:
                bar.on_progress(news)
                if on_progress is not None:
                    on_progress(news)

            found = compare_suite(chosen, path, objects, processes, told, data_dir)
    return replace(found, scratch=scratch)


def compare_suite(
    suite: Suite,
    folder: Path,
    own: UserObjects = NO_OBJECTS,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
    data_dir: Path | None = None,
) -> Comparison:
    """Carry out a suite in a directory, or what is left of it, and write its tables."""
    check_processes(processes)
    cells = suite.cells()
    check_runnable(
        [cell.config for cell in cells if not RunFolder(folder / cell.folder).exists], own, data_dir
    )
    guard = RunFolder(folder)
    guard.lock()
    try:
        guard.write(SUITE, suite.as_toml())  # so that one who looks on knows how much is to come
        jobs = [
            RunJob(c.folder, c.config, f"{c.dataset} {c.split} {c.strategy} seed {c.seed}")
            for c in cells
        ]
        failed = do_jobs(jobs, folder, processes, on_progress, data_dir, own)
        loaded = [
            (cell, Run.load(folder / cell.folder))
            for cell in cells
            if str(cell.folder) not in failed
        ]
        if not loaded:
            raise RunError(f"every run failed, such as {next(iter(failed.items()))}.")
        comparison = compared(suite.name, loaded, failed, suite.as_toml())
        write_tables(comparison, folder)
    finally:
        guard.close()
    return replace(comparison, path=folder)


# Reading the table of a comparison, and telling whether a repetition of it is the same.

_MOST_TABLE_BYTES = 1 << 28
"""The largest table that is read: that of as many runs as a suite may have."""

SAME_BITS, NO_HASH, OTHER_BITS, NOT_RUN = "same bits", "no hash", "other bits", "not run"
"""What a repeated run is, compared with the published one."""

_LONGEST_TITLE = 100
"""Characters of a metric's title that are read."""

_LARGEST_VALUE = 1e100
"""A value of a metric beyond this is taken for damage: its square could not be computed with."""


class _TableVersionError(ValueError):
    """A table is of a version that cannot be read here."""


def parse_table(text: str) -> Comparison:
    """Return the comparison that a ``table.json`` holds.

    Raises
    ------
    ValueError
        If it is damaged, or a version of FLamma wrote it that cannot be read.
    """
    try:
        table = json.loads(text)
        if table["rows"] and all(isinstance(row["seeds"], int) for row in table["rows"]):
            raise _TableVersionError("version 0.1 wrote it, and commit 5770684 reads it")
        if verified(text) is None:
            raise ValueError("it does not match its checksum")
        if table.get("version", TABLE_VERSION) > TABLE_VERSION:
            raise _TableVersionError("a newer version of FLamma wrote it, so update this one")
        return Comparison(
            str(table["name"]),
            [_published_row(row) for row in table["rows"]],
            [str(name) for name in table["folders"]],
            {str(run): str(why) for run, why in table.get("failed", {}).items()},
            str(table.get("suite", "")),
            tuple(str(name) for name in table.get("trainers", ())),
            str(table.get("flamma", "")),
        )
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError("it is not a table of a comparison") from error


def _published_row(table: TableView) -> Row:
    """Return a row of a table, checked; metrics that are not installed are left out."""
    seeds = tuple(int(seed) for seed in table["seeds"])
    known = set(METRICS)
    values: dict[str, list[float]] = {}
    spread: dict[str, dict[str, float]] = {"mean": {}, "std": {}}
    for name, found in table["values"].items():
        if name not in known:
            continue
        values[name] = [float(value) for value in found]
        for part, by_name in spread.items():
            by_name[name] = float(table[part][name])
        numbers = (*values[name], spread["mean"][name], spread["std"][name])
        if len(values[name]) != len(seeds) or not all(
            abs(number) <= _LARGEST_VALUE
            for number in numbers  # false for NaN
        ):
            raise ValueError(name)
    dataset, split, strategy = (str(table[key]) for key in ("dataset", "split", "strategy"))
    hashes = tuple(str(digest) for digest in table.get("weights_sha256", ()))
    if hashes and len(hashes) != len(seeds):
        raise ValueError("weights_sha256")
    drawn = table.get("sample")
    sample = None if drawn is None else (int(drawn[0]), int(drawn[1]))
    place = (dataset, split, strategy, seeds)
    personal = table.get("personal", False) is True
    scored_by = str(table.get("scored_by", ""))[:_LONGEST_TITLE]
    row = Row(*place, spread["mean"], spread["std"], values, hashes, sample, personal, scored_by)
    averaged = tuple(int(count) for count in table.get("rounds_averaged", ()))
    if not all(0 <= count <= LAST_ROUNDS for count in averaged):
        raise ValueError("rounds_averaged")
    return replace(
        row, less_is_better=table.get("less_is_better", False) is True, rounds_averaged=averaged
    )


@dataclass(frozen=True)
class _RepeatedRun:
    """One run of a published table, and what its repetition came to.

    Attributes
    ----------
    dataset, split, strategy, seed
        Which run it is.
    verdict : str
        ``same bits``, ``other bits``, ``no hash`` if the table has none, or ``not run``.
    published, repeated : str
        The SHA-256 of the final weights; empty where there is none.
    differences : dict of str to float
        The repeated run's metrics less the published ones, where they differ.
    """

    dataset: str
    split: str
    strategy: str
    seed: int
    verdict: str
    published: str
    repeated: str
    differences: dict[str, float]


@dataclass(frozen=True)
class Repetition:
    """How a comparison that was run again differs from its published table.

    ``left_out`` is how many runs of the table were not repeated, ``trainers`` what trained now, and
    ``published_by`` the version of FLamma that made the table.
    """

    runs: tuple[_RepeatedRun, ...]
    left_out: int
    trainers: tuple[str, ...]
    published_by: str

    @property
    def same(self) -> bool:
        """Whether all runs have the same bits."""
        return all(run.verdict == SAME_BITS for run in self.runs)

    @property
    def sentence(self) -> str:
        """The result in a sentence or two."""
        count, alike = len(self.runs), sum(run.verdict == SAME_BITS for run in self.runs)
        if self.same:
            rest = f" ({self.left_out} more were not repeated)" if self.left_out else ""
            all_runs = "The run has" if count == 1 else f"All {count} runs have"
            return f"{all_runs} the same bits as published{rest}."
        if all(run.verdict == NO_HASH for run in self.runs):
            told = "The table carries no hashes of weights, so only metrics can be compared."
        else:
            told = f"{alike} of {count} runs have the same bits as published."
        largest = max(abs(run.differences.get("accuracy", 0.0)) for run in self.runs)
        told += f" The accuracy of a run differs by at most {largest:.2f} points."
        others = [name for name in self.trainers if name != "lanes"]
        if others:
            told += f" These were trained by {' and '.join(others)}; only lanes guarantee bits."
        if self.published_by not in ("", flamma.__version__):
            told += f" FLamma {self.published_by} made the table; this is {flamma.__version__}."
        return told

    def as_json(self) -> JsonTable:
        """Return it as ``flamma compare --check --json`` prints it."""
        return {
            "same": self.same,
            "sentence": self.sentence,
            "left_out": self.left_out,
            "trainers": list(self.trainers),
            "published_by": self.published_by,
            "runs": [asdict(run) for run in self.runs],
        }


def read_published(path: Path, regular: bool = False) -> Comparison:
    """Return the comparison of a published table; with ``regular`` it is not read from a pipe.

    Raises
    ------
    InputFileError
        If there is no such file, or it is not a table that can be read.
    """
    text = read_text(path, _MOST_TABLE_BYTES, regular)
    try:
        return parse_table(text)
    except _TableVersionError as error:
        raise InputFileError(f"{path} cannot be checked: {error}.") from error
    except ValueError as error:
        raise InputFileError(
            f"{path} is not the table.json of a comparison, or damaged: {error}."
        ) from error


def suite_of(published: Comparison) -> Suite:
    """Return the suite that a published table was made by, without retired strategies.

    Raises
    ------
    InputFileError
        If the table does not say, and it is none of ours by name either.
    """
    if published.suite:
        suite = read_suite(parse_toml(published.suite, "the suite of the table"))
        return replace(
            suite,
            strategies=tuple(name for name in suite.strategies if name not in RETIRED),
            overrides={
                where: settings
                for where, settings in suite.overrides.items()
                if not RETIRED.keys() & where.split("/")
            },
        )
    if published.name in suite_names():
        return read_suite(published.name)
    raise InputFileError(
        f"the table of {published.name!r} does not hold its suite: name the suite, too."
    )


def check_overlap(published: Comparison, suite: Suite) -> None:
    """Refuse to repeat a suite of which a published table has no run.

    Raises
    ------
    InputFileError
        If there is none.
    """
    told = {place for row in published.rows for place, _ in _runs(row)}
    if not any((c.dataset, c.split, c.strategy, c.seed) in told for c in suite.cells()):
        raise InputFileError(
            f"the table of {published.name!r} has none of the runs that were asked for: it is of "
            f"another suite, or too much was left out."
        )


def repetition(published: Comparison, repeated: Comparison) -> Repetition:
    """Return how runs that were repeated differ from the published ones.

    Of the published runs those count that the repeated comparison has rows or failures for, so
    that a part of a table can be checked.
    """
    found = {place: run for row in repeated.rows for place, run in _runs(row)}
    wanted = {place: run for row in published.rows for place, run in _runs(row)}
    failed = {tuple(Path(folder).parts[1:]) for folder in repeated.failed}
    compared = []
    for place, (digest, metrics) in wanted.items():
        dataset, split, strategy, seed = place
        if place in found:
            compared.append(_compared(place, digest, metrics, *found[place]))
        elif (dataset, split, strategy, f"seed-{seed}") in failed:
            compared.append(_RepeatedRun(*place, NOT_RUN, digest, "", {}))
    left_out = len(wanted) - len(compared)
    return Repetition(tuple(compared), left_out, repeated.trainers, published.flamma)


_RunKey = tuple[str, str, str, int]
"""Dataset, split, strategy and seed: which run it is."""


def _runs(row: Row) -> Iterator[tuple[_RunKey, tuple[str, dict[str, float]]]]:
    """Yield the hash and the metrics of every run of a row.

    Times differ always, and metrics of a comparison depend on the other runs.
    """
    told = [
        name
        for name in row.values
        if name != "seconds" and not isinstance(METRICS[name], ComparedMetric)
    ]
    for index, seed in enumerate(row.seeds):
        digest = row.weights_sha256[index] if row.weights_sha256 else ""
        metrics = {name: row.values[name][index] for name in told}
        yield (row.dataset, row.split, row.strategy, seed), (digest, metrics)


def _compared(
    place: _RunKey,
    published: str,
    before: Mapping[str, float],
    repeated: str,
    now: Mapping[str, float],
) -> _RepeatedRun:
    verdict = NO_HASH if not published else SAME_BITS if repeated == published else OTHER_BITS
    differences = {
        name: now[name] - value
        for name, value in before.items()
        if name in now and now[name] != value
    }
    return _RepeatedRun(*place, verdict, published, repeated, differences)
