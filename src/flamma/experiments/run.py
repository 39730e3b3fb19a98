"""One run, from a configuration to a directory; and going on with one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.clients.costs import SPEED_COLUMN, SPEEDS, PacedClients, true_speeds
from flamma.clients.time import VirtualClock
from flamma.clients.truth import TrueClients
from flamma.data.build import build_federation, check_counts, check_sizes
from flamma.data.datasets import DATASETS, check_fetched
from flamma.data.federated import FederatedData
from flamma.errors import ConfigError, RunError, naming_settings
from flamma.experiments.callbacks import Callback, Callbacks, OnRound, resumed_callbacks
from flamma.experiments.checkpoint import Checkpoints
from flamma.experiments.config import (
    OWN,
    Config,
    UnregisteredStrategy,
    check_installed,
)
from flamma.experiments.engine import RunParts
from flamma.experiments.folder import FINITE, POPULATION, RunFolder, free_folder
from flamma.experiments.loop import check_trained, check_validation
from flamma.experiments.population import read_columns
from flamma.experiments.progress_bar import ProgressBar, wants_bar
from flamma.experiments.result import Run as Run
from flamma.experiments.result import output_directory
from flamma.experiments.settings import keyword_of
from flamma.experiments.user_objects import (
    NO_OBJECTS,
    Asked,
    ConfigSource,
    UserObjects,
    gathered_for,
    given_model,
)
from flamma.io import JsonTable
from flamma.models import build_model, check_model
from flamma.records import RoundRecord
from flamma.registry import Choice, read_options
from flamma.seeding import stream
from flamma.tasks import DEFAULT_TASK, PLAIN_MEASURES, TASKS, Measures, measures_for
from flamma.training.augmentations import Augment, augmentation_of, augmented
from flamma.types import Floats, Ints, LocalWork, Population, Terms

if TYPE_CHECKING:
    from torch import nn

    from flamma.models.weights import StartWeights
    from flamma.simulation.runner import ClientRunner
    from flamma.tasks import OwnLoss, OwnMetric


# From a configuration to the parts of a run: data, model, the runner of clients, timed epochs.

_SAMPLES_TRIED = 2
"""Samples on which a model of the user's own is tried before the run."""

_MOST_CLASS_COUNTS = 10_000_000
"""Clients times classes up to which ``population.csv`` tells the classes: about 20 MB."""


def check_runnable(
    configs: Iterable[Config], own: UserObjects = NO_OBJECTS, data_dir: Path | None = None
) -> None:
    """Refuse configurations with which no run can begin, before anything is read or written.

    These checks look up datasets, files and tasks. A configuration alone does not, so that
    finished runs can be read without them.

    Raises
    ------
    FlammaError
        Of the first configuration that cannot be run.
    """
    from flamma.models.weights import StartWeights

    models, starts, devices = {}, set(), set()
    for config in configs:
        check_installed(config)
        data = config.data
        if config.engine.clients_hold_data:
            continue
        if lacking := own.lacks(config):
            raise ConfigError(
                f"the configuration is for {lacking} of your own: give it from Python, "
                f"{lacking}=..."
            )
        check_counts(data.train_samples, None, data.validation_samples, data.held_out, config.seed)
        starts |= {config.weights.start} - {"", OWN}
        devices |= {config.training.device}
        task, validation = data.task or DEFAULT_TASK, data.validation_samples
        if isinstance(own.data, FederatedData):
            task, validation = own.data.task, len(own.data.validation_y)
        elif own.data is None and data.file is None:
            entry = DATASETS[data.dataset].for_task(data.task)
            task = entry.task
            check_fetched(data.dataset, data_dir)
            validation, train, held_out = data.validation_samples, data.train_samples, data.held_out
            check_sizes(data.dataset, data.split.name, data.clients, train, validation, held_out)
            if config.model.name != OWN:
                key = repr((config.model, data.dataset, task, config.weights.freeze))
                models[key] = config, entry
        build_measures(config, task, own.loss, own.metric)
        check_validation(config, validation)
    for start in starts:
        StartWeights.read(Path(start))
    if devices - {"auto", "cpu"}:
        from flamma.training.devices import check_device

        for device in devices:
            check_device(device)
    for config, entry in models.values():
        frozen = config.weights.freeze
        check_model(config.model, entry.shape, len(entry.class_names), frozen)


def build_data(config: Config, data_dir: Path | None = None) -> FederatedData:
    """Return the data of a run, split over its clients.

    The server's validation set is cut off whether the strategy needs it or not, so that all
    strategies see the same clients.
    """
    data = config.data
    if data.file is not None:
        from flamma.experiments.user_objects import federation_of, gathered_by

        return federation_of(config, gathered_by(data.file, data.as_table()))
    return build_federation(
        data.dataset,
        data.split,
        data.clients,
        config.seed,
        train_samples=data.train_samples,
        validation_samples=data.validation_samples,
        held_out=data.held_out,
        data_dir=data_dir,
        task=data.task,
    )


def build_runner(
    config: Config,
    data: FederatedData,
    model: Callable[..., Any] | None = None,
    processes: int | None = None,
    evaluated: Ints | None = None,
    start: StartWeights | None = None,
    measures: Measures | None = None,
    augment: Augment | None = None,
) -> ClientRunner:
    """Return what runs the clients, with the model's initial weights by the run's seed.

    ``evaluated`` are the clients that score models, None for all. ``start`` are weights to begin
    with in place of those that the configuration names, ``measures`` are those of the
    configuration by default, and ``augment`` is the user's own augmentation, where the
    configuration says so.
    """
    from flamma.models.weights import check_outputs
    from flamma.simulation.runner import ClientRunner

    def make_model() -> nn.Module:
        module = build_module(config, data.shape, data.classes, model, start)
        if model is not None:
            check_outputs(module, data.train_x[:_SAMPLES_TRIED], data.classes, data.task)
        return module

    augment = augmentation_of(config.training.augmentation, augment)
    if augment is not None:  # so that one that does not fit is refused before the first round
        augmented(augment, np.zeros((1, *data.shape), dtype=np.float32), stream(0, "augment"))

    return ClientRunner(
        data,
        make_model,
        seed=config.seed,
        batch_size=config.training.batch_size,
        momentum=config.training.momentum,
        processes=config.engine.processes if processes is None else processes,
        device=config.training.device,
        trainer=config.training.trainer,
        precision=config.training.precision,
        time_limit=config.engine.time_limit or None,
        evaluated=evaluated,
        measures=build_measures(config, data.task) if measures is None else measures,
        rule=config.training.rule,
        augment=augment,
    )


def build_measures(
    config: Config, task: str, loss: OwnLoss | None = None, metric: OwnMetric | None = None
) -> Measures:
    """Return the loss and the metric of a run on data of a task; ``loss`` and ``metric`` are own.

    Raises
    ------
    ConfigError
        If the task has no such metric, or the configuration is for one's own and none is given.
    """
    for what, given, key in (
        ("loss", loss, config.training.loss),
        ("metric", metric, config.evaluation.metric),
    ):
        if key == OWN and given is None:
            raise ConfigError(
                f"the configuration is for a {what} of your own: give it from Python, {what}=..."
            )
    return measures_for(task, config.evaluation.metric, loss, metric)


def about_measures(measures: Measures) -> dict[str, str]:
    """Return what ``about.json`` tells of a run's measures: nothing of plain accuracy."""
    if measures.metric is PLAIN_MEASURES.metric:
        return {}
    return {
        "task": measures.task.name,
        "metric": measures.metric.name,
        "metric_title": measures.metric.title,
    }


def build_module(
    config: Config,
    shape: tuple[int, ...],
    classes: int,
    model: Callable[..., Any] | None = None,
    start: StartWeights | None = None,
) -> nn.Module:
    """Return the model of a run with its initial weights, for samples of the given shape."""
    from flamma.models.weights import StartWeights, freeze

    module = build_model(model or config.model, shape, classes, config.seed)
    if start is None and config.weights.start:
        start = StartWeights.read(Path(config.weights.start))
    if start is not None:
        start.put_into(module)
    freeze(module, config.weights.freeze)
    return module


def class_counts(data: FederatedData) -> Ints | None:
    """Return the samples of each class of each client.

    None if the task has no classes, or the table would be too large.
    """
    if not TASKS[data.task].labels_samples:
        return None
    return data.class_counts() if data.clients * data.classes <= _MOST_CLASS_COUNTS else None


def seconds_per_epoch(data: FederatedData, runner: ClientRunner) -> Floats:
    """Time one epoch of the largest client and scale it by every client's data.

    The second of two runs counts: the first also warms the machine up.
    """
    largest = int(np.argmax(data.samples))
    task = LocalWork(Terms(largest, 0), epochs=1, learning_rate=1e-3)
    for _ in range(2):
        [report] = runner.train(runner.initial_params, [task])
    seconds: Floats = report.seconds * data.samples / data.samples[largest]
    return seconds


# Whether this machine has room for what a strategy remembers, before any data are loaded.


def check_room(parts: RunParts) -> None:
    """Refuse a run whose strategy remembers more than fits, if its configuration tells that much.

    With data or a model of the user's own it is known only when they are there, and a run checks
    it again before its first round.

    Raises
    ------
    FlammaError
        With what is needed and what is free, on disk or in memory.
    """
    from flamma.models.flat import FlatModel

    config = parts.config
    if not hasattr(config.strategy, "rows") or OWN in (config.data.dataset, config.model.name):
        return
    entry = DATASETS[config.data.dataset].for_task(config.data.task)
    plain = replace(config, weights=replace(config.weights, start=""))
    layout = FlatModel(build_module(plain, entry.shape, len(entry.class_names))).layout
    samples = np.ones(config.data.clients, dtype=np.int64)
    population = Population(samples, None, layout.trainable_size)
    begun = config.strategy.init(np.zeros(layout.size, dtype=np.float32), population)
    Checkpoints(parts.folder.path).settle(begun)


# The virtual clock of a run: the speeds of its clients, and what their work takes.


def client_speeds(
    config: Config, folder: RunFolder, samples: Ints, seconds_per_epoch: Callable[[], Floats]
) -> Floats | None:
    """Return each client's seconds per sample, None if the run has no virtual clock.

    They are as the run first recorded them: measured ones cannot be measured again. Clients of an
    asynchronous strategy are all equally fast where nothing else is said.
    """
    kind = config.clock.speeds
    if kind is None and config.strategy.needs.clock:
        kind = Choice("constant", read_options(SPEEDS["constant"], {}))
    if kind is None:
        return None
    recorded = _recorded_speeds(folder)
    if recorded is not None:
        return recorded
    return true_speeds(kind, PacedClients(samples, config.seed, seconds_per_epoch))


def _recorded_speeds(folder: RunFolder) -> Floats | None:
    """Return the speeds that a run was begun with, None before that."""
    text = folder.text(POPULATION) if folder.exists else ""
    if not text:
        return None
    try:
        return read_columns(text)[SPEED_COLUMN]
    except (KeyError, ValueError) as error:
        raise RunError(f"{folder.path / POPULATION} is damaged: remove it to go on.") from error


def virtual_clock(config: Config, truth: TrueClients, speeds: Floats) -> VirtualClock:
    """Return what clients' work takes in virtual time, what each trains for itself included."""

    def tasks_of(terms: Terms) -> list[LocalWork]:
        task = truth.task(terms)
        own = None if not task.terms.train or task.abstains else config.strategy.personal_work(task)
        return [task] if own is None else [task, own]

    clock = config.clock
    return VirtualClock(
        speeds,
        truth.population.samples,
        config.training.batch_size,
        tasks_of,
        math.inf if clock.bandwidth is None else clock.bandwidth,
        math.inf if clock.deadline is None else clock.deadline,
    )


# One run, and going on with one.


def run(
    config: ConfigSource = None,
    *,
    data: Any = None,
    model: Any = None,
    strategy: str | Mapping[str, Any] | None = None,
    dataset: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    on_round: OnRound | None = None,
    callbacks: Iterable[Callback] = (),
    **settings: Any,
) -> Run:
    """Run an experiment and return it.

    Parameters
    ----------
    config : Config, mapping, or path of a TOML file
        What to run; the rest is at its defaults.
    data : any, optional
        Your own data instead of a named dataset, in any form that
        :func:`~flamma.data.from_data` takes: arrays, a frame, a torch ``Dataset``, a file.
    model : torch.nn.Module, class, callable, str or mapping, optional
        Your own model: a module, which is copied and whose weights are the first ones; a class or
        a function that makes one, called with the shape of a sample and the number of classes if
        it takes them; or a model's name, or a table with its name and options.
    strategy : str or mapping, optional
        A strategy's name, or a table with its name and options; ``flamma`` if not given.
    dataset : str, optional
        A name of ``flamma list``.
    rounds : int, optional
        How many rounds there are.
    seed : int, optional
        The seed of everything random.
    out : path, optional
        The run directory. If not given, the run is in a temporary directory that is removed with
        the object that is returned.
    progress : bool, optional
        Whether a progress bar is shown; by default in terminals and notebooks.
    on_round : callable, optional
        Called with every finished round's record; it may raise ``flamma.StopRun``.
    callbacks : iterable of Callback
        What else hears of the run: ``flamma.EarlyStopping()``, trackers, or your own.
    **settings
        Any other setting: a common one by the name of its flag, such as ``learning_rate=0.1``,
        ``clients=20`` or ``split="shards"``, and any option of a configuration with two
        underscores for the dot, such as ``strategy__mu=0.1``. These also take what no file can
        have:

        - ``target``, ``group``, ``task``: the columns of your own table that are predicted and
          that name the client of each sample (``group`` may be an array, a value for each sample),
          and what is learned: ``"regression"`` if not classification.
        - ``start``: a safetensors or npz file of weights to begin with, a state dict, or a
          finished run. ``freeze``: parameters that are not trained, by name or by patterns such as
          ``features.*``.
        - ``loss``: your own ``(outputs, targets) -> losses``, tensors all: one loss per sample, at
          least 0. ``metric``: a metric's name, or your own ``(outputs, targets) -> number`` of the
          arrays of one client; 1 is told as 100%, and more is better.
        - ``augment``: your own ``(samples, rng) -> samples``, which changes the samples of a
          mini-batch at random before clients train on them; or names of augmentations.
        - ``data_dir``: where datasets are kept.

    Raises
    ------
    FlammaError
        If the configuration cannot work, or the directory holds another run.
    DivergedError, EmptyRunError
        At the end, if the run diverged or nobody trained; its directory can be read all the same.
    """
    given = dict(locals())
    with naming_settings(keyword_of):
        asked = Asked.of(given, "data_dir")
        chosen, objects = asked.configured(config)
        path, scratch = output_directory(out, "run")
        with ProgressBar(wants_bar(progress), chosen.rounds, "rounds") as bar:

            def told(record: RoundRecord) -> None:
                bar.on_round(record)
                if on_round is not None:
                    on_round(record)

            done = run_config(
                chosen,
                path,
                objects,
                on_round=told,
                callbacks=callbacks,
                data_dir=asked.further["data_dir"],
            )
    return replace(done, scratch=scratch)


def run_config(
    config: Config,
    path: Path,
    own: UserObjects = NO_OBJECTS,
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
    parts = _parts(config, folder, own, told, data_dir, begins=True)
    with _to_its_end(parts):
        config.engine.execute(parts)
    return _finished(parts)


def load(path: str | Path) -> Run:
    """Return the run of a directory, finished or not.

    Raises
    ------
    FlammaError
        If the directory holds no run, or a damaged one.
    """
    return Run.load(path)


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
    own = UserObjects(gathered, made, loss=loss, metric=metric, augment=augment)
    heard = Callbacks(callbacks, on_round)
    return go_on(Path(path), own, heard, data_dir, processes, past_stop)


def go_on(
    path: Path,
    own: UserObjects = NO_OBJECTS,
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
    settings: JsonTable = {}
    if trainer := before.about.get("trainer"):  # the other one would round differently
        settings["training.trainer"] = trainer
    if processes is not None:
        settings["engine.processes"] = processes
    config = before.config.with_settings(settings)
    folder, by = RunFolder(path), stopped.by if stopped else ""
    told = Callbacks(resumed_callbacks(folder.path, heard or Callbacks(), by))
    parts = _parts(config, folder, own, told, data_dir)
    with _to_its_end(parts):
        config.engine.execute(parts)
    return _finished(parts)


def _parts(
    config: Config,
    folder: RunFolder,
    own: UserObjects,
    told: Callbacks,
    data_dir: Path | None,
    begins: bool = False,
) -> RunParts:
    """Return what the engine is given; data that are in a file are read first."""
    if own.data is None and config.data.file is not None:
        own = replace(own, data=gathered_for(config.as_tables()), known={})
    own.federation(config)  # what is wrong with data is said before anything is written
    return RunParts(config, folder, own, told, data_dir, begins)


@contextmanager
def _to_its_end(parts: RunParts) -> Iterator[None]:
    """Check what a run needs, and tell its callbacks of its end."""
    check_installed(parts.config)
    path = parts.folder.path
    with parts.callbacks.until_end(lambda: Run.load(path)):
        yield


def _finished(parts: RunParts) -> Run:
    """Return a run that has come to its end; one without training is refused."""
    path = parts.folder.path
    done = replace(Run.load(path), known_model=parts.objects.model)
    finite = done.about.get(FINITE) is not False
    check_trained(done.history, str(path), done.config.training.learning_rate, finite)
    return done


def default_folder(config: Config) -> Path:
    """Return the directory of a run that none was named for."""
    data = config.data
    name = f"{config.strategy.name}-{data.title}-{data.split.name}-seed{config.seed}"
    return free_folder(Path("runs"), name)
