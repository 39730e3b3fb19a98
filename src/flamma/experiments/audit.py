"""The audit: the same run again and again, each time with one client that does not play along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import ConfigError, RunError
from flamma.experiments.asked import asked_settings, in_python_terms
from flamma.experiments.auditing.audit_files import write_audit
from flamma.experiments.auditing.counterfactuals import (
    audit_label,
    audited_cases,
    count_counterfactuals,
    find_gain,
    honest_folder,
    plan_counterfactuals,
)
from flamma.experiments.auditing.deviations import choose_deviations
from flamma.experiments.auditing.evidence import read_evidence
from flamma.experiments.auditing.findings import Audit
from flamma.experiments.auditing.sources import AuditSource, check_data, read_source
from flamma.experiments.config import Config
from flamma.experiments.config_checks import check_installed
from flamma.experiments.folder import RunFolder
from flamma.experiments.job_worker import RunJob
from flamma.experiments.jobs import OnProgress, Progress, do_jobs
from flamma.experiments.own import OwnParts
from flamma.experiments.progress_bar import ProgressBar, wants_bar
from flamma.experiments.run import own_parts
from flamma.experiments.run_object import Run
from flamma.experiments.scratch import place_for
from flamma.experiments.suite import Suite

if TYPE_CHECKING:
    from flamma.tasks.own import OwnLoss, OwnMetric
    from flamma.training.augmentations import Augment


def audit(
    source: AuditSource | Run | str | Path | Suite | Config | Mapping[str, Any] | None = None,
    *,
    deviations: Iterable[str] | None = None,
    clients: Sequence[str | int] | None = None,
    strategies: Sequence[str] | None = None,
    seeds: int | None = None,
    data: Any = None,
    target: str | None = None,
    group: Any = None,
    task: str | None = None,
    model: Any = None,
    start: Any = None,
    freeze: str | Sequence[str] | None = None,
    loss: OwnLoss | None = None,
    metric: OwnMetric | None = None,
    augment: Augment | None = None,
    strategy: str | Mapping[str, Any] | None = None,
    dataset: str | None = None,
    split: str | None = None,
    rounds: int | None = None,
    per_round: int | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    device: str | None = None,
    processes: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
    data_dir: Path | None = None,
    **settings: Any,
) -> Audit:
    """Measure what single clients gain by not playing along.

    Every seed has one run in which all clients are honest, and one for each client and deviation
    in which that client alone deviates, with the same configuration and the same random numbers:
    differences come from the deviation alone. Started again with the same ``out``, it keeps what
    is finished and goes on with what is not. Findings are written there as ``audit.json`` and
    ``audit.csv``.

    Parameters
    ----------
    source : AuditSource, Run, path, name, Suite, Config or mapping, optional
        A configuration, a finished run, which is then the honest one, or a suite.
    deviations : iterable of str, optional
        What is tried, see :func:`flamma.experiments.auditing.deviations.choose_deviations`.
    clients : sequence, optional
        Whom to audit: numbers of clients, ``all``, or roles: by default ``cheapest``, ``median``
        and ``dearest``, by true cost. How many there are is ``data__clients``.
    strategies : sequence of str, optional
        In place of those of a suite.
    seeds : int, optional
        How many, from the configuration's own on: three, of a run its own, of a suite the suite's.
    data, target, group, task, model, start, freeze, loss, metric, augment
        Your own data and model, as of :func:`flamma.run`.
    strategy, dataset, split, rounds, per_round, seed
        Settings of all runs, as of :func:`flamma.run`.
    epochs, batch_size, learning_rate, momentum, device
        Further ones.
    processes : int, optional
        How many runs go on at the same time; the findings do not depend on it.
    out : path, optional
        The directory of the audit; a temporary one if not given, as of :func:`flamma.run`.
    progress : bool, optional
        Whether a progress bar is shown; by default in terminals and notebooks.
    on_progress : callable, optional
        Called whenever a round has finished somewhere.
    data_dir : Path, optional
        Where datasets are kept.
    **settings
        Any other option of a configuration, with two underscores for the dot.
    """
    asked = dict(locals())
    with in_python_terms("clients"):
        if isinstance(clients, int):
            raise ConfigError(
                "clients= names whom to audit, such as [0, 3]: how many there are is data.clients."
            )
        own, named = own_parts(model, start, freeze, loss, metric, augment)
        changes = named | asked_settings(asked, leave_out=("processes", "clients"))
        chosen = _source(source, changes, seeds, strategies, data, group, own)
        path, scratch = place_for(out, "audit")
        with ProgressBar(wants_bar(progress), 1, "rounds") as bar:

            def told(news: Progress) -> None:
                bar.on_progress(news)
                if on_progress is not None:
                    on_progress(news)

            found = audit_source(chosen, path, deviations, clients, processes, told, data_dir)
    return replace(found, scratch=scratch)


def _source(
    source: AuditSource | Run | str | Path | Suite | Config | Mapping[str, Any] | None,
    changes: Mapping[str, Any],
    seeds: int | None,
    strategies: Sequence[str] | None,
    data: Any,
    group: Any,
    own: OwnParts,
) -> AuditSource:
    """Return what is audited; a run brings its own model along."""
    if isinstance(source, AuditSource):
        return source
    if isinstance(source, Run):
        own = replace(own, model=own.model or source.known_model)
        source = source.path
    return read_source(source, changes, seeds, strategies, data, group, own)


def audit_source(
    source: AuditSource,
    folder: Path,
    deviations: Iterable[str] | None = None,
    clients: Sequence[str | int] | None = None,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
    data_dir: Path | None = None,
) -> Audit:
    """Carry out an audit in a directory, or what is left of it, and write what it found."""
    tried = choose_deviations(deviations)
    sizes = {cell.folder: count_counterfactuals(cell, clients, tried) for cell in source.cells}
    for cell in source.cells:
        check_installed(cell.config)
    check_data(source, data_dir)
    guard = RunFolder(folder)
    guard.lock()
    try:
        to_do = [cell for cell in source.cells if cell.folder not in source.finished]
        first = [RunJob(honest_folder(c), c.config, f"{audit_label(c)} honest") for c in to_do]
        rounds = sum(c.config.rounds * sizes[c.folder] for c in source.cells)
        rounds_first = sum(job.config.rounds for job in first)
        whole = Progress(0, rounds_first + rounds, 0, len(first) + sum(sizes.values()), "")
        part = _within(whole, on_progress)
        failed = do_jobs(first, folder, processes, part, data_dir, source.own)
        honest = {
            cell.folder: source.finished.get(cell.folder)
            or read_evidence(folder / honest_folder(cell))
            for cell in source.cells
            if str(honest_folder(cell)) not in failed
        }
        whole = replace(whole, rounds_done=rounds_first, runs_done=len(first))
        if on_progress is not None:
            on_progress(replace(whole, latest="looking for the best lies"))
        planned = [
            counterfactual
            for cell in source.cells
            if cell.folder in honest
            for counterfactual in plan_counterfactuals(cell, honest[cell.folder], clients, tried)
        ]
        # A client that is audited under two names has one run.
        second = list({c.job.folder: c.job for c in planned}.values())
        rounds = rounds_first + sum(job.config.rounds for job in second)
        whole = replace(whole, rounds=rounds, runs=len(first) + len(second))
        part = _within(whole, on_progress)
        failed |= do_jobs(second, folder, processes, part, data_dir, source.own)
        found = {c: find_gain(c, folder) for c in planned if str(c.job.folder) not in failed}
        if not found:
            raise RunError(f"every run failed, such as {next(iter(failed.items()))}.")
        result = Audit(source.name, tuple(audited_cases(source, honest, found, folder)), failed)
        write_audit(result, folder)
    finally:
        guard.close()
    return replace(result, path=folder)


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
