"""The audit: the same run again and again, each time with one client that does not play along."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flamma.errors import ConfigError, RunError
from flamma.experiments.auditing.audit_files import write_audit
from flamma.experiments.auditing.best_reports import best_cost_factor
from flamma.experiments.auditing.deviations import Deviation, choose_deviations
from flamma.experiments.auditing.evidence import Evidence, read_evidence
from flamma.experiments.auditing.findings import (
    Audit,
    AuditedCase,
    Baseline,
    Finding,
)
from flamma.experiments.auditing.sources import AuditSource, check_data, read_source
from flamma.experiments.auditing.subjects import choose_subjects
from flamma.experiments.config import Config
from flamma.experiments.folder import POPULATION, RunFolder
from flamma.experiments.jobs import OnProgress, Progress, RunJob, do_jobs
from flamma.experiments.suite import Cell, Suite

COUNTERFACTUALS = "counterfactuals"
"""The folder of an audit with its runs."""


@dataclass(frozen=True, eq=False)
class _Counterfactual:
    """One run with a deviation, and the honest run it is compared with."""

    cell: Cell
    honest: Evidence
    subject: str
    client: int
    group: tuple[int, ...]
    deviation: Deviation
    job: RunJob


def audit(
    source: AuditSource | str | Path | Suite | Config | Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    deviations: Iterable[str] | None = None,
    clients: Sequence[str | int] | None = None,
    seeds: int | None = None,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
    data_dir: Path | None = None,
) -> Audit:
    """Measure what single clients gain by not playing along.

    Every seed has one run in which all clients are honest, and one for each client and deviation
    in which that client alone deviates, with the same configuration and the same random numbers:
    differences come from the deviation alone. Started again, it keeps what is finished and goes on
    with what is not. Findings are written to ``out`` as ``audit.json`` and ``audit.csv``.

    Parameters
    ----------
    source : AuditSource, path, name, Suite, Config or mapping, optional
        A configuration, a finished run, which is then the honest one, or a suite.
    out : path, optional
        The directory of the audit.
    deviations : iterable of str, optional
        What is tried, see :func:`flamma.experiments.auditing.deviations.choose_deviations`.
    clients : sequence, optional
        Numbers of clients, ``all``, or roles: by default ``cheapest``, ``median`` and ``dearest``,
        by true cost.
    seeds : int, optional
        How many, from the configuration's own on: three, of a run its own, of a suite the suite's.
    processes : int, optional
        How many runs go on at the same time; the findings do not depend on it.
    on_progress : callable, optional
        Called whenever a round has finished somewhere.
    data_dir : Path, optional
        Where datasets are kept.
    """
    chosen = source if isinstance(source, AuditSource) else read_source(source, seeds=seeds)
    tried = choose_deviations(deviations)
    folder = Path(out) if out is not None else chosen.out
    sizes = {cell.folder: _runs_of(cell, clients, tried) for cell in chosen.cells}
    check_data(chosen, data_dir)
    guard = RunFolder(folder)
    guard.lock()
    try:
        to_do = [cell for cell in chosen.cells if cell.folder not in chosen.finished]
        first = [RunJob(_honest(c), c.config, f"{_label(c)} honest") for c in to_do]
        rounds = sum(c.config.rounds * sizes[c.folder] for c in chosen.cells)
        rounds_first = sum(job.config.rounds for job in first)
        whole = Progress(0, rounds_first + rounds, 0, len(first) + sum(sizes.values()), "")
        failed = do_jobs(first, folder, processes, _within(whole, on_progress), data_dir)
        honest = {
            cell.folder: chosen.finished.get(cell.folder) or read_evidence(folder / _honest(cell))
            for cell in chosen.cells
            if str(_honest(cell)) not in failed
        }
        whole = replace(whole, rounds_done=rounds_first, runs_done=len(first))
        if on_progress is not None:
            on_progress(replace(whole, latest="looking for the best lies"))
        planned = [
            counterfactual
            for cell in chosen.cells
            if cell.folder in honest
            for counterfactual in _planned(cell, honest[cell.folder], clients, tried)
        ]
        # A client that is audited under two names has one run.
        second = list({c.job.folder: c.job for c in planned}.values())
        rounds = rounds_first + sum(job.config.rounds for job in second)
        whole = replace(whole, rounds=rounds, runs=len(first) + len(second))
        failed |= do_jobs(second, folder, processes, _within(whole, on_progress), data_dir)
        found = {c: _finding(c, folder) for c in planned if str(c.job.folder) not in failed}
        if not found:
            raise RunError(f"every run failed, such as {next(iter(failed.items()))}.")
        result = Audit(chosen.name, tuple(_cases(chosen, honest, found, folder)), failed)
        write_audit(result, folder)
    finally:
        guard.close()
    return result


def _runs_of(
    cell: Cell, clients: Sequence[str | int] | None, deviations: Sequence[Deviation]
) -> int:
    """Return how many counterfactual runs a cell has, or refuse what is asked for."""
    count = cell.config.data.clients
    for deviation in deviations:
        if deviation.partners >= count:
            raise ConfigError(f"{deviation.name} needs {deviation.partners + 1} clients.")
    return len(choose_subjects(clients, np.zeros(count))) * len(deviations)


def _within(whole: Progress, on_progress: OnProgress | None) -> OnProgress | None:
    """Return what tells the progress of a part as that of the whole."""
    if on_progress is None:
        return None

    def tell(part: Progress) -> None:
        on_progress(
            replace(
                whole,
                rounds_done=whole.rounds_done + part.rounds_done,
                runs_done=whole.runs_done + part.runs_done,
                latest=part.latest,
            )
        )

    return tell


def _planned(
    cell: Cell,
    honest: Evidence,
    clients: Sequence[str | int] | None,
    deviations: Sequence[Deviation],
) -> Iterator[_Counterfactual]:
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
                f"{_label(cell)} client {client} {deviation.name}",
                population,
                is_kept_small=True,
            )
            yield _Counterfactual(cell, honest, subject, client, group, deviation, job)


def _finding(planned: _Counterfactual, folder: Path) -> Finding:
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


def _cases(
    source: AuditSource,
    honest: Mapping[Path, Evidence],
    found: Mapping[_Counterfactual, Finding],
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


def _label(cell: Cell) -> str:
    return f"{cell.strategy} seed {cell.seed}"


def _folder(cell: Cell) -> Path:
    return Path(COUNTERFACTUALS).joinpath(*_place(cell), f"seed-{cell.seed}")


def _honest(cell: Cell) -> Path:
    return _folder(cell) / "honest"
