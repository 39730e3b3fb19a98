"""The virtual clock of a run: the speeds of its clients, and what their work takes."""

from __future__ import annotations

import math
from collections.abc import Callable

from flamma.clients.behaviours import TrueClients
from flamma.clients.clock import VirtualClock
from flamma.clients.speeds import SPEED_COLUMN, PacedClients, constant_speed, true_speeds
from flamma.errors import RunError
from flamma.experiments.config import Config
from flamma.experiments.folder import POPULATION, RunFolder
from flamma.experiments.population import read_columns
from flamma.options import read_options
from flamma.registry import Choice
from flamma.types import Floats, Ints, LocalTask, Terms


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

    def tasks_of(terms: Terms) -> list[LocalTask]:
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
