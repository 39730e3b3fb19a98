"""What a client of Flower trains and scores with, made from the text of a run's configuration.

A process that lives on, as those of a simulation do, makes its trainer once. torch is imported only
if it is needed.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from flamma.engines.flower.payload import read_configuration
from flamma.engines.flower.site_module import site_module
from flamma.errors import ConfigError
from flamma.experiments.config import OWN
from flamma.tasks import Measures, measures_for
from flamma.training import Trainer
from flamma.training.augmentations import augmentation_of
from flamma.training.lanes import LanesTrainer
from flamma.types import Params


@lru_cache(maxsize=1)
def site_lanes_trainer(text: str, shape: tuple[int, ...], classes: int, plan: bytes) -> Trainer:
    """Return what trains the run's model in lanes, by their plan."""
    config = read_configuration(text)
    training, words = config.training, np.frombuffer(plan, dtype=np.int64)
    return LanesTrainer(
        words,
        shape,
        training.batch_size,
        training.momentum,
        rule=training.rule,
        augment=augmentation_of(training.augmentation),
    )


@lru_cache(maxsize=1)
def site_torch_trainer(text: str, shape: tuple[int, ...], classes: int, task: str) -> Trainer:
    """Return what trains the run's model with torch."""
    import torch

    from flamma.models.flat import FlatModel
    from flamma.training.config import TRAINERS, TrainerSettings
    from flamma.training.devices import pick_device

    torch.set_num_threads(1)  # more threads would sum up in another order
    config = read_configuration(text)
    training = config.training
    model = FlatModel(site_module(config, shape, classes), pick_device(training.device))
    wanted = TrainerSettings(
        shape,
        training.batch_size,
        training.momentum,
        precision=training.precision,
        measures=measures_of(text, task),
        rule=training.rule,
        augment=augmentation_of(training.augmentation),
    )
    return TRAINERS["torch"](model, wanted)


@lru_cache(maxsize=1)
def measures_of(text: str, task: str) -> Measures:
    """Return the loss and the metric of a run for data of a task."""
    config = read_configuration(text)
    if OWN in (config.training.loss, config.evaluation.metric):
        raise ConfigError("a loss or metric of your own cannot be sent to other processes.")
    return measures_for(task, config.evaluation.metric)


@lru_cache(maxsize=1)
def lanes_plan(text: str, shape: tuple[int, ...], classes: int) -> bytes:
    """Return the plan by which the lanes train the run's model."""
    from flamma.training.lanes.plan import plan_of

    plan, reason = plan_of(site_module(read_configuration(text), shape, classes), shape)
    if plan is None:
        raise ConfigError(f"the trainer lanes cannot be used: {reason}.")
    return plan.tobytes()


def first_params(text: str, shape: tuple[int, ...], classes: int) -> Params:
    """Return the model's initial weights."""
    from flamma.models.flat import FlatModel

    return FlatModel(site_module(read_configuration(text), shape, classes)).read()
