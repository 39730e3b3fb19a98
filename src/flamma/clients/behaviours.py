"""Behaviours: what a client reports, does and sends back; honest unless a run says otherwise.

A behaviour has three moments, and each may depart from the truth: what a client tells when it
introduces itself, what it does with an offer, and what it sends back. The server sees only what it
is told. Another package adds one by an entry point of the group ``flamma.behaviours`` that names a
frozen dataclass derived from :class:`Behaviour`; its fields are its options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flamma.errors import ConfigError
from flamma.names import quoted
from flamma.options import convert
from flamma.registry import Choice, Registry
from flamma.seeding import stream
from flamma.types import LocalTask, Params, Population, Profile, Report, Terms

Respond = Callable[[Terms, Profile], LocalTask]
"""What a client of the strategy does if it is rational and honest."""


@dataclass(frozen=True)
class Behaviour:
    """An honest client; others override what they do differently."""

    def tell(self, profile: Profile) -> Profile:
        """Return what the client says of itself when it introduces itself."""
        return profile

    def act(self, respond: Respond, terms: Terms, profile: Profile) -> LocalTask:
        """Return what the client does with an offer; ``profile`` is its true one."""
        return respond(terms, profile)

    def send(self, report: Report, received: Params) -> Report:
        """Return what the client sends back after it has received a model and worked on it."""
        return report


def told(population: Population, behaviours: Mapping[int, Behaviour]) -> Population:
    """Return the population as the clients report it to the server."""
    if population.costs is None:
        return population
    samples, costs = population.samples.copy(), population.costs.copy()
    for client, behaviour in behaviours.items():
        said = behaviour.tell(Profile(client, float(costs[client]), int(samples[client])))
        samples[client], costs[client] = said.samples, said.cost
    return replace(population, samples=samples, costs=costs)


BEHAVIOURS: Registry[type[Behaviour]] = Registry(
    "behaviour", "flamma.behaviours", {"honest": Behaviour}
)
"""All behaviours by name."""


@dataclass(frozen=True)
class BehaviourAssignment:
    """A behaviour and the clients that have it: how many, what share, or which ones."""

    behaviour: Choice
    clients: int | float | tuple[int, ...]

    def as_table(self) -> dict[str, Any]:
        """Return it as a configuration writes it."""
        return {"clients": self.clients, **self.behaviour.options}


def read_assignments(table: Any) -> tuple[BehaviourAssignment, ...]:
    """Return what the table ``[behaviours]`` says: by name, the clients and the options.

    Examples
    --------
    >>> read_assignments({"honest": {"clients": 0.5}})
    (BehaviourAssignment(behaviour=Choice(name='honest', options={}), clients=0.5),)
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"behaviours must be a table, not {quoted(table)}.")
    found = []
    for name, own in table.items():
        where = f"behaviours.{name}"
        if not isinstance(own, Mapping) or "clients" not in own:
            raise ConfigError(f"{where} must be a table that says which clients.")
        who = convert(own["clients"], int | float | tuple[int, ...], f"{where}.clients")
        if isinstance(who, float) and not 0 <= who <= 1:
            raise ConfigError(f"{where}.clients must be a share from 0 to 1, not {who:g}.")
        if not isinstance(who, tuple) and who < 0:
            raise ConfigError(f"{where}.clients must not be negative, but it is {who}.")
        options = {key: value for key, value in own.items() if key != "clients"}
        found.append(BehaviourAssignment(BEHAVIOURS.choose({"name": name, **options}, where), who))
    return tuple(found)


def assign(
    assignments: tuple[BehaviourAssignment, ...], clients: int, seed: int
) -> dict[int, Behaviour]:
    """Return the behaviour of every client that has one of its own; the others are honest.

    Where a number or a share of clients is asked for, they are drawn by the seed, never one that
    has a behaviour already.

    Raises
    ------
    ConfigError
        If there are not so many clients, or a client is given two behaviours.
    """
    found: dict[int, Behaviour] = {}
    for number, assignment in enumerate(assignments):
        name, who = assignment.behaviour.name, assignment.clients
        if not isinstance(who, tuple):
            count = round(who * clients) if isinstance(who, float) else who
            free = np.delete(np.arange(clients), list(found))
            if count > free.size:
                raise ConfigError(f"behaviours.{name} is for {count} clients of {free.size} left.")
            rng = stream(seed, "behaviours", number)
            who = tuple(sorted(rng.choice(free, size=count, replace=False).tolist()))
        behaviour = BEHAVIOURS.bind(assignment.behaviour)()
        for client in who:
            if not 0 <= client < clients or client in found:
                raise ConfigError(
                    f"behaviours.{name} names client {client}, which does not exist or has a "
                    f"behaviour already."
                )
            found[client] = behaviour
    return found
