"""The truth about clients that need not tell it, for the record and the certificate alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flamma.clients.behaviours.contract import (
    Behaviour,
    BestReport,
    Encounter,
    Introduction,
    Respond,
)
from flamma.types import Population, Profile, Terms


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
    if population.costs is None or not behaviours:
        return population
    samples, costs = population.samples.copy(), population.costs.copy()
    for client, behaviour in behaviours.items():
        true = profile_of(population, client)
        said = behaviour.tell(Introduction(true, population, best_report))
        samples[client], costs[client] = said.samples, said.cost
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

    def encounter(self, terms: Terms, selected: tuple[int, ...] = ()) -> Encounter:
        """Return an offer as its client sees it."""
        assert self.respond is not None
        profile = profile_of(self.population, terms.client)
        mine = self.behaviours.get(terms.client)
        group = tuple(c for c, other in self.behaviours.items() if other is mine)
        return Encounter(terms, profile, self.respond, self.seed, group, selected)

    def effort(self, terms: Terms, selected: tuple[int, ...]) -> float | None:
        """Return the effort of a client that is not honest; None if it does what it reports."""
        behaviour = self.behaviours.get(terms.client)
        if behaviour is None or self.respond is None:
            return None
        encounter = self.encounter(terms, selected)
        return behaviour.effort(behaviour.act(encounter), encounter)
