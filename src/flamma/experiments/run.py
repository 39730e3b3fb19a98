"""One run, from a configuration to a directory; and going on with one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import RunError
from flamma.experiments.asked import asked_settings, check_arguments, in_python_terms
from flamma.experiments.callbacks.base import Callback, OnRound
from flamma.experiments.callbacks.dispatch import Callbacks
from flamma.experiments.callbacks.recorded import resumed_callbacks
from flamma.experiments.config import OWN, Config, UnregisteredStrategy
from flamma.experiments.config_checks import check_installed
from flamma.experiments.engine import Assignment
from flamma.experiments.folder import FINITE, RunFolder, free_folder
from flamma.experiments.given import given_model
from flamma.experiments.own import NOTHING_OWN, ConfigSource, OwnParts, configured, gathered_for
from flamma.experiments.progress_bar import ProgressBar, wants_bar
from flamma.experiments.run_object import DEPLOYMENT as DEPLOYMENT
from flamma.experiments.run_object import Run as Run
from flamma.experiments.scratch import place_for
from flamma.experiments.setup import check_runnable
from flamma.experiments.standstill import check_trained
from flamma.records import RoundRecord
from flamma.training.augmentations import OWN_AUGMENTATION, Augment

if TYPE_CHECKING:
    from flamma.tasks.own import OwnLoss, OwnMetric


def run(
    config: ConfigSource = None,
    *,
    data: Any = None,
    target: str | None = None,
    group: Any = None,
    task: str | None = None,
    model: Any = None,
    start: Any = None,
    freeze: str | Sequence[str] | None = None,
    loss: OwnLoss | None = None,
    metric: OwnMetric | str | None = None,
    strategy: str | Mapping[str, Any] | None = None,
    dataset: str | None = None,
    split: str | None = None,
    clients: int | None = None,
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
    on_round: OnRound | None = None,
    callbacks: Iterable[Callback] = (),
    data_dir: Path | None = None,
    augment: Augment | str | Mapping[str, Any] | Sequence[Any] | None = None,
    **settings: Any,
) -> Run:
    """Run an experiment and return it.

    Parameters
    ----------
    config : Config, mapping, or path of a TOML file
        What to run; the rest is at its defaults.
    data : any, optional
        Your own data instead of a named dataset, in any form that
        :func:`~flamma.data.own.federated_from` takes: arrays, a frame, a torch ``Dataset``, a file.
    target : str, optional
        The column of your own table that is predicted.
    group : str or array, optional
        The column that names the client of each sample, or one value for each sample.
    task : str, optional
        What is learned of your own data: ``"regression"`` if not classification.
    model : torch.nn.Module, class, callable, str or mapping, optional
        Your own model: a module, which is copied and whose weights are the first ones; a class or
        a function that makes one, called with the shape of a sample and the number of classes if
        it takes them; or a model's name, or a table with its name and options.
    start : path, mapping or Run, optional
        Weights to begin with: a safetensors or npz file, a state dict, or a finished run.
    freeze : str or sequence of str, optional
        Parameters that are not trained, by name or by patterns such as ``features.*``.
    loss : callable, optional
        Your own ``(outputs, targets) -> losses``, tensors all: one loss per sample, at least 0.
    metric : callable or str, optional
        A metric's name, or your own ``(outputs, targets) -> number`` of the arrays of one client;
        1 is told as 100%, and more is better.
    strategy : str or mapping, optional
        A strategy's name, or a table with its name and options; ``flamma`` if not given.
    dataset, split : str, optional
        Names of ``flamma list``: the data, and how they are dealt to clients.
    clients, rounds, per_round : int, optional
        How many clients and rounds there are, and how many clients are selected in a round.
    seed : int, optional
        The seed of everything random.
    epochs, batch_size, learning_rate, momentum
        How a client trains; ``epochs`` of strategies that fix them.
    device : str, optional
        ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.
    processes : int, optional
        Worker processes; the results do not depend on it.
    out : path, optional
        The run directory. If not given, the run is in a temporary directory that is removed with
        the object that is returned.
    progress : bool, optional
        Whether a progress bar is shown; by default in terminals and notebooks.
    on_round : callable, optional
        Called with every finished round's record; it may raise ``flamma.StopRun``.
    callbacks : iterable of Callback
        What else hears of the run: ``flamma.EarlyStopping()``, trackers, or your own.
    data_dir : Path, optional
        Where datasets are kept.
    augment : callable, str, mapping or list, optional
        Your own ``(samples, rng) -> samples``, which changes the samples of a mini-batch at random
        before clients train on them; or the names of registered augmentations.
    **settings
        Any other option of a configuration, with two underscores for the dot:
        ``strategy__mu=0.1``.

    Raises
    ------
    FlammaError
        If the configuration cannot work, or the directory holds another run.
    DivergedError, EmptyRunError
        At the end, if the run diverged or nobody trained; its directory can be read all the same.
    """
    asked = dict(locals())
    with in_python_terms():
        check_arguments(asked)
        own, named = own_parts(model, start, freeze, loss, metric, augment)
        chosen, own = configured(config, named | asked_settings(asked), data, group, own)
        path, scratch = place_for(out, "run")
        with ProgressBar(wants_bar(progress), chosen.rounds, "rounds") as bar:

            def told(record: RoundRecord) -> None:
                bar.on_round(record)
                if on_round is not None:
                    on_round(record)

            done = run_config(
                chosen, path, own, on_round=told, callbacks=callbacks, data_dir=data_dir
            )
    return replace(done, scratch=scratch)


def own_parts(
    model: Any,
    start: Any = None,
    freeze: Any = None,
    loss: OwnLoss | None = None,
    metric: OwnMetric | str | None = None,
    augment: Augment | str | Mapping[str, Any] | Sequence[Any] | None = None,
) -> tuple[OwnParts, dict[str, Any]]:
    """Return what the user brings besides data, and the settings that name it."""
    table = {"model": dict(model)} if isinstance(model, Mapping) else {}
    given = given_model(None if table else model, start, freeze)
    settings: dict[str, Any] = {}
    if loss is not None:
        settings["training.loss"] = OWN
    if metric is not None:
        settings["evaluation.metric"] = metric if isinstance(metric, str) else OWN
    if augment is not None:
        settings["training.augmentation"] = OWN_AUGMENTATION if callable(augment) else augment
    own = OwnParts(
        None,
        given.make,
        given.start,
        loss,
        None if isinstance(metric, str) else metric,
        augment if callable(augment) else None,
    )
    return own, {**table, **given.settings, **settings}


def run_config(
    config: Config,
    path: Path,
    own: OwnParts = NOTHING_OWN,
    *,
    on_round: OnRound | None = None,
    callbacks: Iterable[Callback] = (),
    data_dir: Path | None = None,
) -> Run:
    """Carry out a run into a directory that must not hold one yet, and return it.

    Raises
    ------
    FlammaError
        If the directory holds a run, or this one cannot be carried out.
    """
    folder = RunFolder(path)
    folder.check_free()
    told = Callbacks(callbacks, on_round)
    check_runnable([config], own, data_dir)
    return _execute(_assignment(config, folder, own, told, data_dir, begins=True))


def resume(
    path: str | Path,
    *,
    data: Any = None,
    group: Any = None,
    model: Any = None,
    loss: OwnLoss | None = None,
    metric: OwnMetric | None = None,
    on_round: OnRound | None = None,
    callbacks: Iterable[Callback] = (),
    data_dir: Path | None = None,
    processes: int | None = None,
    past_stop: bool = False,
    augment: Augment | None = None,
) -> Run:
    """Go on with an interrupted run from its last checkpoint; a finished one is returned as is.

    A run of your own data, model, loss, metric or augmentation needs them again, and ``group`` if
    that was an array; a file of data is read again, and data that sites hold are not yours. The
    callbacks that have a name, as ``EarlyStopping`` has, are taken up again by themselves. A run
    that a callback has stopped is finished; ``past_stop`` goes on with it to its last round,
    without that callback unless it is given again.
    """
    config = Run.load(path).config
    gathered = None if data is None else gathered_for(config.as_tables(), data, group)
    made = given_model(model).make
    own = OwnParts(gathered, made, loss=loss, metric=metric, augment=augment)
    heard = Callbacks(callbacks, on_round)
    return go_on(Path(path), own, heard, data_dir, processes, past_stop)


def go_on(
    path: Path,
    own: OwnParts = NOTHING_OWN,
    heard: Callbacks | None = None,
    data_dir: Path | None = None,
    processes: int | None = None,
    past_stop: bool = False,
) -> Run:
    """Go on with a run to its end, with what of it is the user's own."""
    before = replace(Run.load(path), known_model=own.model)
    stopped = before.stopped
    if before.has_last_round and before.params_sha256 and not (stopped and past_stop):
        return before
    if isinstance(before.config.strategy, UnregisteredStrategy):
        before.config.strategy.check(f"going on with {path}")
    if lacking := own.lacks(before.config):
        raise RunError(
            f"{path} is a run of your own {lacking}: resume it from Python, {lacking}=..."
        )
    settings: dict[str, Any] = {}
    if trainer := before.about.get("trainer"):  # the other one would round differently
        settings["training.trainer"] = trainer
    if processes is not None:
        settings["engine.processes"] = processes
    config = before.config.with_settings(settings)
    folder, by = RunFolder(path), stopped.by if stopped else ""
    told = Callbacks(resumed_callbacks(folder.path, heard or Callbacks(), by))
    return _execute(_assignment(config, folder, own, told, data_dir))


def _assignment(
    config: Config,
    folder: RunFolder,
    own: OwnParts,
    told: Callbacks,
    data_dir: Path | None,
    begins: bool = False,
) -> Assignment:
    """Return what the engine is given; data that are in a file are read first."""
    if own.data is None and config.data.file is not None:
        own = replace(own, data=gathered_for(config.as_tables()), known={})
    return Assignment(
        config,
        folder,
        own.federation(config),
        own.model,
        told,
        data_dir,
        begins,
        own.start,
        own.loss,
        own.metric,
        own.augment,
    )


def _execute(assignment: Assignment) -> Run:
    path, config = assignment.folder.path, assignment.config
    check_installed(config)
    with assignment.callbacks.until_end(lambda: Run.load(path)):
        config.engine.execute(assignment)
    done = replace(Run.load(path), known_model=assignment.model)
    finite = done.about.get(FINITE) is not False
    check_trained(done.history, str(path), done.config.training.learning_rate, finite)
    return done


def default_folder(config: Config) -> Path:
    """Return the directory of a run that none was named for."""
    data = config.data
    name = f"{config.strategy.name}-{data.title}-{data.split.name}-seed{config.seed}"
    return free_folder(Path("runs"), name)
