"""Where a run takes place: its clients, what is known of them, and the first weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from flamma.clients.behaviours import TrueClients, assign
from flamma.clients.clock import VirtualClock
from flamma.clients.costs import CostedClients, true_costs
from flamma.clients.speeds import SPEED_COLUMN
from flamma.errors import ConfigError, RunError
from flamma.experiments.config import OWN, Config
from flamma.experiments.folder import POPULATION, RunFolder
from flamma.experiments.model_card import ModelCard
from flamma.experiments.population import CLIENTS_AT_ONCE, csv_cell, read_columns, whole
from flamma.seeding import stream
from flamma.types import Floats, Ints, Layout, Params, Population

if TYPE_CHECKING:
    from flamma.federation import Clients


class Keeper(Protocol):
    """What clients keep from one round to another, wherever that is."""

    def sync(self) -> None:
        """Make it survive a power failure, before a checkpoint depends on it."""

    def prune(self, earliest: int) -> None:
        """Remove what is not read by a run that goes on from this round or a later one."""


@dataclass(frozen=True, eq=False)
class World:
    """Everything that a run needs besides its configuration and its directory.

    Attributes
    ----------
    clients : Clients
        What the round loop talks to.
    population : Population
        Who the clients are, as the server is told; costs are NaN where only the client knows.
    initial_params : ndarray
        The weights before the first round.
    trainer : str
        What the clients train with.
    class_counts : ndarray, optional
        How many samples of each class each client has, where the server may know that.
    behaved : TrueClients, optional
        What the clients are and do where that may differ from what the population tells, for the
        record and the certificate alone.
    looks_ahead : bool
        Whether the scores of a round come with the answers of the next one.
    keepers : tuple of Keeper
        What clients keep from one round to another.
    instance : str
        What tells this run from others of the same configuration, where clients need to know.
    data_sha256 : str
        The checksum of the file that the data were read from, if they were.
    card : ModelCard, optional
        What the weights are called, and what samples and classes are like.
    measured : mapping
        What ``about.json`` tells of the task and the metric, where it is not plain accuracy.
    clock : VirtualClock, optional
        What clients' work takes in virtual time, where the run has such a clock.
    """

    clients: Clients
    population: Population
    initial_params: Params
    trainer: str
    class_counts: Ints | None = None
    behaved: TrueClients | None = None
    looks_ahead: bool = False
    keepers: tuple[Keeper, ...] = ()
    instance: str = ""
    data_sha256: str = ""
    card: ModelCard | None = None
    measured: Mapping[str, str] = field(default_factory=dict)
    clock: VirtualClock | None = None

    @property
    def truth(self) -> TrueClients:
        """What the clients are and do, as far as it is known."""
        return TrueClients(self.population) if self.behaved is None else self.behaved


def make_population(
    config: Config,
    folder: RunFolder,
    layout: Layout,
    samples: Callable[[], tuple[Ints, Ints]],
    own_costs: Callable[[], Floats] | None = None,
    seconds_per_epoch: Callable[[], Floats] | None = None,
    names: tuple[str, ...] = (),
    clock_seconds: Floats | None = None,
) -> Population:
    """Return who the clients are: as the run first recorded them, else as they are now.

    Measured costs cannot be measured again, and a client may be away when a run goes on.

    Parameters
    ----------
    config, folder
        Of the run.
    layout : Layout
        What the weights are made of.
    samples : callable
        Returns the training and the held-out samples of each client.
    own_costs : callable, optional
        Returns the costs that clients have by themselves: NaN for one that does not tell it,
        infinite for one that has none and gets it from the configuration.
    seconds_per_epoch : callable, optional
        Times an epoch of each client.
    names : tuple of str
        What clients are called, where they are more than numbers.
    clock_seconds : ndarray, optional
        The virtual seconds of an epoch of each client, where there is a virtual clock.
    """
    known = read_population(folder)
    if known is not None:
        if len(known[2]) != config.data.clients:
            raise RunError(f"{POPULATION} has another number of clients than config.toml.")
        train, held, costs = known
        return Population(train, costs, layout.trainable_size, held, names, layout.trainable_sizes)
    train, held = samples()
    told = np.full(train.size, np.inf) if own_costs is None else own_costs()
    if np.isinf(told).any():
        clients = CostedClients(train.size, config.seed, seconds_per_epoch, clock_seconds)
        drawn = true_costs(config.costs, clients)
        told = np.where(np.isinf(told), drawn, told)
    return Population(train, told, layout.trainable_size, held, names, layout.trainable_sizes)


def true_clients(config: Config, population: Population) -> TrueClients:
    """Return who the clients really are, and which of them are not honest, as configured."""
    behaviours = assign(config.behaviours, population.clients, config.seed)
    return TrueClients(population, behaviours, config.strategy.respond, config.seed)


def check_validation(config: Config, samples: int) -> None:
    """Refuse a strategy that needs a validation set where the server has none."""
    who = config.strategy.in_need_of("needs_validation")
    if who and not samples:
        how = "set data.validation_samples, or give the server a validation set"
        if config.data.dataset == OWN and config.engine.clients_hold_data:
            how = "name a validation set in the server's host.toml, [validation] npz = ..."
        raise ConfigError(f"{who} scores updates on the server's own data: {how}.")


def evaluated_clients(config: Config) -> Ints | None:
    """Return the clients that evaluate models, in order, where the configuration asks for a sample.

    They are drawn once: with the same clients in every evaluation, curves and strategies of one
    seed differ by their models alone, and a resumed run goes on with the same ones.
    """
    clients = config.data.clients
    count = config.evaluation.sample_of(clients)
    if count is None:
        return None
    rng = stream(config.seed, "evaluated-clients")
    return np.sort(rng.choice(clients, size=count, replace=False))


def read_population(folder: RunFolder) -> tuple[Ints, Ints, Floats] | None:
    """Return samples, held-out samples and costs a run was begun with, None before that."""
    if not folder.exists:  # other files there are left over from a run that never began
        return None
    text = folder.text(POPULATION)
    if not text.partition("\n")[2].strip():
        return None
    try:
        columns = read_columns(text)
        train, held = (whole(columns[name]) for name in ("samples", "held_out"))
        return train, held, columns["cost"]
    except (KeyError, ValueError) as error:
        raise RunError(f"{folder.path / POPULATION} is damaged: remove it to go on.") from error


def population_table(world: World) -> str:
    """Return ``population.csv``: one line per client, with its true cost."""
    population, counts = world.truth.population, world.class_counts
    clients, names = population.clients, population.names
    held = np.zeros(clients, dtype=np.int64) if population.held_out is None else population.held_out
    costs = np.full(clients, np.nan) if population.costs is None else population.costs
    classes = [] if counts is None else [f"class_{k}" for k in range(counts.shape[1])]
    speeds = None if world.clock is None else world.clock.speeds
    header = ["client", "samples", "held_out", "cost", *([SPEED_COLUMN] if world.clock else [])]
    header += [*classes, *(["name"] if names else [])]
    parts = [",".join(header) + "\n"]
    # In parts, so that the objects that Python makes of a million clients are never all there.
    for first in range(0, clients, CLIENTS_AT_ONCE):
        own = slice(first, min(first + CLIENTS_AT_ONCE, clients))
        columns: list[Sequence[object]] = [
            range(own.start, own.stop),
            population.samples[own].tolist(),
            held[own].tolist(),
            [repr(cost) for cost in costs[own].tolist()],
            *([] if speeds is None else [[repr(speed) for speed in speeds[own].tolist()]]),
            *([] if counts is None else counts[own].T.tolist()),
            *([[csv_cell(name) for name in names[own]]] if names else []),
        ]
        parts += [",".join(map(str, row)) + "\n" for row in zip(*columns, strict=True)]
        parts = ["".join(parts)]
    return "".join(parts)
