"""The truth about clients that need not tell it, for the record and the certificate alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from flamma.clients.behaviours.contract import (
    Behaviour,
    BestReport,
    Encounter,
    Introduction,
    Respond,
)
from flamma.types import LocalTask, Population, Profile, Terms


def profile_of(population: Population, client: int) -> Profile:
    """Return what a client knows of itself; its cost is NaN where it has none."""
    cost = float("nan") if population.costs is None else float(population.costs[client])
    return Profile(client, cost, int(population.samples[client]))


def told(
    population: Population,
    behaviours: Mapping[int, Behaviour],
    best_report: BestReport | None = None,
) -> Population:
    """Return the population as the clients report it to the server."""
    if not behaviours:
        return population
    samples = population.samples.copy()
    costs = None if population.costs is None else population.costs.copy()
    for client, behaviour in behaviours.items():
        true = profile_of(population, client)
        said = behaviour.tell(Introduction(true, population, best_report))
        samples[client] = said.samples
        if costs is not None:
            costs[client] = said.cost
    return replace(population, samples=samples, costs=costs)


@dataclass(frozen=True, eq=False)
class TrueClients:
    """Who the clients are and what they really do.

    Attributes
    ----------
    population : Population
        The true one.
    behaviours : mapping of int to Behaviour
        Of the clients that are not honest.
    respond : callable, optional
        The strategy's; None where what clients do is not known.
    seed : int
        Of the run.
    """

    population: Population
    behaviours: Mapping[int, Behaviour] = field(default_factory=dict)
    respond: Respond | None = None
    seed: int = 0

    def honest_task(self, terms: Terms) -> LocalTask:
        """Return what the client of an offer does if it is honest."""
        assert self.respond is not None
        return self.respond(terms, profile_of(self.population, terms.client))

    def encounter(self, terms: Terms) -> Encounter:
        """Return an offer as its client sees it."""
        assert self.respond is not None
        profile = profile_of(self.population, terms.client)
        group = self._groups.get(id(self.behaviours.get(terms.client)), ())
        return Encounter(terms, profile, self.respond, self.seed, group)

    def task(self, terms: Terms) -> LocalTask:
        """Return what the client of an offer does, honest or not."""
        behaviour = self.behaviours.get(terms.client)
        if behaviour is None:
            return self.honest_task(terms)
        return behaviour.act(self.encounter(terms))

    def effort(self, terms: Terms, selected: tuple[int, ...]) -> float | None:
        """Return the effort of a client that is not honest; None if it does what it reports."""
        behaviour = self.behaviours.get(terms.client)
        if behaviour is None or self.respond is None:
            return None
        encounter = self.encounter(terms)
        task = behaviour.act(encounter)
        return behaviour.effort(task, replace(encounter, selected=selected))

    @cached_property
    def _groups(self) -> dict[int, tuple[int, ...]]:
        return groups_of(self.behaviours)


def groups_of(behaviours: Mapping[int, Behaviour]) -> dict[int, tuple[int, ...]]:
    """Return the clients that have each behaviour, in order, by its identity.

    All clients of one entry of ``[behaviours]`` have one and the same object.
    """
    groups: dict[int, list[int]] = {}
    for client, behaviour in sorted(behaviours.items()):
        groups.setdefault(id(behaviour), []).append(client)
    return {key: tuple(clients) for key, clients in groups.items()}
