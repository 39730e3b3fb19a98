"""The local engine: all clients on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from flamma.experiments.engine import Assignment, Engine


@dataclass(frozen=True)
class LocalEngine(Engine):
    """All clients on this machine, one after the other or over its cores."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "all clients on this machine's cores"
    controls_clients: ClassVar[bool] = True
    gives_behaviours: ClassVar[bool] = True

    def execute(self, assignment: Assignment) -> None:
        """Begin a run, or go on with it, in this process and its workers."""
        folder = assignment.folder
        folder.lock()
        try:
            assignment.check_free()
            _execute(assignment)
        finally:
            folder.close()


def _execute(assignment: Assignment) -> None:
    from flamma.clients.behaviours import told
    from flamma.clients.behaviours.notes import KEPT, NOTES, NotesInFiles
    from flamma.data.federated import pooled
    from flamma.engines.client_side import ClientSide
    from flamma.engines.respond import RationalClients
    from flamma.experiments.model_card import ModelCard, start_of
    from flamma.experiments.own_data import check_same_data
    from flamma.experiments.paced import client_speeds, virtual_clock
    from flamma.experiments.room import check_room
    from flamma.experiments.session import carry_out
    from flamma.experiments.setup import (
        about_measures,
        build_data,
        build_measures,
        build_runner,
        class_counts,
        seconds_per_epoch,
    )
    from flamma.experiments.world import (
        World,
        check_validation,
        evaluated_clients,
        make_population,
        true_clients,
    )

    check_room(assignment)
    config, folder, data = assignment.config, assignment.folder, assignment.data
    data = build_data(config, assignment.data_dir) if data is None else data
    check_same_data(folder, data)
    data = pooled(data) if config.strategy.pools_data else data
    check_validation(config, len(data.validation_y))
    evaluated = evaluated_clients(config)
    measures = build_measures(config, data.task, assignment.loss, assignment.metric)
    start = start_of(config, folder, assignment.start)
    with build_runner(
        config,
        data,
        assignment.model,
        evaluated=evaluated,
        start=start,
        measures=measures,
        augment=assignment.augment,
    ) as runner:
        timed = partial(seconds_per_epoch, data, runner)
        speeds = client_speeds(config, folder, data.samples, timed)
        population = make_population(
            config,
            folder,
            runner.layout,
            samples=lambda: (data.samples, np.diff(data.held_offsets)),
            seconds_per_epoch=timed,
            names=data.client_names,
            clock_seconds=None if speeds is None else speeds * data.samples,
        )
        truth = true_clients(config, population)
        kept, notes = (NotesInFiles(folder.path / name, durable=False) for name in (KEPT, NOTES))
        side = ClientSide(config.strategy, runner.layout.trainable_size, kept)
        world = World(
            clients=RationalClients(truth, runner, notes, side),
            population=told(population, truth.behaviours, config.strategy.best_report),
            behaved=truth,
            initial_params=runner.initial_params,
            trainer=runner.trainer,
            class_counts=class_counts(data),
            measured=about_measures(measures),
            keepers=(kept, notes),
            data_sha256=data.sha256,
            card=ModelCard.of(data, runner.naming, start),
            clock=None if speeds is None else virtual_clock(config, truth, speeds),
        )
        carry_out(config, folder, world, assignment.callbacks)
