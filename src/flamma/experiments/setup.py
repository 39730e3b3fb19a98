"""From a configuration to the parts of a run: data, model, engine, costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flamma.clients.costs import draw_costs
from flamma.data.build import build_federation
from flamma.data.federated import FederatedData
from flamma.engines.local import LocalEngine
from flamma.experiments.config import Config
from flamma.models import build_model
from flamma.types import Floats, LocalTask


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
        shards_per_client=data.shards_per_client,
        classes_per_client=data.classes_per_client,
        alpha=data.alpha,
        uneven=data.uneven,
        train_samples=data.train_samples,
        validation_samples=data.validation_samples,
        held_out=data.held_out,
        data_dir=data_dir,
    )


def build_engine(
    config: Config, data: FederatedData, model: Callable[..., Any] | None = None
) -> LocalEngine:
    """Return the engine of a run, with the model's initial weights by the run's seed."""
    table = config.model
    options = {
        name: value
        for name in ("width", "norm", "hidden")
        if (value := getattr(table, name)) is not None and model is None
    }
    return LocalEngine(
        data,
        lambda: build_model(model or table.name, data.shape, data.classes, config.seed, **options),
        seed=config.seed,
        batch_size=config.training.batch_size,
        momentum=config.training.momentum,
        processes=config.engine.processes,
        device=config.training.device,
        trainer=config.training.trainer,
        per_round=config.per_round,
        time_limit=config.engine.time_limit or None,
    )


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
