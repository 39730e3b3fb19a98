"""The table of a comparison: the paper's Table I, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import flamma
from flamma.errors import RunError
from flamma.experiments.best import best_of
from flamma.experiments.compared_metrics import CellRuns, compared_metrics
from flamma.experiments.presented import PresentedResult, sparkline
from flamma.experiments.run_object import Run
from flamma.experiments.scratch import ScratchFolder
from flamma.experiments.statistics import REFERENCE, AcrossSettings, across_settings
from flamma.experiments.summary import sample_text
from flamma.metrics import METRICS, BesideLocalMetric, Metric, TimeToMetric, shown_in
from flamma.metrics.kinds import Place
from flamma.numerics import total
from flamma.strategies import competes, label_of
from flamma.types import ACCURACY_SCORE, NamesItsScore, ScoreKind

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

    def as_json(self) -> dict[str, Any]:
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
    def history(self) -> list[dict[str, Any]]:
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

        Nothing is returned with too few seeds to test: see :mod:`flamma.experiments.best`.
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
        from flamma.experiments.table_text import as_text

        return as_text(self)

    def _headline(self) -> str:
        strategies, seeds = ({getattr(r, k) for r in self.rows} for k in ("strategy", "seeds"))
        places = dict.fromkeys(f"{row.dataset} ({row.split})" for row in self.rows)
        most = max((len(own) for own in seeds), default=0)
        what = f"{len(strategies)} strategies on {', '.join(places)}, {most} seeds"
        return what + (f", {len(self.failed)} runs failed" if self.failed else "")

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        from flamma.experiments.table_text import STARS, layout

        found = []
        for caption, header, lines in layout(self, STARS):
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

    def _records(self) -> list[dict[str, Any]]:
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
    runs: CellRuns,
    failed: Mapping[str, str] | None = None,
    suite: str = "",
) -> Comparison:
    """Return the comparison of finished runs."""
    summaries = [run.summary() for _, run in runs]
    metrics = compared_metrics(runs, summaries, shown_metrics())
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
                less_is_better=kinds[place].less_is_better,
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
