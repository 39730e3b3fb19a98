"""The audit: the same run again and again, each time with one client that does not play along."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flamma.clients.behaviours import BEHAVIOURS, read_assignments
from flamma.errors import ConfigError, DataError, Key, RunError, naming_settings
from flamma.experiments.config import Config, read_config
from flamma.experiments.findings import (
    Audit,
    AuditedCase,
    Baseline,
    Evidence,
    Finding,
    best_cost_factor,
    read_evidence,
    write_audit,
)
from flamma.experiments.folder import CONFIG, POPULATION, RunFolder
from flamma.experiments.jobs import (
    OnProgress,
    Progress,
    RunJob,
    check_processes,
    comparable,
    do_jobs,
)
from flamma.experiments.progress_bar import ProgressBar, wants_bar
from flamma.experiments.result import Run, output_directory
from flamma.experiments.run import check_runnable
from flamma.experiments.settings import keyword_of
from flamma.experiments.suite import KINDS, Cell, Suite, asked_suite, read_suite, suite_names
from flamma.experiments.user_objects import (
    NO_OBJECTS,
    Asked,
    UserObjects,
    configured,
    gathered_for,
    names_given,
)
from flamma.io import JsonTable, TableView, check_folder_name, quoted, unknown
from flamma.registry import parse_value
from flamma.tasks import refuse_losses
from flamma.types import Floats, Terms

# Deviations that an audit tries: a behaviour, its options, and a name for both.

BEST = "best"
"""The cost report that would have paid most in the games of the honest run."""

MOST_ALLOWED = "most"
"""As many claimed epochs as the strategy accepts."""


@dataclass(frozen=True)
class Deviation:
    """One way not to play along.

    Attributes
    ----------
    name : str
        What tables and directories call it.
    behaviour : str
        A name of :data:`flamma.clients.behaviours.BEHAVIOURS`.
    options : mapping
        The options of the behaviour. For a cost-liar the factor :data:`BEST`, and for claimed
        epochs :data:`MOST_ALLOWED`, are replaced for each client and strategy.
    partners : int
        How many other clients take part; what it gains is what they gain together.
    """

    name: str
    behaviour: str
    options: TableView = field(default_factory=dict)
    partners: int = 0

    @property
    def needs_best_report(self) -> bool:
        """Whether it depends on the games of the honest run."""
        return self.behaviour == "cost-liar" and self.options.get("factor") == BEST

    def group(self, client: int, clients: int) -> tuple[int, ...]:
        """Return the clients that deviate: the one that is audited and those next to it."""
        others = [*range(client + 1, clients), *range(client - 1, -1, -1)]
        return tuple(sorted((client, *others[: self.partners])))

    def applied(self, config: Config, clients: Sequence[int], factor: float | None) -> Config:
        """Return the configuration of a run in which only these clients deviate.

        ``factor`` is what the true cost is best multiplied with.
        """
        options = dict(self.options)
        if self.needs_best_report:
            options["factor"] = 1.0 if factor is None else factor
        if options.get("claimed") == MOST_ALLOWED:
            options["claimed"] = config.strategy.epoch_range(Terms(clients[0], 1))[1]
        table = {self.behaviour: {"clients": list(clients), **options}}
        return config.with_settings({"behaviours": table})


def _all(*deviations: Deviation) -> dict[str, Deviation]:
    return {deviation.name: deviation for deviation in deviations}


DEVIATIONS: Mapping[str, Deviation] = _all(
    Deviation("cost-x0.1", "cost-liar", {"factor": 0.1}),
    Deviation("cost-x0.5", "cost-liar", {"factor": 0.5}),
    Deviation("cost-x2", "cost-liar", {"factor": 2.0}),
    Deviation("cost-x10", "cost-liar", {"factor": 10.0}),
    Deviation("cost-best", "cost-liar", {"factor": BEST}),
    Deviation("imitate-x0.5", "imitator", {"factor": 0.5}),
    Deviation("imitate-x2", "imitator", {"factor": 2.0}),
    Deviation("free-ride", "free-rider", {"sends": "received"}),
    Deviation("free-ride-noise", "free-rider", {"sends": "noise"}),
    Deviation("free-ride-repeat", "free-rider", {"sends": "repeat"}),
    Deviation("one-epoch", "epoch-faker", {"done": 1, "claimed": "honest"}),
    Deviation("claim-most", "epoch-faker", {"done": "honest", "claimed": MOST_ALLOWED}),
    Deviation("half-data", "part-trainer", {"share": 0.5}),
    Deviation("samples-x10", "data-inflater", {"factor": 10.0}),
    Deviation("loss-x10", "loss-inflater", {"factor": 10.0}),
    Deviation("sybil", "sybil", partners=1),
    Deviation("drop", "dropper", {"rate": 0.5}),
)
"""What is tried by default: clients that look after themselves."""

ATTACKS: Mapping[str, Deviation] = _all(
    Deviation("sign-flip", "sign-flip"),
    Deviation("scaled-update", "scaled-update"),
    Deviation("label-flip", "label-flip"),
    Deviation("gaussian-noise", "gaussian-noise"),
)
"""What clients do that want to harm others, rather than to gain."""

GROUPS: Mapping[str, Sequence[Deviation]] = {
    "default": tuple(DEVIATIONS.values()),
    "attacks": tuple(ATTACKS.values()),
    "all": (*DEVIATIONS.values(), *ATTACKS.values()),
}


def choose_deviations(names: Iterable[str] | None = None) -> tuple[Deviation, ...]:
    """Return deviations by name: one of ours, a group of them, or a behaviour with its options.

    Raises
    ------
    ConfigError
        If there is no such deviation or behaviour, or an option of it cannot be used.

    Examples
    --------
    >>> [d.name for d in choose_deviations(["cost-best", "cost-liar:factor=3"])]
    ['cost-best', 'cost-liar-factor=3']
    """
    found: dict[str, Deviation] = {}
    for name in ["default"] if names is None else names:
        known = {**DEVIATIONS, **ATTACKS}
        chosen = GROUPS.get(name) or [known.get(name) or _of_behaviour(name)]
        found |= {deviation.name: deviation for deviation in chosen}
    if not found:
        raise ConfigError("an audit needs at least one deviation.")
    return tuple(found.values())


def _of_behaviour(text: str) -> Deviation:
    """Return the deviation that a text such as ``free-rider:sends=noise`` describes."""
    behaviour, *given = text.split(":")
    if behaviour not in BEHAVIOURS:
        names = [*GROUPS, *DEVIATIONS, *ATTACKS, *BEHAVIOURS]
        raise ConfigError(unknown("deviation", behaviour, dict.fromkeys(names)))
    options: JsonTable = {}
    for entry in given:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise ConfigError(
                f"an option of a deviation is written as {behaviour}:OPTION=VALUE, not {entry!r}."
            )
        options[key] = parse_value(value)
    name = check_folder_name("-".join([behaviour, *given]), "a deviation")
    deviation = Deviation(name, behaviour, options, int(behaviour == "sybil"))
    if not deviation.needs_best_report and options.get("claimed") != MOST_ALLOWED:
        [read] = read_assignments({behaviour: {"clients": [0], **options}})
        BEHAVIOURS.bind(read.behaviour)()
    return deviation


# Which clients are audited: by number, or by the place of their true cost among all.

_ROLES: Mapping[str, Callable[[int], int]] = {
    "cheapest": lambda clients: 0,
    "median": lambda clients: clients // 2,
    "dearest": lambda clients: clients - 1,
}
"""Clients by their place among all in the order of their true costs."""


def _choose_subjects(given: Sequence[str | int] | None, costs: Floats) -> dict[str, int]:
    """Return the clients that are audited, by what they are called; one may have two names.

    Raises
    ------
    ConfigError
        If a client does not exist.

    Examples
    --------
    >>> _choose_subjects(None, np.array([0.3, 0.1, 0.2]))
    {'cheapest': 1, 'median': 2, 'dearest': 0}
    >>> _choose_subjects(["2", "dearest"], np.array([0.3, 0.1, 0.2]))
    {'2': 2, 'dearest': 0}
    """
    order = np.argsort(costs, kind="stable")
    found: dict[str, int] = {}
    for name in given or _ROLES:
        chosen = {str(name): -1}
        if name == "all":
            chosen = {str(client): client for client in range(costs.size)}
        elif name in _ROLES:
            chosen = {str(name): int(order[_ROLES[str(name)](costs.size)])}
        elif str(name).isascii() and str(name).isdigit():
            chosen = {str(int(name)): int(name)}
        if not all(0 <= client < costs.size for client in chosen.values()):
            raise ConfigError(
                f"there is no client {quoted(name)} to audit: use a number from 0 to "
                f"{costs.size - 1}, all, {', '.join(list(_ROLES)[:-1])} or {list(_ROLES)[-1]}."
            )
        found |= chosen
    return found


# What is audited: a configuration, a finished run, or every setting of a suite.

_DEFAULT_SEEDS = 3

DEFAULT_AUDIT: TableView = {
    "rounds": 30,
    "per_round": 3,
    "data": {"dataset": "digits", "split": "shards", "clients": 10},
    "strategy": {"name": "flamma"},
    "costs": {"kind": "lognormal", "value": 0.1, "spread": 0.5},
}
"""What is audited if nothing is named: the embedded digits, two shards for each client."""

_DATA_DECIDE = ("data", "per_round")
"""What of it data of one's own decide."""


@dataclass(frozen=True)
class AuditSource:
    """What is audited, and the finished honest runs that need not be done again.

    Attributes
    ----------
    name : str
        Names the default directory.
    cells : tuple of Cell
        An honest run for each strategy, dataset, split and seed.
    finished : mapping of Path to Evidence
        Honest runs that are there already, by the folder of their cell.
    out : Path
        The default directory.
    own : UserObjects
        Data and a model of the user's own, where the configurations name none.
    """

    name: str
    cells: tuple[Cell, ...]
    out: Path
    finished: Mapping[Path, Evidence] = field(default_factory=dict)
    own: UserObjects = NO_OBJECTS

    def __post_init__(self) -> None:
        for cell in self.cells:
            config = cell.config
            if config.behaviours:
                raise ConfigError(
                    "an audit begins with honest clients, but this configuration has behaviours "
                    "already: take out the table behaviours."
                )
            refuse_losses(config.evaluation.metric, "an audit tells changes of a score")
            if not config.engine.controls_clients:
                raise ConfigError(
                    f"an audit decides what clients do, which engine {config.engine.name} does not "
                    f"allow: use the local engine."
                )
            if lacking := self.own.lacks(config):
                raise ConfigError(
                    f"an audit does its runs anew, and {lacking} of your own cannot be loaded by "
                    f"name: audit it from Python, {lacking}=..., or register them, see "
                    f"docs/how-to/bring-your-own.md."
                )


def read_source(
    given: str | Path | Suite | Config | TableView | None,
    settings: TableView | None = None,
    seeds: int | None = None,
    strategies: Sequence[str] | None = None,
    data: Any = None,
    group: Any = None,
    own: UserObjects = NO_OBJECTS,
) -> AuditSource:
    """Return what a file, a directory, a suite's name or a configuration asks to audit.

    Parameters
    ----------
    given : path, name, Suite, Config or mapping, optional
        The directory of a finished run, the TOML file of a configuration or a suite, or the name
        of a suite; by default :data:`DEFAULT_AUDIT`.
    settings : mapping, optional
        Dotted settings that are put over it.
    seeds : int, optional
        How many seeds, from that of the configuration on.
    strategies : sequence of str, optional
        Names of strategies or of families, in place of those of a suite.
    data, group : any, optional
        Data of one's own, and the client of each sample.
    own : UserObjects
        A model of one's own.

    Raises
    ------
    FlammaError
        If it is none of these, or cannot be audited.
    """
    changes = dict(settings or {})
    seeds = None if seeds is None else int(seeds)
    if given is not None and not isinstance(given, str | Path | Suite | Config | Mapping):
        raise ConfigError(
            f"source must be a run, a suite, a configuration or the path of one, not "
            f"{quoted(given)}."
        )
    if seeds is not None and seeds < 1:
        raise ConfigError(Key("seeds"), f" must be at least 1, not {seeds}.")
    if isinstance(given, str | Path):
        given = _suite_at(given) or Path(given)
    if isinstance(given, Suite):
        lists = {"strategies": strategies}
        suite, own = asked_suite(given, seeds, changes, lists, data, group, own)
        out = Path("out") / f"audit-{suite.name}"
        return AuditSource(suite.name, tuple(suite.cells()), out, own=own)
    if strategies:
        raise ConfigError(
            "only a suite has several strategies to choose from: name one, or set ",
            Key("strategy.name"),
            ".",
        )
    if isinstance(given, Path):
        if given.is_dir():
            if data is not None:  # read as the configuration of the run says
                file = given / CONFIG
                tables = read_config(file, regular=True) if file.exists() else {}
                own = replace(own, data=gathered_for(tables, data, group), known={})
            return _of_run(given, changes, seeds, own)
        chosen, own = configured(read_config(given), changes, data, group, own)
        return _of_config(chosen, seeds, own, given.stem)
    has_file = data is not None or "data.file" in changes
    usual = {k: v for k, v in DEFAULT_AUDIT.items() if not has_file or k not in _DATA_DECIDE}
    chosen, own = configured(given or usual, changes, data, group, own)
    return _of_config(chosen, seeds, own)


def _suite_at(given: str | Path) -> Suite | None:
    """Return the suite of a name or a file; None for a configuration or a run."""
    if given in suite_names():
        return read_suite(given)
    path = Path(given)
    if path.is_dir():
        return None
    if not os.path.exists(path) and path.suffix != ".toml":
        raise ConfigError(unknown("run, configuration or suite", str(given), suite_names()))
    is_suite = {*KINDS, "extends", "overrides", "run", "settings"} & read_config(path).keys()
    return read_suite(path) if is_suite else None


def _check_data(source: AuditSource, data_dir: Path | None = None) -> None:
    """Refuse a finished run whose data are gone, or are not the data that it was run with.

    Raises
    ------
    FlammaError
        With what is missing.
    """
    from flamma.experiments.run import build_data

    for cell in source.cells:
        evidence = source.finished.get(cell.folder)
        if evidence is None:
            continue
        try:
            own = source.own.federation(cell.config)
            data = build_data(cell.config, data_dir) if own is None else own
        except DataError as error:
            raise DataError(
                f"{evidence.path} cannot be audited without its data: {error}"
            ) from None
        if not np.array_equal(data.samples, evidence.population.samples):
            raise DataError(
                f"{evidence.path} cannot be audited: {cell.dataset} is split otherwise now than it "
                f"was for this run."
            )


def _of_config(config: Config, seeds: int | None, own: UserObjects, name: str = "") -> AuditSource:
    data = config.data
    name = name or f"{config.strategy.name}-{data.title}-{data.split.name}"
    out = Path("out") / f"audit-{name}"
    return AuditSource(name, _cells(config, seeds or _DEFAULT_SEEDS), out, own=own)


def _of_run(path: Path, changes: TableView, seeds: int | None, own: UserObjects) -> AuditSource:
    if not (path / CONFIG).exists():
        raise RunError(f"{path} holds no run to audit: there is no {CONFIG} in it.")
    run = Run.load(path)
    chosen = run.config.with_settings(changes)
    trainer = run.about.get("trainer")  # another one would round differently
    config = chosen.with_settings({"training.trainer": trainer} if trainer else {})
    cells = _cells(config, seeds or 1)
    source = AuditSource(path.name, cells, path / "audit", own=own)
    evidence = read_evidence(path)
    same = comparable(chosen) == comparable(run.config)
    finished = {cells[0].folder: evidence} if same else {}
    return replace(source, finished=finished)


def _cells(config: Config, seeds: int) -> tuple[Cell, ...]:
    data, name = config.data, config.strategy.name
    return tuple(
        Cell(data.dataset, data.split.name, name, seed, config.with_settings({"seed": seed}))
        for seed in range(config.seed, config.seed + seeds)
    )


# The runs of an audit: the honest ones, and those in which one client deviates.

_COUNTERFACTUALS = "counterfactuals"
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


def _count_counterfactuals(
    cell: Cell, clients: Sequence[str | int] | None, deviations: Sequence[Deviation]
) -> int:
    """Return how many counterfactual runs a cell has, or refuse what is asked for."""
    count = cell.config.data.clients
    for deviation in deviations:
        if deviation.partners >= count:
            raise ConfigError(f"{deviation.name} needs {deviation.partners + 1} clients.")
    return len(_choose_subjects(clients, np.zeros(count))) * len(deviations)


def _plan_counterfactuals(
    cell: Cell,
    honest: Evidence,
    clients: Sequence[str | int] | None,
    deviations: Sequence[Deviation],
) -> Iterator[_Counterfactual]:
    """Yield a run for every audited client of a cell and every deviation."""
    assert honest.population.costs is not None
    config, population = cell.config, RunFolder(honest.path).text(POPULATION)
    for subject, client in _choose_subjects(clients, honest.population.costs).items():
        factor: float | None = None
        if any(deviation.needs_best_report for deviation in deviations):
            factor = best_cost_factor(config, honest, client)
        for deviation in deviations:
            group = deviation.group(client, honest.population.clients)
            job = RunJob(
                _folder(cell) / deviation.name / f"client-{client}",
                deviation.applied(config, group, factor),
                f"{_audit_label(cell)} client {client} {deviation.name}",
                population,
                is_kept_small=True,
            )
            yield _Counterfactual(cell, honest, subject, client, group, deviation, job)


def _find_gain(planned: _Counterfactual, folder: Path) -> Finding:
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


def _audited_cases(
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
        baselines = []
        for cell, run in zip(cells, runs, strict=True):
            inside = run.path.is_relative_to(folder)
            path = str(run.path.relative_to(folder) if inside else run.path)
            clients = range(run.population.clients)
            # All are honest in this run, so those that the server suspected are suspected wrongly.
            flagged = tuple(client for client in clients if run.suspicions([client]))
            baselines.append(Baseline(cell.seed, path, run.params_sha256, flagged))
        config = cells[0].config
        yield AuditedCase(
            *place,
            config.rounds,
            config.data.clients,
            any(run.is_paid for run in runs),
            tuple(baselines),
            findings,
        )


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _place(cell: Cell) -> tuple[str, str, str]:
    return cell.dataset, cell.split, cell.strategy


def _audit_label(cell: Cell) -> str:
    """Return what people are told that a cell is."""
    return f"{cell.strategy} seed {cell.seed}"


def _folder(cell: Cell) -> Path:
    return Path(_COUNTERFACTUALS).joinpath(*_place(cell), f"seed-{cell.seed}")


def _honest_folder(cell: Cell) -> Path:
    """Return where the honest run of a cell is, under the audit's directory."""
    return _folder(cell) / "honest"


def audit(
    source: AuditSource | Run | str | Path | Suite | Config | TableView | None = None,
    *,
    deviations: Iterable[str] | str | None = None,
    clients: Sequence[str | int] | str | None = None,
    strategies: Sequence[str] | str | None = None,
    seeds: int | None = None,
    data: Any = None,
    model: Any = None,
    rounds: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
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
    deviations : iterable of str, or str, optional
        What is tried, see :func:`flamma.experiments.audit.choose_deviations`.
    clients : sequence, or str, optional
        Whom to audit: numbers of clients, ``all``, or roles, by default ``cheapest``, ``median``
        and ``dearest``, by true cost. How many there are is ``data__clients``.
    strategies : sequence of str, or str, optional
        In place of those of a suite.
    seeds : int, optional
        How many, from the configuration's own on: three, of a run its own, of a suite the suite's.
    data, model : any, optional
        Your own data and model, as of :func:`flamma.run`.
    rounds : int, optional
        How many rounds there are.
    out : path, optional
        The directory of the audit; a temporary one if not given, as of :func:`flamma.run`.
    progress : bool, optional
        Whether a progress bar is shown; by default in terminals and notebooks.
    on_progress : callable, optional
        Called whenever a round has finished somewhere.
    **settings
        Any other setting of all runs, as of :func:`flamma.run`: ``strategy="flamma"``,
        ``dataset="mnist"``, ``learning_rate=0.1``, ``costs__kind="lognormal"``. ``processes`` is
        how many runs go on at the same time (the findings do not depend on it), and ``data_dir``
        where datasets are kept.
    """
    given = dict(locals())
    with naming_settings(partial(keyword_of, taken=("clients",))):
        if isinstance(clients, int):
            raise ConfigError(
                "clients= names whom to audit, such as [0, 3] or 'dearest': how many there are is ",
                Key("data.clients"),
                ".",
            )
        asked = Asked.of(given, "processes", "data_dir", taken=("clients",))
        audited = names_given("clients", clients, numbers=True)
        tried, named = names_given("deviations", deviations), names_given("strategies", strategies)
        chosen = _source(source, asked, seeds, named)
        path, scratch = output_directory(out, "audit")
        with ProgressBar(wants_bar(progress), 1, "rounds") as bar:

            def told(news: Progress) -> None:
                bar.on_progress(news)
                if on_progress is not None:
                    on_progress(news)

            processes, data_dir = asked.further.values()
            found = audit_source(chosen, path, tried, audited, processes, told, data_dir)
    return replace(found, scratch=scratch)


def _source(
    source: AuditSource | Run | str | Path | Suite | Config | TableView | None,
    asked: Asked,
    seeds: int | None,
    strategies: Sequence[str] | None,
) -> AuditSource:
    """Return what is audited; a run brings its own model along."""
    if isinstance(source, AuditSource):
        return source
    own = asked.objects
    if isinstance(source, Run):
        own = replace(own, model=own.model or source.known_model)
        source = source.path
    return read_source(source, asked.settings, seeds, strategies, asked.data, asked.group, own)


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
    check_processes(processes)
    tried = choose_deviations(deviations)
    sizes = {cell.folder: _count_counterfactuals(cell, clients, tried) for cell in source.cells}
    check_runnable(
        [
            cell.config
            for cell in source.cells
            if cell.folder not in source.finished
            and not RunFolder(folder / _honest_folder(cell)).exists
        ],
        source.own,
        data_dir,
    )
    _check_data(source, data_dir)
    guard = RunFolder(folder)
    guard.lock()
    try:
        to_do = [cell for cell in source.cells if cell.folder not in source.finished]
        first = [RunJob(_honest_folder(c), c.config, f"{_audit_label(c)} honest") for c in to_do]
        rounds = sum(c.config.rounds * sizes[c.folder] for c in source.cells)
        rounds_first = sum(job.config.rounds for job in first)
        whole = Progress(0, rounds_first + rounds, 0, len(first) + sum(sizes.values()), "")
        part = _within(whole, on_progress)
        failed = do_jobs(first, folder, processes, part, data_dir, source.own)
        honest = {
            cell.folder: source.finished.get(cell.folder)
            or read_evidence(folder / _honest_folder(cell))
            for cell in source.cells
            if str(_honest_folder(cell)) not in failed
        }
        whole = replace(whole, rounds_done=rounds_first, runs_done=len(first))
        if on_progress is not None:
            on_progress(replace(whole, latest="looking for the best lies"))
        planned = [
            counterfactual
            for cell in source.cells
            if cell.folder in honest
            for counterfactual in _plan_counterfactuals(cell, honest[cell.folder], clients, tried)
        ]
        # A client that is audited under two names has one run.
        second = list({c.job.folder: c.job for c in planned}.values())
        rounds = rounds_first + sum(job.config.rounds for job in second)
        whole = replace(whole, rounds=rounds, runs=len(first) + len(second))
        part = _within(whole, on_progress)
        failed |= do_jobs(second, folder, processes, part, data_dir, source.own)
        found = {c: _find_gain(c, folder) for c in planned if str(c.job.folder) not in failed}
        if not found:
            raise RunError(f"every run failed, such as {next(iter(failed.items()))}.")
        result = Audit(source.name, tuple(_audited_cases(source, honest, found, folder)), failed)
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
