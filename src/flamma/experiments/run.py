"""One run, from a configuration to a directory; and going on with one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.clients.costs import SPEED_COLUMN, PacedClients, constant_speed, true_speeds
from flamma.clients.time import VirtualClock
from flamma.clients.truth import TrueClients
from flamma.data.build import build_federation, check_counts, check_sizes
from flamma.data.datasets import DATASETS, check_fetched
from flamma.data.federated import FederatedData
from flamma.errors import ConfigError, FlammaError, RunError
from flamma.experiments.callbacks import Callback, Callbacks, OnRound, resumed_callbacks
from flamma.experiments.checkpoint import Checkpoints
from flamma.experiments.config import (
    OWN,
    Config,
    ConfigTables,
    UnregisteredStrategy,
    check_installed,
    keys_of_tables,
    spelled_out,
)
from flamma.experiments.engine import Assignment
from flamma.experiments.folder import FINITE, POPULATION, RunFolder, free_folder
from flamma.experiments.loop import check_trained, check_validation
from flamma.experiments.population import read_columns
from flamma.experiments.progress_bar import ProgressBar, wants_bar
from flamma.experiments.result import Run as Run
from flamma.experiments.result import place_for
from flamma.experiments.user_objects import (
    NOTHING_OWN,
    ConfigSource,
    OwnParts,
    configured,
    gathered_for,
    given_model,
)
from flamma.io import nearest, quoted
from flamma.models import build_model, check_model
from flamma.records import RoundRecord
from flamma.registry import Choice, options_of, read_options
from flamma.seeding import stream
from flamma.tasks import DEFAULT_TASK, PLAIN_MEASURES, TASKS, Measures, measures_for
from flamma.training.augmentations import OWN_AUGMENTATION, Augment, augmentation_of, augmented
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
    configs: Iterable[Config], own: OwnParts = NOTHING_OWN, data_dir: Path | None = None
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
    task = LocalWork(largest, round=0, epochs=1, learning_rate=1e-3)
    for _ in range(2):
        [report] = runner.train(runner.initial_params, [task])
    seconds: Floats = report.seconds * data.samples / data.samples[largest]
    return seconds


# Whether this machine has room for what a strategy remembers, before any data are loaded.


def check_room(assignment: Assignment) -> None:
    """Refuse a run whose strategy remembers more than fits, if its configuration tells that much.

    With data or a model of the user's own it is known only when they are there, and a run checks
    it again before its first round.

    Raises
    ------
    FlammaError
        With what is needed and what is free, on disk or in memory.
    """
    from flamma.models.flat import FlatModel

    config = assignment.config
    if not hasattr(config.strategy, "rows") or OWN in (config.data.dataset, config.model.name):
        return
    entry = DATASETS[config.data.dataset].for_task(config.data.task)
    plain = replace(config, weights=replace(config.weights, start=""))
    layout = FlatModel(build_module(plain, entry.shape, len(entry.class_names))).layout
    samples = np.ones(config.data.clients, dtype=np.int64)
    population = Population(samples, None, layout.trainable_size)
    begun = config.strategy.init(np.zeros(layout.size, dtype=np.float32), population)
    Checkpoints(assignment.folder.path).settle(begun)


# The virtual clock of a run: the speeds of its clients, and what their work takes.


def client_speeds(
    config: Config, folder: RunFolder, samples: Ints, seconds_per_epoch: Callable[[], Floats]
) -> Floats | None:
    """Return each client's seconds per sample, None if the run has no virtual clock.

    They are as the run first recorded them: measured ones cannot be measured again. Clients of an
    asynchronous strategy are all equally fast where nothing else is said.
    """
    kind = config.clock.speeds
    if kind is None and config.strategy.asynchronous:
        kind = Choice("constant", read_options(constant_speed, {}))
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
        own = None if task.evaluates or task.abstains else config.strategy.own_task(task)
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


# What is asked for from Python: keyword arguments as settings, and errors in the same words.

COMMON_SETTINGS: Mapping[str, str] = {
    "strategy": "strategy",
    "dataset": "data.dataset",
    "split": "data.split",
    "clients": "data.clients",
    "rounds": "rounds",
    "per_round": "per_round",
    "seed": "seed",
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "learning_rate": "training.learning_rate",
    "momentum": "training.momentum",
    "device": "training.device",
    "processes": "engine.processes",
}
"""Keyword arguments of :func:`flamma.run` and the like, and the settings that they stand for."""

OF_DATA = {"target": "data.target", "group": "data.group", "task": "data.task"}
"""The same for the columns of one's own data; ``group`` may also be an array, which is none."""

_OF_OBJECTS = {
    "start": "model.start",
    "freeze": "model.freeze",
    "loss": "training.loss",
    "metric": "evaluation.metric",
    "augment": "training.augmentation",
}
"""Arguments that also take an object of the user's, and the settings that name one."""

_OTHER_ARGUMENTS = (
    *("out", "data", "model", "seeds", "first_seed"),
    *("strategies", "datasets", "splits", "trials"),
)
"""Further arguments that messages may name."""

_FLAG = re.compile(r"--([a-z][a-z-]*)")
SETTING = re.compile(r"\b([a-z]+\.[a-z_]+)\b(?:\.([a-z_]+)\b)?")
_LEADING = re.compile(r"^(rounds|seed|seeds)(?= must)|\bper_round\b(?!=)")
_UNKNOWN_KEY = re.compile(r"unknown key in (\w+) '(\w+)'(: did you mean (\w+)\?)?")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _is_path(value: Any) -> bool:
    return isinstance(value, str | Path) and str(value) != ""


_WHOLE = (_is_whole, "a whole number")
_TEXT = (lambda value: _is_text(value) and value != "", "a text")
_PATH = (_is_path, "a path")
_FUNCTION = (callable, "a function")

_OBJECTIVES = ("fair", "mean", "accuracy")

_ACCEPTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "seeds": (_is_whole, "a whole number, how many seeds there are: each follows the last"),
    "first_seed": _WHOLE,
    "trials": _WHOLE,
    "grid": (lambda value: isinstance(value, Mapping), "options, each with a list of values"),
    "objective": (lambda value: value in _OBJECTIVES if _is_text(value) else False, "fair or mean"),
    "target": (_is_text, "a text, the name of a column"),
    "task": _TEXT,
    "loss": _FUNCTION,
    "metric": (
        lambda value: callable(value) or isinstance(value, str),
        "one function, or the name of one metric",
    ),
    "progress": (lambda value: isinstance(value, bool), "True or False"),
    "callbacks": (
        lambda value: (
            _is_iterable(value) and not isinstance(value, str | bytes | Mapping | np.ndarray)
        ),
        "a list of callbacks",
    ),
    "augment": (
        lambda value: callable(value) or isinstance(value, str | list | tuple | Mapping),
        "a function, or names of augmentations",
    ),
    "on_round": _FUNCTION,
    "on_progress": _FUNCTION,
    "on_trial": _FUNCTION,
    "out": _PATH,
    "data_dir": _PATH,
}
"""What is accepted by arguments that no table of the configuration checks."""


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments of a wrong type, given the local variables of the function called.

    Raises
    ------
    ConfigError
        With the argument and what it accepts.
    """
    for name, value in given.items():
        if value is None and name not in ("trials", "objective"):
            continue
        accepts, words = _ACCEPTED.get(name, (None, ""))
        if accepts is not None and not accepts(value):
            raise ConfigError(f"{name}= must be {words}, not {quoted(value)}.")


def names_given(argument: str, value: Any, numbers: bool = False) -> list[Any] | None:
    """Return the names that an argument lists; a text has commas between them.

    Raises
    ------
    ConfigError
        If it is something else; ``numbers`` is whether whole numbers are accepted beside names.

    Examples
    --------
    >>> names_given("clients", "cheapest,3"), names_given("clients", [3], numbers=True)
    (['cheapest', '3'], [3])
    """
    if value is None:
        return None
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    listed = [] if isinstance(value, Mapping | bytes) or not _is_iterable(value) else list(value)
    if listed and all(_is_text(name) or (numbers and _is_whole(name)) for name in listed):
        return listed
    kinds = "names and numbers" if numbers else "names"
    raise ConfigError(f"{argument}= must be a list of {kinds}, or one text, not {quoted(value)}.")


def asked_settings(given: Mapping[str, Any], leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the dotted settings that a function was called with, given its local variables.

    Common settings are arguments of their own; the others are in ``settings``, with two
    underscores for a dot. What is None was not given.

    Raises
    ------
    ConfigError
        If there is no such setting; the nearest argument is named.

    Examples
    --------
    >>> asked_settings({"learning_rate": 0.1, "rounds": None, "settings": {"strategy__mu": 1}})
    {'training.learning_rate': 0.1, 'strategy.mu': 1}
    """
    common = {**COMMON_SETTINGS, **OF_DATA}
    asked: dict[str, Any] = {}
    for name, setting in common.items():
        value = given.get(name)
        if value is None or name in leave_out or (name in OF_DATA and not isinstance(value, str)):
            continue
        asked |= spelled_out({setting: plain_value(value)})
    for name, value in given["settings"].items():
        setting = setting_of(name)
        if setting.partition(".")[0] not in options_of(ConfigTables):
            raise ConfigError(_unknown_argument(name, [*given], leave_out))
        asked |= spelled_out({setting: plain_value(value)})
    return asked


def plain_value(value: Any) -> Any:
    """Return a value as configurations have it: nothing of numpy's, and tables of its own.

    Examples
    --------
    >>> plain_value(np.int64(3)), plain_value(np.float64(0.5))
    (3, 0.5)
    """
    if isinstance(value, Mapping):
        return {key: plain_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain_value, value)) if type(value) in (list, tuple) else value
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def argument_of(setting: str, taken: tuple[str, ...] = ()) -> str:
    """Return what a dotted setting is called as a keyword argument.

    Names that are ``taken`` mean something else to the function that was called.

    Examples
    --------
    >>> argument_of("training.learning_rate"), argument_of("strategy.mu")
    ('learning_rate=', 'strategy__mu=')
    """
    common = {**COMMON_SETTINGS, **OF_DATA}
    named = {setting: name for name, setting in common.items() if name not in taken}
    own = named.get(setting.removesuffix(".name"), setting.replace(".", "__"))
    return f"{'model' if setting == 'model.name' else own}="


def setting_of(argument: str) -> str:
    """Return the dotted setting that an argument stands for, its own name where it is none.

    Examples
    --------
    >>> setting_of("learning_rate"), setting_of("strategy__mu"), setting_of("costs.value")
    ('training.learning_rate', 'strategy.mu', 'costs.value')
    """
    return COMMON_SETTINGS.get(argument, argument.replace("__", "."))


@contextmanager
def in_python_terms(*taken: str) -> Iterator[None]:
    """Let errors name keyword arguments, not flags of the command line or keys of a file.

    Names of common settings that are ``taken`` mean something else to the function.
    """
    try:
        yield
    except FlammaError as error:
        error.args = (python_terms(str(error), taken), *error.args[1:])
        raise


def python_terms(text: str, taken: tuple[str, ...] = ()) -> str:
    """Return a message in which flags and settings are called as Python calls them.

    Examples
    --------
    >>> python_terms("lower per_round or raise data.clients, or name another --out.")
    'lower per_round= or raise clients=, or name another out=.'
    """
    known = set(keys_of_tables().values()) | {"model.name", "strategy.name", "engine.name"}
    arguments = {*COMMON_SETTINGS, *OF_DATA, *_OTHER_ARGUMENTS}

    def flag(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return f"{name}=" if name in arguments else found[0]

    def setting(found: re.Match[str]) -> str:
        if found[1] not in known:
            return found[0]
        called = argument_of(found[1], taken)
        return f"{found[2]} in {called}" if found[2] else called

    def key(found: re.Match[str]) -> str:
        if found[1] not in options_of(ConfigTables):
            return found[0]
        guess = (
            f": did you mean {argument_of(f'{found[1]}.{found[4]}', taken)}?" if found[4] else ""
        )
        return f"unknown argument {found[1]}__{found[2]}={guess}"

    text = _UNKNOWN_KEY.sub(key, text)
    return _LEADING.sub(r"\g<0>=", SETTING.sub(setting, _FLAG.sub(flag, text)))


def _unknown_argument(name: str, arguments: Sequence[str], taken: tuple[str, ...]) -> str:
    objects = {setting: f"{argument}=" for argument, setting in _OF_OBJECTS.items()}
    called = {
        key: objects.get(setting, argument_of(setting, taken))
        for key, setting in keys_of_tables().items()
    }
    called |= {argument: f"{argument}=" for argument in arguments if argument != "settings"}
    typed = name.rpartition("__")[2]
    other_number = next((n for n in (f"{typed}s", typed.removesuffix("s")) if n in arguments), "")
    guess = called.get(typed if typed in called else other_number or nearest(typed, called))
    hint = f": did you mean {guess}?" if guess else ""
    return (
        f"unknown argument {name}={hint} (an option of a table has two underscores, such as "
        f"strategy__mu=; docs/reference/configuration.md names all)."
    )


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
