"""From a configuration to the parts of a run: data, model, the runner of clients, timed epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.data.build import build_federation, check_counts, check_sizes
from flamma.data.datasets import DATASETS, check_fetched
from flamma.data.federated import FederatedData
from flamma.errors import ConfigError
from flamma.experiments.config import OWN, Config
from flamma.experiments.config_checks import check_installed
from flamma.experiments.own import NOTHING_OWN, OwnParts
from flamma.experiments.world import check_validation
from flamma.models import build_model, check_model
from flamma.seeding import stream
from flamma.tasks import DEFAULT_TASK, TASKS, Measures, measures_for
from flamma.tasks.measures import PLAIN_MEASURES
from flamma.training.augmentations import Augment, augmentation_of, augmented
from flamma.types import Floats, Ints, LocalTask

if TYPE_CHECKING:
    from torch import nn

    from flamma.engines.runner import ClientRunner
    from flamma.models.weights import StartWeights
    from flamma.tasks.own import OwnLoss, OwnMetric

SAMPLES_TRIED = 2
"""Samples on which a model of the user's own is tried before the run."""

MOST_CLASS_COUNTS = 10_000_000
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
        from flamma.experiments.own_data import federation_of, gathered_by

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
    from flamma.engines.runner import ClientRunner
    from flamma.models.own import check_outputs

    def make_model() -> nn.Module:
        module = build_module(config, data.shape, data.classes, model, start)
        if model is not None:
            check_outputs(module, data.train_x[:SAMPLES_TRIED], data.classes, data.task)
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
    return data.class_counts() if data.clients * data.classes <= MOST_CLASS_COUNTS else None


def seconds_per_epoch(data: FederatedData, runner: ClientRunner) -> Floats:
    """Time one epoch of the largest client and scale it by every client's data.

    The second of two runs counts: the first also warms the machine up.
    """
    largest = int(np.argmax(data.samples))
    task = LocalTask(largest, round=0, epochs=1, learning_rate=1e-3)
    for _ in range(2):
        [report] = runner.train(runner.initial_params, [task])
    seconds: Floats = report.seconds * data.samples / data.samples[largest]
    return seconds
