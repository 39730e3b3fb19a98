"""Engines: where the clients of a run are, and who carries it out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from flamma.experiments.callbacks import Callbacks
from flamma.processes import MOST_PROCESSES
from flamma.registry import Between, CheckedOptions, Registry, above, at_least

if TYPE_CHECKING:
    from flamma.clients.trust import TrustLimits
    from flamma.experiments.config import Config
    from flamma.experiments.folder import RunFolder
    from flamma.experiments.loop import RunClients
    from flamma.experiments.user_objects import UserObjects
    from flamma.types import Inputs, Targets


GIVEN_UP = "the run was given up: "
"""What the reason begins with for which a server ends a run, where an accident has none."""


@dataclass(frozen=True, eq=False)
class RunParts:
    """What an engine is given to carry out a run, or what is left of it.

    Attributes
    ----------
    config : Config
        What to run.
    folder : RunFolder
        The directory of the run.
    objects : UserObjects
        What of it is the user's own; None where the configuration names it.
    callbacks : Callbacks
        The engine tells them of the start and of every round, not of the end.
    data_dir : Path, optional
        Where datasets are kept.
    begins : bool
        Whether the directory must not hold a run yet.
    """

    config: Config
    folder: RunFolder
    objects: UserObjects
    callbacks: Callbacks = field(default_factory=Callbacks)
    data_dir: Path | None = None
    begins: bool = False

    def check_free(self) -> None:
        """Refuse to begin in a directory that holds a run, now that it is locked.

        Raises
        ------
        RunError
            If another process has begun one here meanwhile.
        """
        if self.begins:
            self.folder.check_free()


@dataclass(frozen=True)
class Engine(CheckedOptions, ABC, within="engine."):
    """Where clients run. The fields of an engine are the keys of the table ``[engine]``.

    Another package adds one by an entry point of the group ``flamma.engines`` that names a class
    derived from this one.

    Parameters
    ----------
    processes : int
        Worker processes on this machine; the results do not depend on it.
    time_limit : float
        Seconds after which a client is late and its update is not used; 0 for no limit.

    Attributes
    ----------
    name, summary : str
        Its name in the registry, and one line about it.
    controls_clients : bool
        Whether the clients are functions in our own processes: only then can their data be pooled.
    gives_behaviours : bool
        Whether clients behave as the configuration's table ``[behaviours]`` says.
    needs : tuple of str
        The modules that it runs on, which may be missing; a run checks them.
    clients_hold_data : bool
        Whether the clients bring the data, so that a run needs none.
    """

    processes: Annotated[int, Between(1, MOST_PROCESSES)] = 1
    time_limit: Annotated[float, at_least(0)] = 0.0

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    controls_clients: ClassVar[bool] = False
    gives_behaviours: ClassVar[bool] = False
    clients_hold_data: ClassVar[bool] = False

    @abstractmethod
    def execute(self, parts: RunParts) -> None:
        """Begin a run, or go on with it, to its end."""


@dataclass(frozen=True)
class NetworkEngine(Engine):
    """Clients behind a network, or behind the messages of one.

    Parameters
    ----------
    wait : float
        Seconds that the server waits for the answers of a round.
    """

    wait: Annotated[float, above(0)] = 3600.0

    def quorum(self, clients: int) -> int:
        """Return how many of the clients a run needs to go on, and to begin; 0 never waits.

        Without a quorum all clients must be there at the beginning.
        """
        return 0

    def quorum_seconds(self) -> float:
        """Return how long a run waits for its quorum before that is an error; 0 for no end."""
        return 0.0

    def trust_limits(self) -> TrustLimits:
        """Return how far the server believes clients that are not its own."""
        from flamma.clients.trust import TrustLimits

        return TrustLimits()

    def validation_set(self) -> tuple[Inputs, Targets] | None:
        """Return the samples and targets that the server has of its own; None if it has none."""
        return None


ENGINES: Registry[type[Engine]] = Registry(
    "engine",
    "flamma.engines",
    {
        "local": "flamma.experiments.engine:LocalEngine",
        "flower": "flamma.engines.flower.simulation:FlowerSimulation",
        "deployment": "flamma.deploy.engine:Deployment",
    },
)
"""All engines by name."""


# The local engine: all clients on this machine.


@dataclass(frozen=True)
class LocalEngine(Engine):
    """All clients on this machine, one after the other or over its cores."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "all clients on this machine's cores"
    controls_clients: ClassVar[bool] = True
    gives_behaviours: ClassVar[bool] = True

    def execute(self, parts: RunParts) -> None:
        """Begin a run, or go on with it, in this process and its workers."""
        from flamma.experiments.loop import record_rounds

        folder = parts.folder
        folder.lock()
        try:
            parts.check_free()
            with _clients_of(parts) as run_clients:
                record_rounds(parts, run_clients)
        finally:
            folder.close()


@contextmanager
def _clients_of(parts: RunParts) -> Iterator[RunClients]:
    """Make the clients of a run on this machine, and end their processes afterwards."""
    from flamma.clients.truth import KEPT, NOTES, NotesInFiles, told
    from flamma.data.federated import pooled
    from flamma.experiments.folder import DATA_SHA256
    from flamma.experiments.loop import (
        RunClients,
        check_validation,
        evaluated_clients,
        make_population,
        true_clients,
    )
    from flamma.experiments.run import (
        about_measures,
        build_data,
        build_measures,
        build_runner,
        check_room,
        class_counts,
        client_speeds,
        seconds_per_epoch,
        virtual_clock,
    )
    from flamma.experiments.trained import ModelCard, start_of
    from flamma.experiments.user_objects import check_same_data
    from flamma.simulation.client_side import ClientSide
    from flamma.simulation.clients import LocalClients

    check_room(parts)
    config, folder, objects = parts.config, parts.folder, parts.objects
    data = objects.federation(config)
    data = build_data(config, parts.data_dir) if data is None else data
    check_same_data(folder, data)
    data = pooled(data) if config.strategy.needs.pooled_data else data
    check_validation(config, len(data.validation_y))
    evaluated = evaluated_clients(config)
    measures = build_measures(config, data.task, objects.loss, objects.metric)
    start = start_of(config, folder, objects.start)
    with build_runner(
        config,
        data,
        objects.model,
        evaluated=evaluated,
        start=start,
        measures=measures,
        augment=objects.augment,
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
        yield RunClients(
            clients=LocalClients(truth, runner, notes, side),
            population=told(population, truth.behaviours, config.strategy.best_report),
            truth=truth,
            initial_params=runner.initial_params,
            trainer=runner.trainer,
            about={**about_measures(measures), DATA_SHA256: data.sha256},
            class_counts=class_counts(data),
            client_stores=(kept, notes),
            card=ModelCard.of(data, runner.naming, start),
            clock=None if speeds is None else virtual_clock(config, truth, speeds),
        )
