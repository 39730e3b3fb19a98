"""One run, from a configuration to a directory; and a directory back to a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import RunError
from flamma.experiments.callbacks.base import Callback, OnRound
from flamma.experiments.callbacks.dispatch import Callbacks
from flamma.experiments.callbacks.recorded import resumed_callbacks
from flamma.experiments.config import OWN, Config, make_config, read_config, with_settings
from flamma.experiments.engine import Assignment
from flamma.experiments.folder import ABOUT, CLIENTS, CONFIG, RunFolder, free_folder
from flamma.experiments.given import given_model
from flamma.experiments.manifest import Manifest
from flamma.experiments.scores import ScoreTable, read_score_table
from flamma.experiments.stopped import StoppedEarly, read_stopped
from flamma.experiments.summary import Summary, summarise_run
from flamma.records import RoundRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from flamma.data.federated import FederatedData

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
        """Whether all rounds are done, even if the record of one is damaged, or it was stopped."""
        return self.has_last_round or "params_sha256" in self.about

    @property
    def has_last_round(self) -> bool:
        """Whether the last round is recorded: that after which it was stopped, if it was."""
        last = self.config.rounds if self.stopped is None else self.stopped.round
        return bool(self.history) and self.history[-1].round >= last

    @property
    def stopped(self) -> StoppedEarly | None:
        """After which round a callback ended the run, and why; None if none did."""
        return read_stopped(self.about)

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
    data: FederatedData | None = None,
    model: Any = None,
    start: Any = None,
    freeze: str | Sequence[str] | None = None,
    on_round: OnRound | None = None,
    callbacks: Iterable[Callback] = (),
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
    model : torch.nn.Module, class, callable or str, optional
        Your own model: a module, which is copied and whose weights are the first ones; a class or
        a function that makes one, called with the shape of a sample and the number of classes if
        it takes them; or a model's name.
    start : path, mapping or Run, optional
        Weights to begin with: a safetensors or npz file, a state dict, or a finished run.
    freeze : str or sequence of str, optional
        Parameters that are not trained, by name or by patterns such as ``features.*``.
    on_round : callable, optional
        Called with every finished round's record; it may raise ``flamma.StopRun``.
    callbacks : iterable of Callback
        What else hears of the run: ``flamma.EarlyStopping()``, trackers, or your own.
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
    given = given_model(model, start, freeze)
    chosen = _configured(config, settings | dict(given.settings))
    folder = RunFolder(Path(out) if out is not None else default_folder(chosen))
    folder.check_free()
    told = Callbacks(callbacks, on_round)
    return _execute(
        Assignment(chosen, folder, data, given.make, told, data_dir, begins=True, start=given.start)
    )


def resume(
    path: str | Path,
    *,
    data: FederatedData | None = None,
    model: Any = None,
    on_round: OnRound | None = None,
    callbacks: Iterable[Callback] = (),
    data_dir: Path | None = None,
    processes: int | None = None,
    past_stop: bool = False,
) -> Run:
    """Go on with an interrupted run from its last checkpoint; a finished one is returned as is.

    A run of your own data or model needs them again; data that sites hold are not yours. The
    callbacks that have a name, as ``EarlyStopping`` has, are taken up again by themselves. A run
    that a callback has stopped is finished; ``past_stop`` goes on with it to its last round,
    without that callback unless it is given again.
    """
    make = given_model(model).make
    before = replace(Run.load(path), known_model=make)
    stopped = before.stopped
    if before.has_last_round and before.params_sha256 and not (stopped and past_stop):
        return before
    config = before.config
    for kind, given, name in (
        ("data", data, config.data.dataset),
        ("model", model, config.model.name),
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
    heard = Callbacks(callbacks, on_round)
    told = Callbacks(resumed_callbacks(folder.path, heard, stopped.by if stopped else ""))
    return _execute(Assignment(config, folder, data, make, told, data_dir))


def _execute(assignment: Assignment) -> Run:
    path = assignment.folder.path
    with assignment.callbacks.until_end(lambda: Run.load(path)):
        assignment.config.engine.execute(assignment)
    return replace(Run.load(path), known_model=assignment.model)


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
