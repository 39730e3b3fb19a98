"""The runs of an audit: the honest ones, and those in which one client deviates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flamma.errors import ConfigError
from flamma.experiments.auditing.best_reports import best_cost_factor
from flamma.experiments.auditing.deviations import Deviation
from flamma.experiments.auditing.evidence import Evidence, read_evidence
from flamma.experiments.auditing.findings import AuditedCase, Baseline, Finding
from flamma.experiments.auditing.sources import AuditSource
from flamma.experiments.auditing.subjects import choose_subjects
from flamma.experiments.folder import POPULATION, RunFolder
from flamma.experiments.job_worker import RunJob
from flamma.experiments.suite import Cell

COUNTERFACTUALS = "counterfactuals"
"""The folder of an audit with its runs."""


@dataclass(frozen=True, eq=False)
class Counterfactual:
    """One run with a deviation, and the honest run it is compared with."""

    cell: Cell
    honest: Evidence
    subject: str
    client: int
    group: tuple[int, ...]
    deviation: Deviation
    job: RunJob


def count_counterfactuals(
    cell: Cell, clients: Sequence[str | int] | None, deviations: Sequence[Deviation]
) -> int:
    """Return how many counterfactual runs a cell has, or refuse what is asked for."""
    count = cell.config.data.clients
    for deviation in deviations:
        if deviation.partners >= count:
            raise ConfigError(f"{deviation.name} needs {deviation.partners + 1} clients.")
    return len(choose_subjects(clients, np.zeros(count))) * len(deviations)


def plan_counterfactuals(
    cell: Cell,
    honest: Evidence,
    clients: Sequence[str | int] | None,
    deviations: Sequence[Deviation],
) -> Iterator[Counterfactual]:
    """Yield a run for every audited client of a cell and every deviation."""
    assert honest.population.costs is not None
    config, population = cell.config, RunFolder(honest.path).text(POPULATION)
    for subject, client in choose_subjects(clients, honest.population.costs).items():
        factor: float | None = None
        if any(deviation.needs_best_report for deviation in deviations):
            factor = best_cost_factor(config, honest, client)
        for deviation in deviations:
            group = deviation.group(client, honest.population.clients)
            job = RunJob(
                _folder(cell) / deviation.name / f"client-{client}",
                deviation.applied(config, group, factor),
                f"{audit_label(cell)} client {client} {deviation.name}",
                population,
                is_kept_small=True,
            )
            yield Counterfactual(cell, honest, subject, client, group, deviation, job)


def find_gain(planned: Counterfactual, folder: Path) -> Finding:
    """Return what a client gained in a run, beside the honest one."""
    before, group = planned.honest, planned.group
    after = read_evidence(folder / planned.job.folder)
    others = {
        name: (value, after.others(group)[name]) for name, value in before.others(group).items()
    }
    suspicions = after.suspicions(group)
    [assignment] = planned.job.config.behaviours
    return Finding(
        subject=planned.subject,
        deviation=planned.deviation.name,
        seed=planned.cell.seed,
        client=planned.client,
        group=group,
        honest_utility=before.utility(group),
        utility=after.utility(group),
        accuracy_change=_change(before.accuracy(group), after.accuracy(group)),
        others_accuracy_change=_change(*others["accuracy"]),
        others_variance_change=_change(*others["variance"]),
        others_worst_change=_change(*others["worst"]),
        selections=after.selections(group),
        honest_selections=before.selections(group),
        flagged=len(suspicions),
        flag=suspicions[0][1] if suspicions else "",
        fines=after.fines(group),
        options=dict(assignment.behaviour.options),
        folder=str(planned.job.folder),
    )


def audited_cases(
    source: AuditSource,
    honest: Mapping[Path, Evidence],
    found: Mapping[Counterfactual, Finding],
    folder: Path,
) -> Iterator[AuditedCase]:
    """Yield a case for each strategy, dataset and split of which anything is known."""
    for place in dict.fromkeys(_place(cell) for cell in source.cells):
        cells = [cell for cell in source.cells if _place(cell) == place and cell.folder in honest]
        findings = tuple(finding for c, finding in found.items() if c.cell in cells)
        if not findings:
            continue
        runs = [honest[cell.folder] for cell in cells]
        baselines = tuple(
            Baseline(cell.seed, _relative(run.path, folder), run.params_sha256, _flagged(run))
            for cell, run in zip(cells, runs, strict=True)
        )
        config = cells[0].config
        yield AuditedCase(
            *place,
            config.rounds,
            config.data.clients,
            any(run.is_paid for run in runs),
            baselines,
            findings,
        )


def _flagged(honest: Evidence) -> tuple[int, ...]:
    """Return the clients of an honest run that the server suspected, all of them wrongly."""
    clients = range(honest.population.clients)
    return tuple(client for client in clients if honest.suspicions([client]))


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _place(cell: Cell) -> tuple[str, str, str]:
    return cell.dataset, cell.split, cell.strategy


def audit_label(cell: Cell) -> str:
    """Return what people are told that a cell is."""
    return f"{cell.strategy} seed {cell.seed}"


def _folder(cell: Cell) -> Path:
    return Path(COUNTERFACTUALS).joinpath(*_place(cell), f"seed-{cell.seed}")


def honest_folder(cell: Cell) -> Path:
    """Return where the honest run of a cell is, under the audit's directory."""
    return _folder(cell) / "honest"
