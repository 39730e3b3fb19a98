"""From a configuration to the parts of a run: data, model, the runner of clients, timed epochs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.data.build import build_federation
from flamma.data.federated import FederatedData
from flamma.experiments.config import Config
from flamma.models import build_model
from flamma.seeding import stream
from flamma.training.augmentations import Augment, augmentation_of, augmented
from flamma.types import Floats, Ints, LocalTask

if TYPE_CHECKING:
    from torch import nn

    from flamma.engines.runner import ClientRunner

MOST_CLASS_COUNTS = 10_000_000
"""Clients times classes up to which ``population.csv`` tells the classes: about 20 MB."""


def build_data(config: Config, data_dir: Path | None = None) -> FederatedData:
    """Return the data of a run, split over its clients.

    The server's validation set is cut off whether the strategy needs it or not, so that all
    strategies see the same clients.
    """
    data = config.data
    return build_federation(
        data.dataset,
        data.split,
        data.clients,
        config.seed,
        train_samples=data.train_samples,
        validation_samples=data.validation_samples,
        held_out=data.held_out,
        data_dir=data_dir,
    )


def build_runner(
    config: Config,
    data: FederatedData,
    model: Callable[..., Any] | None = None,
    processes: int | None = None,
    evaluated: Ints | None = None,
    augment: Augment | None = None,
) -> ClientRunner:
    """Return what runs the clients, with the model's initial weights by the run's seed.

    ``evaluated`` are the clients that score models, None for all. ``augment`` is the user's own
    augmentation, where the configuration says so.
    """
    from flamma.engines.runner import ClientRunner

    augment = augmentation_of(config.training.augmentation, augment)
    if augment is not None:  # so that one that does not fit is refused before the first round
        augmented(augment, np.zeros((1, *data.shape), dtype=np.float32), stream(0, "augment"))

    return ClientRunner(
        data,
        lambda: build_module(config, data.shape, data.classes, model),
        seed=config.seed,
        batch_size=config.training.batch_size,
        momentum=config.training.momentum,
        processes=config.engine.processes if processes is None else processes,
        device=config.training.device,
        trainer=config.training.trainer,
        precision=config.training.precision,
        time_limit=config.engine.time_limit or None,
        evaluated=evaluated,
        rule=config.training.rule,
        augment=augment,
    )


def build_module(
    config: Config,
    shape: tuple[int, ...],
    classes: int,
    model: Callable[..., Any] | None = None,
) -> nn.Module:
    """Return the model of a run with its initial weights, for samples of the given shape."""
    return build_model(model or config.model, shape, classes, config.seed)


def class_counts(data: FederatedData) -> Ints | None:
    """Return the samples of each class of each client, None if the table would be too large."""
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
