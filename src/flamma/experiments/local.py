"""A run whose clients are all on this machine."""

from __future__ import annotations

import numpy as np

from flamma.data.federated import pooled
from flamma.engines.respond import RationalClients
from flamma.errors import ConfigError
from flamma.experiments.session import Assignment, World, carry_out, known_population
from flamma.experiments.setup import build_data, build_engine, true_costs


def execute(assignment: Assignment) -> None:
    """Begin a run, or go on with it, in this process and its workers."""
    folder = assignment.folder
    folder.lock()
    try:
        _execute(assignment)
    finally:
        folder.close()


def _execute(assignment: Assignment) -> None:
    config, folder = assignment.config, assignment.folder
    strategy = config.build_strategy()
    data = assignment.data
    data = build_data(config, assignment.data_dir) if data is None else data
    data = pooled(data) if strategy.pools_data else data
    with build_engine(config, data, assignment.model) as engine:
        known = known_population(folder)
        costs = true_costs(config, data, engine) if known is None else known["cost"]
        if strategy.needs_validation and not data.validation_y.size:
            raise ConfigError(
                f"{strategy.name} judges updates on the server's own data: set "
                f"data.validation_samples, or give your own data a validation set."
            )
        world = World(
            clients=RationalClients(strategy, engine, costs, data.samples),
            samples=data.samples,
            held_out=np.diff(data.held_offsets),
            costs=costs,
            initial_params=engine.initial_params,
            trainable_size=engine.layout.trainable_size,
            trainer=engine.trainer,
            class_counts=data.class_counts(),
        )
        carry_out(config, folder, world, assignment.on_round)
