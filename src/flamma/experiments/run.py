"""One run, from a configuration to a directory; and a directory back to a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import RunError
from flamma.experiments.config import OWN, Config, make_config, read_config, with_settings
from flamma.experiments.engine import Assignment, OnRound
from flamma.experiments.folder import ABOUT, CLIENTS, CONFIG, RunFolder, free_folder
from flamma.experiments.manifest import Manifest
from flamma.experiments.scores import ScoreTable, read_score_table
from flamma.experiments.summary import Summary, summarise_run
from flamma.records import RoundRecord

if TYPE_CHECKING:
    from flamma.data.federated import FederatedData
    from flamma.tasks.own import OwnLoss, OwnMetric

DEPLOYMENT = "deployment.json"
"""The server of a deployed run and Flower's id of it; version 0.1 names the server only there."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory, finished or not.

    ``known_scores`` are the clients' scores, where they have been read already.
    """

    path: Path
    config: Config
    history: list[RoundRecord]
    about: dict[str, Any]
    problems: tuple[str, ...] = ()
    known_scores: ScoreTable | None = None

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run directory; damaged records are left out and named in ``problems``.

        Raises
        ------
        RunError
            If there is no run, or its configuration is not the one it was begun with.
        """
        folder = RunFolder(Path(path))
        if not folder.exists:
            raise RunError(f"{path} holds no run: there is no {CONFIG} in it.")
        config = make_config(_tables(folder))
        manifest = Manifest.read(folder.path)
        if manifest is not None:
            manifest.check(folder.path)
        history, problems = folder.rounds(), folder.read_rounds()[1]
        about = folder.read_json(ABOUT)
        if not about and history:
            problems.append(f"{ABOUT} is missing or damaged")
        run = cls(folder.path, config, history, about, tuple(problems))
        if run.finished and not run.has_last_round:
            lost = "rounds.jsonl ends before the last round"
            return replace(run, problems=(*run.problems, lost))
        return run

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, even if the record of one is damaged."""
        return self.has_last_round or "params_sha256" in self.about

    @property
    def has_last_round(self) -> bool:
        """Whether the last round is recorded."""
        return bool(self.history) and self.history[-1].round >= self.config.rounds

    @property
    def params_sha256(self) -> str | None:
        """The SHA-256 of the final weights; None before the end."""
        return self.about.get("params_sha256") if self.finished else None

    @cached_property
    def scores(self) -> ScoreTable:
        """The accuracies of single clients; those that cannot be read are left out."""
        if self.known_scores is not None:
            return self.known_scores
        text = RunFolder(self.path).text(CLIENTS)
        return read_score_table(text, self.history, [], self.config.data.clients)

    def summary(self) -> Summary:
        """Return every metric of the run, those of its last round, and its totals."""
        return summarise_run(self.history, self.config.data.clients)


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    out: str | Path | None = None,
    data: FederatedData | None = None,
    model: Callable[..., Any] | None = None,
    loss: OwnLoss | None = None,
    metric: OwnMetric | None = None,
    on_round: OnRound | None = None,
    data_dir: Path | None = None,
    **settings: Any,
) -> Run:
    """Run an experiment and return it.

    Parameters
    ----------
    config : Config, mapping, or path of a TOML file
        What to run; the rest is at its defaults.
    out : path, optional
        The run directory; a new one under ``runs/`` if not given.
    data : FederatedData, optional
        Your own data instead of a named dataset.
    model : callable, optional
        Your own ``(shape, classes) -> torch.nn.Module`` instead of a named model.
    loss : callable, optional
        Your own ``(outputs, targets) -> losses``, tensors all: one loss per sample, at least 0.
    metric : callable, optional
        Your own ``(outputs, targets) -> number`` of the arrays of one client; 1 is told as 100%,
        and more is better.
    on_round : callable, optional
        Called with every finished round's record.
    data_dir : Path, optional
        Where datasets are kept.
    **settings
        Single options over the configuration: ``rounds=5``, or with two underscores for a dot,
        ``strategy__mu=0.1``.

    Raises
    ------
    FlammaError
        If the configuration cannot work, or the directory holds another run.
    """
    if data is not None:
        settings |= {"data.dataset": OWN, "data.clients": data.clients}
    if model is not None:
        settings |= {"model.name": OWN}
    if loss is not None:
        settings |= {"training.loss": OWN}
    if metric is not None:
        settings |= {"evaluation.metric": OWN}
    chosen = _configured(config, settings)
    folder = RunFolder(Path(out) if out is not None else default_folder(chosen))
    folder.check_free()
    return _execute(Assignment(chosen, folder, data, model, on_round, data_dir, True, loss, metric))


def resume(
    path: str | Path,
    *,
    data: FederatedData | None = None,
    model: Callable[..., Any] | None = None,
    loss: OwnLoss | None = None,
    metric: OwnMetric | None = None,
    on_round: OnRound | None = None,
    data_dir: Path | None = None,
    processes: int | None = None,
) -> Run:
    """Go on with an interrupted run from its last checkpoint; a finished one is returned as is.

    A run of your own data, model, loss or metric needs them again; data that sites hold are not
    yours.
    """
    before = Run.load(path)
    if before.has_last_round and before.params_sha256:
        return before
    config = before.config
    for kind, given, name in (
        ("data", data, config.data.dataset),
        ("model", model, config.model.name),
        ("loss", loss, config.training.loss),
        ("metric", metric, config.evaluation.metric),
    ):
        at_clients = kind == "data" and config.engine.clients_hold_data
        if name == OWN and given is None and not at_clients:
            raise RunError(f"{path} is a run of your own {kind}: resume it from Python, {kind}=...")
    settings: dict[str, Any] = {}
    if trainer := before.about.get("trainer"):  # the other one would round differently
        settings["training.trainer"] = trainer
    if processes is not None:
        settings["engine.processes"] = processes
    config = config.with_settings(settings)
    folder = RunFolder(Path(path))
    return _execute(
        Assignment(config, folder, data, model, on_round, data_dir, loss=loss, metric=metric)
    )


def _execute(assignment: Assignment) -> Run:
    assignment.config.engine.execute(assignment)
    return Run.load(assignment.folder.path)


def _configured(
    config: Config | Mapping[str, Any] | str | Path | None, settings: Mapping[str, Any]
) -> Config:
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    if isinstance(config, Config):
        tables = config.as_tables()
    elif isinstance(config, Mapping):
        tables = dict(config)
    else:
        tables = {} if config is None else read_config(Path(config))
    return make_config(with_settings(tables, dotted))


def default_folder(config: Config) -> Path:
    """Return the directory of a run that none was named for."""
    data = config.data
    name = f"{config.strategy.name}-{data.dataset}-{data.split.name}-seed{config.seed}"
    return free_folder(Path("runs"), name)


def _tables(folder: RunFolder) -> dict[str, Any]:
    """Return the configuration of a run; one that version 0.1 deployed names no such engine."""
    tables = read_config(folder.path / CONFIG)
    if server := folder.read_json(DEPLOYMENT).get("server"):
        return with_settings(tables, {"engine.name": "deployment", "engine.server": server})
    return tables
