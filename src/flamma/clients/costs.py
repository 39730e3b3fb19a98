"""What local epochs cost each client: given, drawn, measured, or read from a file.

A cost c is in units of utility per squared epoch: τ local epochs cost a client c τ². A kind of
costs is a function of the clients whose keyword parameters are its options. Another package adds
one by an entry point of the group ``flamma.costs``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flamma.clients.table import read_costs
from flamma.errors import ConfigError
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.numerics import exp, normal
from flamma.registry import Choice, Registry
from flamma.seeding import stream
from flamma.types import Floats

DEFAULT_VALUE = 0.1


@dataclass(frozen=True, eq=False)
class CostedClients:
    """The clients whose costs a cost kind computes.

    Attributes
    ----------
    count : int
        How many clients there are.
    seed : int
        The seed of the experiment.
    seconds_per_epoch : callable, optional
        Times a local epoch of each client; None where nothing can be timed.
    clock_seconds : ndarray, optional
        The virtual seconds of an epoch of each client; None where there is no virtual clock.
    """

    count: int
    seed: int
    seconds_per_epoch: Callable[[], Floats] | None = None
    clock_seconds: Floats | None = None


CostKind = Callable[..., Floats]
"""``(clients, **options) -> costs``, one per client."""


def constant(clients: CostedClients, *, value: float = DEFAULT_VALUE) -> Floats:
    """Give every client the same cost.

    Parameters
    ----------
    value : float
        The cost, in utility per squared epoch.
    """
    return np.full(clients.count, value, dtype=np.float64)


def lognormal(
    clients: CostedClients, *, value: float = DEFAULT_VALUE, spread: float = 0.5
) -> Floats:
    """Draw costs around a median; a client's cost does not depend on how many others there are.

    Parameters
    ----------
    value : float
        The median cost, in utility per squared epoch.
    spread : float
        The standard deviation of the logarithm of a cost; 0 makes all equal.
    """
    return around_median("costs", clients.seed, clients.count, value, spread)


def around_median(what: str, seed: int, count: int, median: float, spread: float) -> Floats:
    """Draw positive numbers around a median, by a stream of their own.

    Raises
    ------
    ConfigError
        If the spread, the standard deviation of their logarithm, is negative or not finite.
    """
    if not (math.isfinite(spread) and spread >= 0):
        raise ConfigError(f"the spread of {what} must be finite and at least 0, not {spread:g}.")
    drawn: Floats = median * exp(spread * normal(stream(seed, what), count))
    return drawn


def measured(clients: CostedClients, *, value: float = DEFAULT_VALUE) -> Floats:
    """Time an epoch of each client, and charge for the seconds.

    Parameters
    ----------
    value : float
        The price of one second of training.
    """
    if clients.seconds_per_epoch is None:
        raise ConfigError("measured costs need clients whose training can be timed.")
    seconds = np.asarray(clients.seconds_per_epoch(), dtype=np.float64)
    if seconds.shape != (clients.count,):
        raise ConfigError(
            f"measured costs need one number of seconds for each of {clients.count} clients, "
            f"but their shape is {seconds.shape}."
        )
    costs: Floats = value * seconds
    return costs


def by_clock(clients: CostedClients, *, value: float = DEFAULT_VALUE) -> Floats:
    """Charge for the virtual seconds of an epoch, by the table ``[clock]``.

    Parameters
    ----------
    value : float
        The price of one virtual second of training.
    """
    if clients.clock_seconds is None:
        raise ConfigError(
            "costs by the clock need clients with a speed in virtual time: set clock.speeds."
        )
    costs: Floats = value * clients.clock_seconds
    return costs


def from_csv(clients: CostedClients, *, file: str = "") -> Floats:
    """Read the column ``cost`` of a CSV file with one line per client.

    Parameters
    ----------
    file : str
        The path of the file.
    """
    if not file:
        raise ConfigError("csv costs need the path of a file with the column cost: costs.file.")
    _, costs = read_costs(Path(file))
    return one_for_each(file, "costs", costs, clients.count)


def one_for_each(where: str, what: str, values: Sequence[float], clients: int) -> Floats:
    """Return what a file or a list has for each client.

    Raises
    ------
    ConfigError
        If it is not one number for each of them.
    """
    if len(values) != clients:
        raise ConfigError(
            f"{where} has the {what} of {len(values)} clients, but there are {clients}: make "
            f"them equally many."
        )
    return np.array(values, dtype=np.float64)


COSTS: Registry[CostKind] = Registry(
    "kind of costs",
    "flamma.costs",
    {
        "constant": constant,
        "lognormal": lognormal,
        "measured": measured,
        "csv": from_csv,
        "clock": by_clock,
    },
)
"""The kinds of costs by name."""


def true_costs(kind: Choice, clients: CostedClients) -> Floats:
    """Return the cost of each client, all of them positive and finite.

    Raises
    ------
    ConfigError
        If the kind is unknown, or its costs cannot be used.
    InputFileError
        If the file it reads cannot be used.

    Examples
    --------
    >>> true_costs(Choice("constant", {"value": 0.2}), CostedClients(count=3, seed=0))
    array([0.2, 0.2, 0.2])
    """
    if clients.count < 1:
        raise ConfigError(f"costs need at least one client, not {clients.count}.")
    value = kind.options.get("value", DEFAULT_VALUE)
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"the value of costs must be positive and finite, not {value:g}.")
    with np.errstate(over="ignore", under="ignore"):
        costs: Floats = COSTS.bind(kind)(clients)
    usable = (costs >= SMALLEST_COST) & (costs <= LARGEST_COST)
    if costs.shape != (clients.count,) or not usable.all():
        first = int(np.argmin(usable)) if costs.shape == (clients.count,) else 0
        raise ConfigError(
            f"{kind.name} costs must come out positive and finite, one per client, but client "
            f"{first} has {costs.flat[first] if costs.size else 'none'}: use a smaller spread or a "
            f"value nearer to 1, so that costs lie in {SMALLEST_COST:g}..{LARGEST_COST:g}."
        )
    return costs
