"""Which clients have which behaviour, as the table ``[behaviours]`` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flamma.clients.behaviours.catalogue import BEHAVIOURS
from flamma.clients.behaviours.contract import Behaviour
from flamma.errors import ConfigError
from flamma.names import quoted
from flamma.options import convert
from flamma.registry import Choice
from flamma.seeding import stream


@dataclass(frozen=True)
class BehaviourAssignment:
    """A behaviour and the clients that have it: how many, what share, or which ones.

    ``key`` is what the configuration calls it, which need not be the behaviour's name.
    """

    behaviour: Choice
    clients: int | float | tuple[int, ...]
    key: str

    def as_table(self) -> dict[str, Any]:
        """Return it as a configuration writes it."""
        own = {"clients": self.clients, **self.behaviour.options}
        return own if self.key == self.behaviour.name else {"name": self.behaviour.name, **own}


def read_assignments(table: Any) -> tuple[BehaviourAssignment, ...]:
    """Return what the table ``[behaviours]`` says: by name, the clients and the options.

    An entry may have another key if it says its ``name``, so that a behaviour can be had twice.

    Examples
    --------
    >>> [half] = read_assignments({"honest": {"clients": 0.5}})
    >>> half.behaviour.name, half.clients
    ('honest', 0.5)
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"behaviours must be a table, not {quoted(table)}.")
    found = []
    for key, own in table.items():
        where = f"behaviours.{key}"
        if not isinstance(own, Mapping) or "clients" not in own:
            raise ConfigError(f"{where} must be a table that says which clients.")
        who = convert(own["clients"], int | float | tuple[int, ...], f"{where}.clients")
        if isinstance(who, float) and not 0 <= who <= 1:
            raise ConfigError(f"{where}.clients must be a share from 0 to 1, not {who:g}.")
        if not isinstance(who, tuple) and who < 0:
            raise ConfigError(f"{where}.clients must not be negative, but it is {who}.")
        options = {key: value for key, value in own.items() if key != "clients"}
        choice = BEHAVIOURS.choose({"name": key, **options}, where)
        found.append(BehaviourAssignment(choice, who, key))
    return tuple(found)


def assign(
    assignments: tuple[BehaviourAssignment, ...], clients: int, seed: int
) -> dict[int, Behaviour]:
    """Return the behaviour of every client that is not honest.

    Where a number or a share of clients is asked for, they are drawn by the seed, never one that
    has a behaviour already. Clients that are assigned ``honest`` are like those that are not
    assigned anything, but no later entry draws them.

    Raises
    ------
    ConfigError
        If there are not so many clients, a client is given two behaviours, or an option has an
        impossible value.
    """
    found: dict[int, Behaviour] = {}
    for number, assignment in enumerate(assignments):
        name, who = assignment.key, assignment.clients
        if not isinstance(who, tuple):
            count = round(who * clients) if isinstance(who, float) else who
            free = np.delete(np.arange(clients), list(found))
            if count > free.size:
                raise ConfigError(f"behaviours.{name} is for {count} clients of {free.size} left.")
            rng = stream(seed, "behaviours", number)
            who = tuple(sorted(rng.choice(free, size=count, replace=False).tolist()))
        behaviour = make_behaviour(assignment.behaviour, f"behaviours.{name}")
        for client in who:
            if not 0 <= client < clients or client in found:
                raise ConfigError(
                    f"behaviours.{name} names client {client}, which does not exist or has a "
                    f"behaviour already."
                )
            found[client] = behaviour
    return {client: own for client, own in found.items() if type(own) is not Behaviour}


def make_behaviour(choice: Choice, where: str) -> Behaviour:
    """Return a behaviour with its options.

    Raises
    ------
    ConfigError
        If an option has an impossible value; ``where`` says in which table.
    """
    try:
        made: Behaviour = BEHAVIOURS.bind(choice)()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return made
