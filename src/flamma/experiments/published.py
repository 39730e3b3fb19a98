"""Reading the table of a comparison, and telling whether a repetition of it is the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import flamma
from flamma.errors import InputFileError
from flamma.experiments.manifest import verified
from flamma.experiments.suite import MOST_RUNS, Suite, read_suite, suite_names
from flamma.experiments.table import TABLE_VERSION, Comparison, Row
from flamma.files import read_text
from flamma.metrics import METRICS, ComparedMetric
from flamma.metrics.kinds import LAST_ROUNDS
from flamma.toml import parse_toml

MOST_TABLE_BYTES = 1 << 28
"""The largest table that is read: that of as many runs as a suite may have."""

SAME_BITS, NO_HASH, OTHER_BITS, NOT_RUN = "same bits", "no hash", "other bits", "not run"
"""What a repeated run is, compared with the published one."""

LONGEST_TITLE = 100
"""Characters of a metric's title that are read."""

LARGEST_VALUE = 1e100
"""A value of a metric beyond this is taken for damage: its square could not be computed with."""

RENAMED = {"variance": "accuracy_variance", "equal_work_variance": "equal_work_accuracy_variance"}
"""Metrics under the names that tables of version 0.1 have for them."""


class NewerTableError(ValueError):
    """A table is of a version that is not known here."""


def parse_table(text: str) -> Comparison:
    """Return the comparison that a ``table.json`` holds, also one of version 0.1.

    Raises
    ------
    ValueError
        If it is damaged, or a newer version of FLamma wrote it.
    """
    try:
        table = json.loads(text)
        version_1 = all(isinstance(row["seeds"], int) for row in table["rows"])
        if ("checksum" in table or not version_1) and verified(text) is None:
            raise ValueError("it does not match its checksum")
        if not version_1 and table.get("version", TABLE_VERSION) > TABLE_VERSION:
            raise NewerTableError("a newer version of FLamma wrote it")
        return Comparison(
            str(table["name"]),
            [_row(row) for row in table["rows"]],
            [str(name) for name in table["folders"]],
            {str(run): str(why) for run, why in table.get("failed", {}).items()},
            str(table.get("suite", "")),
            tuple(str(name) for name in table.get("trainers", ())),
            str(table.get("flamma", "")),
        )
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError("it is not a table of a comparison") from error


def _row(table: Mapping[str, Any]) -> Row:
    """Return a row of a table, checked; metrics that are not installed are left out.

    A row of version 0.1 tells how many seeds there are, not which: they were 0, 1, and so on.
    """
    told = table["seeds"]
    if isinstance(told, int) and not 0 <= told <= MOST_RUNS:
        raise ValueError("seeds")
    seeds = tuple(range(told)) if isinstance(told, int) else tuple(int(seed) for seed in told)
    known = set(METRICS)
    values: dict[str, list[float]] = {}
    spread: dict[str, dict[str, float]] = {"mean": {}, "std": {}}
    for written, found in table["values"].items():
        name = RENAMED.get(written, written)
        if name not in known:
            continue
        values[name] = [float(value) for value in found]
        for part, by_name in spread.items():
            by_name[name] = float(table[part][written])
        numbers = (*values[name], spread["mean"][name], spread["std"][name])
        if len(values[name]) != len(seeds) or not all(
            abs(number) <= LARGEST_VALUE
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
    scored_by = str(table.get("scored_by", ""))[:LONGEST_TITLE]
    row = Row(*place, spread["mean"], spread["std"], values, hashes, sample, personal, scored_by)
    averaged = tuple(int(count) for count in table.get("rounds_averaged", ()))
    if not all(0 <= count <= LAST_ROUNDS for count in averaged):
        raise ValueError("rounds_averaged")
    return replace(
        row, less_is_better=table.get("less_is_better", False) is True, rounds_averaged=averaged
    )


@dataclass(frozen=True)
class RepeatedRun:
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

    runs: tuple[RepeatedRun, ...]
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

    def as_json(self) -> dict[str, Any]:
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
    text = read_text(path, MOST_TABLE_BYTES, regular)
    try:
        return parse_table(text)
    except NewerTableError as error:
        raise InputFileError(f"{path} cannot be checked: {error}, so update this one.") from error
    except ValueError as error:
        raise InputFileError(
            f"{path} is not the table.json of a comparison, or damaged: {error}."
        ) from error


def suite_of(published: Comparison) -> Suite:
    """Return the suite that a published table was made by.

    Raises
    ------
    InputFileError
        If the table does not say, and it is none of ours by name either.
    """
    if published.suite:
        return read_suite(parse_toml(published.suite, "the suite of the table"))
    if published.name in suite_names():
        return read_suite(published.name)
    raise InputFileError(
        f"the table of {published.name!r} does not hold its suite, since FLamma 0.1 made it: name "
        f"the suite, too."
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
            compared.append(RepeatedRun(*place, NOT_RUN, digest, "", {}))
    left_out = len(wanted) - len(compared)
    return Repetition(tuple(compared), left_out, repeated.trainers, published.flamma)


RunKey = tuple[str, str, str, int]
"""Dataset, split, strategy and seed: which run it is."""


def _runs(row: Row) -> Iterator[tuple[RunKey, tuple[str, dict[str, float]]]]:
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
    place: RunKey,
    published: str,
    before: Mapping[str, float],
    repeated: str,
    now: Mapping[str, float],
) -> RepeatedRun:
    verdict = NO_HASH if not published else SAME_BITS if repeated == published else OTHER_BITS
    differences = {
        name: now[name] - value
        for name, value in before.items()
        if name in now and now[name] != value
    }
    return RepeatedRun(*place, verdict, published, repeated, differences)
