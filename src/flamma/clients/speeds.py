"""How fast clients are in virtual time: given, drawn, measured, or read from a file.

A client's speed is the seconds that it takes for one training sample in one epoch. A kind of
speeds is a function of the clients whose keyword parameters are its options. Another package adds
one by an entry point of the group ``flamma.speeds``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flamma.clients.costs import around_median, one_for_each
from flamma.clients.table import read_column
from flamma.errors import ConfigError
from flamma.registry import Choice, Registry
from flamma.types import Floats, Ints

DEFAULT_SECONDS = 0.001
"""Seconds for a sample, where a kind of speeds is not told otherwise."""

SPEED_COLUMN = "seconds_per_sample"
"""The column of a file with clients' speeds."""

LONGEST_SECONDS = 1e9
"""The most seconds for a sample, some thirty years."""


@dataclass(frozen=True, eq=False)
class PacedClients:
    """The clients whose speeds a kind of speeds computes.

    Attributes
    ----------
    samples : ndarray
        The training samples of each client.
    seed : int
        The seed of the experiment.
    seconds_per_epoch : callable, optional
        Times a local epoch of each client; None where nothing can be timed.
    """

    samples: Ints
    seed: int
    seconds_per_epoch: Callable[[], Floats] | None = None


SpeedKind = Callable[..., Floats]
"""``(clients, **options) -> seconds per sample``, one per client."""


def constant_speed(clients: PacedClients, *, seconds_per_sample: float = DEFAULT_SECONDS) -> Floats:
    """Give every client the same speed.

    Parameters
    ----------
    seconds_per_sample : float
        Seconds for one sample in one epoch.
    """
    return np.full(clients.samples.size, seconds_per_sample, dtype=np.float64)


def lognormal_speed(
    clients: PacedClients, *, seconds_per_sample: float = DEFAULT_SECONDS, spread: float = 0.5
) -> Floats:
    """Draw speeds around a median; a client's speed does not depend on how many others there are.

    Parameters
    ----------
    seconds_per_sample : float
        The median of the seconds for one sample in one epoch.
    spread : float
        The standard deviation of their logarithm; 0 makes all clients equally fast.
    """
    count = clients.samples.size
    return around_median("speeds", clients.seed, count, seconds_per_sample, spread)


def listed_speed(clients: PacedClients, *, seconds_per_sample: tuple[float, ...] = ()) -> Floats:
    """Take speeds from a list.

    Parameters
    ----------
    seconds_per_sample : list of float
        Seconds for one sample in one epoch, one entry per client.
    """
    return one_for_each("the list", "speeds", seconds_per_sample, clients.samples.size)


def speed_from_csv(clients: PacedClients, *, file: str = "") -> Floats:
    """Read the column ``seconds_per_sample`` of a CSV file with one line per client.

    Parameters
    ----------
    file : str
        The path of the file.
    """
    if not file:
        raise ConfigError(
            f"csv speeds need the path of a file with the column {SPEED_COLUMN}: clock.speeds.file."
        )
    return one_for_each(file, "speeds", read_column(Path(file), SPEED_COLUMN), clients.samples.size)


def measured_speed(clients: PacedClients, *, slowdown: float = 1.0) -> Floats:
    """Time an epoch on this machine; all clients have that speed.

    Parameters
    ----------
    slowdown : float
        How many times slower clients are than this machine.
    """
    if clients.seconds_per_epoch is None:
        raise ConfigError("measured speeds need clients whose training can be timed.")
    largest = int(np.argmax(clients.samples))
    seconds = float(clients.seconds_per_epoch()[largest]) / max(1, int(clients.samples[largest]))
    return np.full(clients.samples.size, slowdown * seconds)


SPEEDS: Registry[SpeedKind] = Registry(
    "kind of speeds",
    "flamma.speeds",
    {
        "constant": constant_speed,
        "lognormal": lognormal_speed,
        "list": listed_speed,
        "csv": speed_from_csv,
        "measured": measured_speed,
    },
)
"""The kinds of speeds by name."""


def true_speeds(kind: Choice, clients: PacedClients) -> Floats:
    """Return the seconds per sample of each client, all of them positive and finite.

    Raises
    ------
    ConfigError
        If the kind is unknown, or its speeds cannot be used.
    InputFileError
        If the file it reads cannot be used.

    Examples
    --------
    >>> kind = Choice("list", {"seconds_per_sample": (0.5, 2.0)})
    >>> true_speeds(kind, PacedClients(np.array([10, 20]), seed=0))
    array([0.5, 2. ])
    """
    with np.errstate(over="ignore", under="ignore"):
        speeds: Floats = SPEEDS.bind(kind)(clients)
    if speeds.shape != clients.samples.shape:
        raise ConfigError(f"{kind.name} speeds must be one for each of the clients.")
    for client, seconds in enumerate(speeds.tolist()):
        if not (math.isfinite(seconds) and 0 < seconds <= LONGEST_SECONDS):
            raise ConfigError(
                f"{kind.name} speeds must be above 0 and at most {LONGEST_SECONDS:g} seconds per "
                f"sample, but client {client} has {seconds:g}."
            )
    return speeds
