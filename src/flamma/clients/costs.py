"""Costs and speeds of clients: given, sampled, measured, or read from a file.

A cost c is in units of utility per squared epoch: τ local epochs cost a client c τ². A kind of
costs is a function of the clients whose keyword parameters are its options. Another package adds
one by an entry point of the group ``flamma.costs``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from flamma.errors import ConfigError
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.io import CsvTable, printable, quoted, read_csv, read_text
from flamma.numerics import exp, normal
from flamma.registry import Choice, Registry, above, at_least, read_options
from flamma.seeding import stream
from flamma.types import Floats, Ints

# Clients from a CSV file: their contributions, costs and, optionally, names.


def read_clients(path: Path) -> tuple[list[str], list[float], list[float]]:
    """Return names, contributions and costs of the clients in a CSV file."""
    table = read_csv(read_text(path), str(path), ("contribution", "cost"))
    given = table.columns.get("name", [""] * len(table.lines))
    names = [printable(name, 60) or f"client {client}" for client, name in enumerate(given)]
    contributions = _numbers(table, "contribution", 0, 1, "lie in [0, 1]")
    return names, contributions, _numbers(table, "cost")


def _numbers(
    table: CsvTable,
    column: str,
    low: float = SMALLEST_COST,
    high: float = LARGEST_COST,
    rule: str = "be positive and finite",
) -> list[float]:
    """Return a column of numbers between two bounds, both included."""
    numbers = []
    for row, cell in enumerate(table.columns[column]):
        if not cell:
            raise table.error(row, f"the {column} is missing")
        try:
            numbers.append(float(cell))
        except ValueError:
            raise table.error(row, f"the {column} {quoted(cell)} is not a number") from None
        if not low <= numbers[-1] <= high:
            raise table.error(row, f"the {column} must {rule}, not {numbers[-1]:g}")
    return numbers


_DEFAULT_VALUE = 0.1


@dataclass(frozen=True, eq=False)
class CostedClients:
    """The clients whose costs a cost kind computes.

    Attributes
    ----------
    count : int
        The number of clients.
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


def _constant(
    clients: CostedClients, *, value: Annotated[float, above(0)] = _DEFAULT_VALUE
) -> Floats:
    """Give every client the same cost.

    Parameters
    ----------
    value : float
        The cost, in utility per squared epoch.
    """
    return np.full(clients.count, value, dtype=np.float64)


def _lognormal(
    clients: CostedClients,
    *,
    value: Annotated[float, above(0)] = _DEFAULT_VALUE,
    spread: Annotated[float, at_least(0)] = 0.5,
) -> Floats:
    """Draw costs around a median; a client's cost does not depend on how many others there are.

    Parameters
    ----------
    value : float
        The median cost, in utility per squared epoch.
    spread : float
        The standard deviation of the logarithm of a cost; 0 makes all equal.
    """
    return _around_median("costs", clients.seed, clients.count, value, spread)


def _around_median(what: str, seed: int, count: int, median: float, spread: float) -> Floats:
    """Draw positive numbers around a median, by a stream of their own.

    ``spread`` is the standard deviation of their logarithm.
    """
    drawn: Floats = median * exp(spread * normal(stream(seed, what), count))
    return drawn


def _measured(
    clients: CostedClients, *, value: Annotated[float, above(0)] = _DEFAULT_VALUE
) -> Floats:
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


def _by_clock(
    clients: CostedClients, *, value: Annotated[float, above(0)] = _DEFAULT_VALUE
) -> Floats:
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


def _from_csv(clients: CostedClients, *, file: str = "") -> Floats:
    """Read the column ``cost`` of a CSV file with one line per client.

    Parameters
    ----------
    file : str
        The path of the file.
    """
    if not file:
        raise ConfigError("csv costs need the path of a file with the column cost: costs.file.")
    costs = _numbers(read_csv(read_text(Path(file)), file, ["cost"]), "cost")
    return _one_for_each(file, "costs", costs, clients.count)


def _one_for_each(where: str, what: str, values: Sequence[float], clients: int) -> Floats:
    """Return the numbers of a file or a list as an array."""
    if len(values) != clients:
        raise ConfigError(
            f"{where} lists {what} for {len(values)} clients, but the federation has {clients}."
        )
    return np.array(values, dtype=np.float64)


COSTS: Registry[Callable[..., Floats]] = Registry(
    "kind of costs",
    "flamma.costs",
    {
        "constant": _constant,
        "lognormal": _lognormal,
        "measured": _measured,
        "csv": _from_csv,
        "clock": _by_clock,
    },
)
"""The kinds of costs by name: ``(clients, **options) -> costs``, one per client."""


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
    read_options(COSTS[kind.name], kind.options, "costs.")
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


# Speeds of clients in virtual time.
#
# A client's speed is the seconds that it takes for one training sample in one epoch. A kind of
# speeds is a function of the clients whose keyword parameters are its options. Another package
# adds one by an entry point of the group ``flamma.speeds``.

_DEFAULT_SECONDS = 0.001
"""Default seconds for a sample."""

SPEED_COLUMN = "seconds_per_sample"
"""The column of a file with clients' speeds."""

_MAX_SECONDS = 1e9
"""Upper bound of the seconds for a sample, some thirty years."""


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


def _constant_speed(
    clients: PacedClients, *, seconds_per_sample: Annotated[float, above(0)] = _DEFAULT_SECONDS
) -> Floats:
    """Give every client the same speed.

    Parameters
    ----------
    seconds_per_sample : float
        Seconds for one sample in one epoch.
    """
    return np.full(clients.samples.size, seconds_per_sample, dtype=np.float64)


def _lognormal_speed(
    clients: PacedClients,
    *,
    seconds_per_sample: Annotated[float, above(0)] = _DEFAULT_SECONDS,
    spread: Annotated[float, at_least(0)] = 0.5,
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
    return _around_median("speeds", clients.seed, count, seconds_per_sample, spread)


def _listed_speed(clients: PacedClients, *, seconds_per_sample: tuple[float, ...] = ()) -> Floats:
    """Take speeds from a list.

    Parameters
    ----------
    seconds_per_sample : list of float
        Seconds for one sample in one epoch, one entry per client.
    """
    return _one_for_each("the list", "speeds", seconds_per_sample, clients.samples.size)


def _speed_from_csv(clients: PacedClients, *, file: str = "") -> Floats:
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
    table = read_csv(read_text(Path(file)), file, [SPEED_COLUMN])
    return _one_for_each(file, "speeds", _numbers(table, SPEED_COLUMN), clients.samples.size)


def _measured_speed(clients: PacedClients, *, slowdown: Annotated[float, above(0)] = 1.0) -> Floats:
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


SPEEDS: Registry[Callable[..., Floats]] = Registry(
    "kind of speeds",
    "flamma.speeds",
    {
        "constant": _constant_speed,
        "lognormal": _lognormal_speed,
        "list": _listed_speed,
        "csv": _speed_from_csv,
        "measured": _measured_speed,
    },
)
"""The kinds of speeds by name: ``(clients, **options) -> seconds per sample``, one per client."""


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
    read_options(SPEEDS[kind.name], kind.options, "clock.speeds.")
    with np.errstate(over="ignore", under="ignore"):
        speeds: Floats = SPEEDS.bind(kind)(clients)
    if speeds.shape != clients.samples.shape:
        raise ConfigError(f"{kind.name} speeds must be one for each of the clients.")
    for client, seconds in enumerate(speeds.tolist()):
        if not (math.isfinite(seconds) and 0 < seconds <= _MAX_SECONDS):
            raise ConfigError(
                f"{kind.name} speeds must be above 0 and at most {_MAX_SECONDS:g} seconds per "
                f"sample, but client {client} has {seconds:g}."
            )
    return speeds
