"""What local epochs cost each client: given, drawn, measured, or read from a file.

A cost c is in units of utility per squared epoch: τ local epochs cost a client c τ².
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from flamma.clients.table import read_costs
from flamma.errors import ConfigError
from flamma.names import unknown
from flamma.seeding import stream
from flamma.types import Floats


@dataclass(frozen=True, eq=False)
class _Request:
    """Everything a kind of costs may look at; each takes what it needs."""

    clients: int
    seed: int
    value: float
    spread: float
    seconds_per_epoch: ArrayLike | None
    path: str | Path | None


def draw_costs(
    kind: str,
    clients: int,
    seed: int,
    value: float = 0.1,
    spread: float = 0.0,
    seconds_per_epoch: ArrayLike | None = None,
    path: str | Path | None = None,
) -> Floats:
    """Return the cost of each client, all of them positive and finite.

    Parameters
    ----------
    kind : str
        ``constant``: everybody has the cost ``value``.
        ``lognormal``: drawn around the median ``value``; the same client has the same cost
        however many others there are.
        ``measured``: ``value`` is the price of one second of training.
        ``csv``: the column ``cost`` of a file, one line per client.
    clients : int
        How many clients there are.
    seed : int
        The seed of the experiment.
    value : float
        A cost (utility per squared epoch) or, for ``measured``, the price of a second.
    spread : float
        The standard deviation of the logarithm of a drawn cost; 0 makes all equal.
    seconds_per_epoch : array_like, optional
        How long one local epoch takes each client, for ``measured``.
    path : str or Path, optional
        The file, for ``csv``.

    A kind does not look at what is meant for another.

    Raises
    ------
    ConfigError
        If the kind is unknown, or what it needs is missing or cannot work.
    InputFileError
        If the file cannot be used.

    Examples
    --------
    >>> draw_costs("constant", clients=3, seed=0, value=0.2)
    array([0.2, 0.2, 0.2])
    >>> draw_costs("measured", clients=2, seed=0, value=0.01, seconds_per_epoch=[5, 20])
    array([0.05, 0.2 ])
    """
    if kind not in KINDS:
        raise ConfigError(unknown("kind of costs", kind, KINDS))
    if clients < 1:
        raise ConfigError(f"costs need at least one client, not {clients}.")
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"the value of costs must be positive and finite, not {value:g}.")
    if not (math.isfinite(spread) and spread >= 0):
        raise ConfigError(f"the spread of costs must be finite and at least 0, not {spread:g}.")
    with np.errstate(over="ignore", under="ignore"):
        costs = KINDS[kind](_Request(clients, seed, value, spread, seconds_per_epoch, path))
    usable = np.isfinite(costs) & (costs > 0)
    if not usable.all():
        first = int(np.argmin(usable))
        raise ConfigError(
            f"{kind} costs must come out positive and finite, but client {first} has "
            f"{costs[first]:g}: use a smaller spread or a value nearer to 1."
        )
    return costs


def _constant(request: _Request) -> Floats:
    return np.full(request.clients, request.value, dtype=np.float64)


def _lognormal(request: _Request) -> Floats:
    noise = stream(request.seed, "costs").standard_normal(request.clients)
    costs: Floats = request.value * np.exp(request.spread * noise)
    return costs


def _measured(request: _Request) -> Floats:
    if request.seconds_per_epoch is None:
        raise ConfigError("measured costs need the seconds that an epoch takes each client.")
    seconds = np.asarray(request.seconds_per_epoch, dtype=np.float64)
    if seconds.shape != (request.clients,):
        raise ConfigError(
            f"measured costs need one number of seconds for each of {request.clients} clients, "
            f"but their shape is {seconds.shape}."
        )
    usable = np.isfinite(seconds) & (seconds > 0)
    if not usable.all():
        first = int(np.argmin(usable))
        raise ConfigError(
            f"seconds per epoch must be positive and finite, "
            f"but client {first} has {seconds[first]:g}."
        )
    costs: Floats = request.value * seconds
    return costs


def _from_csv(request: _Request) -> Floats:
    if request.path is None:
        raise ConfigError("csv costs need the path of a file with the column cost.")
    _, costs = read_costs(Path(request.path))
    if len(costs) != request.clients:
        raise ConfigError(
            f"{request.path} has the costs of {len(costs)} clients, but there are "
            f"{request.clients}: make them equally many."
        )
    return np.array(costs, dtype=np.float64)


KINDS: dict[str, Callable[[_Request], Floats]] = {
    "constant": _constant,
    "lognormal": _lognormal,
    "measured": _measured,
    "csv": _from_csv,
}
"""The kinds of costs by name."""
