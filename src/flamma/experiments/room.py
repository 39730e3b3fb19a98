"""Whether this machine has room for what a strategy remembers, before any data are loaded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flamma.data.datasets import DATASETS
from flamma.experiments.checkpoint import Checkpoints
from flamma.experiments.config import OWN
from flamma.experiments.engine import Assignment
from flamma.experiments.setup import build_module
from flamma.types import Population


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
