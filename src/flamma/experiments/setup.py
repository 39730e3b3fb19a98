"""From a configuration to the parts of a run that need torch: model, engine, measured costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.clients.costs import draw_costs
from flamma.data.federated import FederatedData
from flamma.engines.local import LocalEngine
from flamma.experiments.config import Config
from flamma.experiments.data import build_data as build_data
from flamma.models import build_model
from flamma.types import Floats, LocalTask

if TYPE_CHECKING:
    from torch import nn


def build_engine(
    config: Config, data: FederatedData, model: Callable[..., Any] | None = None
) -> LocalEngine:
    """Return the engine of a run, with the model's initial weights by the run's seed."""
    return LocalEngine(
        data,
        lambda: build_module(config, data.shape, data.classes, model),
        seed=config.seed,
        batch_size=config.training.batch_size,
        momentum=config.training.momentum,
        processes=config.engine.processes,
        device=config.training.device,
        trainer=config.training.trainer,
        per_round=config.per_round,
        time_limit=config.engine.time_limit or None,
    )


def build_module(
    config: Config,
    shape: tuple[int, ...],
    classes: int,
    model: Callable[..., Any] | None = None,
) -> nn.Module:
    """Return the model of a run with its initial weights, for samples of the given shape."""
    table = config.model
    options = {
        name: value
        for name in ("width", "norm", "stem_stride", "hidden")
        if (value := getattr(table, name)) is not None and model is None
    }
    return build_model(model or table.name, shape, classes, config.seed, **options)


def true_costs(config: Config, data: FederatedData, engine: LocalEngine) -> Floats:
    """Return what epochs really cost each client."""
    costs = config.costs
    seconds = _seconds_per_epoch(data, engine) if costs.kind == "measured" else None
    return draw_costs(
        costs.kind,
        data.clients,
        config.seed,
        value=costs.value,
        spread=costs.spread,
        seconds_per_epoch=seconds,
        path=costs.file or None,
    )


def _seconds_per_epoch(data: FederatedData, engine: LocalEngine) -> Floats:
    """Time one epoch of the largest client and scale it by everybody's data.

    The second of two runs counts: the first also warms the machine up.
    """
    largest = int(np.argmax(data.samples))
    task = LocalTask(largest, round=0, epochs=1, learning_rate=1e-3)
    for _ in range(2):
        [report] = engine.train(engine.initial_params, [task])
    seconds: Floats = report.seconds * data.samples / data.samples[largest]
    return seconds
