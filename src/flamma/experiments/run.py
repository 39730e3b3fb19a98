"""One run, from a configuration to a directory; and a directory back to a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import RunError
from flamma.experiments.config import OWN, Config, make_config, read_config, with_settings
from flamma.experiments.engine import Assignment, OnRound
from flamma.experiments.folder import ABOUT, CLIENTS, CONFIG, RunFolder, free_folder
from flamma.experiments.given import given_model
from flamma.experiments.manifest import Manifest
from flamma.experiments.scores import ScoreTable, read_score_table
from flamma.experiments.summary import Summary, summarise_run
from flamma.records import RoundRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from flamma.data.federated import FederatedData
    from flamma.tasks.own import OwnLoss, OwnMetric

DEPLOYMENT = "deployment.json"
"""The server of a deployed run and Flower's id of it; version 0.1 names the server only there."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory, finished or not.

    ``known_scores`` are the clients' scores, where they have been read already, and
    ``known_model`` makes the user's own model, where it was given.
    """

    path: Path
    config: Config
    history: list[RoundRecord]
    about: dict[str, Any]
    problems: tuple[str, ...] = ()
    known_scores: ScoreTable | None = None
    known_model: Callable[..., Any] | None = None

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

    def model(
        self,
        *,
        model: Any = None,
        client: int | None = None,
        round: int | None = None,  # noqa: A002
    ) -> nn.Module:
        """Return the trained module, in evaluation mode.

        Parameters
        ----------
        model : torch.nn.Module, class, callable or str, optional
            The model of the run, where it is your own and this object is not what
            :func:`flamma.run` returned.
        client : int, optional
            Whose own model it is, of strategies that give clients their own.
        round : int, optional
            After which round, if its checkpoint is kept; the last one by default.

        Raises
        ------
        FlammaError
            If there is no such model.
        """
        from flamma.experiments.trained import trained_module

        return trained_module(self, model, client, round)

    def save(
        self,
        path: str | Path,
        *,
        model: Any = None,
        client: int | None = None,
        round: int | None = None,  # noqa: A002
    ) -> Path:
        """Write the trained weights by name (.safetensors, .npz), or the model (.onnx).

        The parameters are those of :meth:`model`; weights need no ``model``.
        """
        from flamma.experiments.trained import save_trained

        return save_trained(self, path, model, client, round)

    def predict(self, x: Any, *, model: Any = None, client: int | None = None) -> NDArray[Any]:
        """Return what the trained model says of each sample.

        These are the labels as they were given with the data, or numbers for a regression. The
        parameters are those of :meth:`model`.
        """
        from flamma.experiments.trained import predictions

        return predictions(self, x, model, client)

    def predict_proba(
        self, x: Any, *, model: Any = None, client: int | None = None
    ) -> NDArray[Any]:
        """Return the probability of each class for each sample."""
        from flamma.experiments.trained import predictions

        return predictions(self, x, model, client, shares=True)


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    out: str | Path | None = None,
    data: Any = None,
    target: str | None = None,
    group: Any = None,
    task: str | None = None,
    model: Any = None,
    start: Any = None,
    freeze: str | Sequence[str] | None = None,
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
    data : any, optional
        Your own data instead of a named dataset, in any form that
        :func:`~flamma.data.own.federated_from` takes: arrays, a frame, a torch ``Dataset``, a file.
    target : str, optional
        The column of your own table that is predicted.
    group : str or array, optional
        The column that names the client of each sample, or one value for each sample.
    task : str, optional
        What is learned of your own data: ``"regression"`` if not classification.
    model : torch.nn.Module, class, callable or str, optional
        Your own model: a module, which is copied and whose weights are the first ones; a class or
        a function that makes one, called with the shape of a sample and the number of classes if
        it takes them; or a model's name.
    start : path, mapping or Run, optional
        Weights to begin with: a safetensors or npz file, a state dict, or a finished run.
    freeze : str or sequence of str, optional
        Parameters that are not trained, by name or by patterns such as ``features.*``.
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
    given = given_model(model, start, freeze)
    settings |= given.settings
    if loss is not None:
        settings |= {"training.loss": OWN}
    if metric is not None:
        settings |= {"evaluation.metric": OWN}
    for key, value in (("target", target), ("group", group), ("task", task)):
        if isinstance(value, str):
            settings[f"data.{key}"] = value
    chosen, data = configured(config, settings, data, group)
    folder = RunFolder(Path(out) if out is not None else default_folder(chosen))
    folder.check_free()
    return _execute(
        Assignment(
            chosen,
            folder,
            data,
            given.make,
            on_round,
            data_dir,
            begins=True,
            start=given.start,
            loss=loss,
            metric=metric,
        )
    )


def resume(
    path: str | Path,
    *,
    data: Any = None,
    group: Any = None,
    model: Any = None,
    loss: OwnLoss | None = None,
    metric: OwnMetric | None = None,
    on_round: OnRound | None = None,
    data_dir: Path | None = None,
    processes: int | None = None,
) -> Run:
    """Go on with an interrupted run from its last checkpoint; a finished one is returned as is.

    A run of your own data, model, loss or metric needs them again, and ``group`` if that was an
    array; a file of data is read again, and data that sites hold are not yours.
    """
    make = given_model(model).make
    before = replace(Run.load(path), known_model=make)
    if before.has_last_round and before.params_sha256:
        return before
    config = before.config
    for kind, given, name in (
        ("data", data, config.data.dataset),
        ("model", model, config.model.name),
        ("loss", loss, config.training.loss),
        ("metric", metric, config.evaluation.metric),
    ):
        elsewhere = kind == "data" and (config.engine.clients_hold_data or config.data.file)
        if name == OWN and given is None and not elsewhere:
            raise RunError(f"{path} is a run of your own {kind}: resume it from Python, {kind}=...")
    settings: dict[str, Any] = {}
    if trainer := before.about.get("trainer"):  # the other one would round differently
        settings["training.trainer"] = trainer
    if processes is not None:
        settings["engine.processes"] = processes
    config = config.with_settings(settings)
    if data is not None:
        data = _federation(config, data, group)
    folder = RunFolder(Path(path))
    return _execute(
        Assignment(config, folder, data, make, on_round, data_dir, loss=loss, metric=metric)
    )


def _execute(assignment: Assignment) -> Run:
    assignment.config.engine.execute(assignment)
    return replace(Run.load(assignment.folder.path), known_model=assignment.model)


def configured(
    config: Config | Mapping[str, Any] | str | Path | None,
    settings: Mapping[str, Any],
    data: Any = None,
    group: Any = None,
) -> tuple[Config, FederatedData | None]:
    """Return what to run, and the federation of one's own data if there are any.

    ``settings`` are names and values that are put over the configuration. What own data decide,
    such as the number of clients, is filled in where nothing is asked for.
    """
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    if isinstance(data, str | Path):
        dotted["data.file"] = str(data)
    has_data = data is not None or "data.file" in dotted
    tables = with_settings(_tables_of(config, has_data), dotted)
    named = tables.get("data", {})
    if data is None and not (isinstance(named, Mapping) and named.get("file")):
        return make_config(tables), None
    from flamma.experiments.own_data import completed, federation_of, gathered_by

    source = data if data is not None else named["file"]
    own = gathered_by(source, tables.get("data", {}), group)
    chosen = make_config(completed(tables, own))
    return chosen, federation_of(chosen, own)


def _federation(config: Config, data: Any, group: Any = None) -> FederatedData:
    from flamma.experiments.own_data import federation_of, gathered_by

    return federation_of(config, gathered_by(data, config.data.as_table(), group))


def _tables_of(
    config: Config | Mapping[str, Any] | str | Path | None, has_data: bool
) -> dict[str, Any]:
    if isinstance(config, Config):
        from flamma.experiments.own_data import asked_for

        return asked_for(config) if has_data else config.as_tables()
    if isinstance(config, Mapping):
        return dict(config)
    return {} if config is None else read_config(Path(config))


def default_folder(config: Config) -> Path:
    """Return the directory of a run that none was named for."""
    data = config.data
    name = f"{config.strategy.name}-{data.title}-{data.split.name}-seed{config.seed}"
    return free_folder(Path("runs"), name)


def _tables(folder: RunFolder) -> dict[str, Any]:
    """Return the configuration of a run; one that version 0.1 deployed names no such engine."""
    tables = read_config(folder.path / CONFIG)
    if server := folder.read_json(DEPLOYMENT).get("server"):
        return with_settings(tables, {"engine.name": "deployment", "engine.server": server})
    return tables
