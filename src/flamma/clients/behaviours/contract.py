"""The contract of behaviours: three moments at which a client may depart from the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.seeding import stream
from flamma.types import LocalTask, Params, Population, Profile, Report, Terms

Respond = Callable[[Terms, Profile], LocalTask]
"""What a client of the strategy does if it is rational and honest."""

BestReport = Callable[[Population, int], float]
"""Returns the cost that a client would best report, if it knew all others' true costs."""


class Notes:
    """What a client keeps from one round to another; here in memory only.

    A note belongs to the round it was made in, and a client reads the last one of an earlier
    round: so a run that is interrupted and goes on from an earlier round reads what it read the
    first time.
    """

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, Params]] = {}

    def write(self, client: int, round: int, note: Params) -> None:  # noqa: A002
        """Keep a vector."""
        self._kept.setdefault(client, {})[round] = note

    def read(self, client: int, round: int) -> Params | None:  # noqa: A002
        """Return the client's last note of an earlier round, None if there is none."""
        own = self._kept.get(client, {})
        return own[max(earlier)] if (earlier := [r for r in own if r < round]) else None


@dataclass(frozen=True, eq=False)
class Introduction:
    """What a client knows when it introduces itself.

    Attributes
    ----------
    profile : Profile
        The truth about itself.
    population : Population, optional
        The truth about all clients, for a liar that knows more than it should; None at a site,
        which knows only itself.
    best_report : callable, optional
        The strategy's; None where costs play no role.
    """

    profile: Profile
    population: Population | None = None
    best_report: BestReport | None = None


@dataclass(frozen=True, eq=False)
class Encounter:
    """One offer, as the client sees it.

    Attributes
    ----------
    terms : Terms
        What the server offers.
    profile : Profile
        The truth about the client.
    respond : callable
        The strategy's rational and honest response.
    seed : int
        Of the run, for random numbers.
    group : tuple of int
        The clients that have the same behaviour from the same entry, in order; they may collude.
    selected : tuple of int
        All clients of the round, when :meth:`Behaviour.effort` is asked; empty before that, for a
        client is not told who else was selected.
    """

    terms: Terms
    profile: Profile
    respond: Respond
    seed: int
    group: tuple[int, ...] = ()
    selected: tuple[int, ...] = ()

    @cached_property
    def honest(self) -> LocalTask:
        """What an honest client of this profile does."""
        return self.respond(self.terms, self.profile)

    def at_cost(self, factor: float) -> LocalTask:
        """Return what an honest client would do whose cost is this multiple of the true one."""
        return self.respond(self.terms, with_cost(self.profile, self.profile.cost * factor))

    @property
    def warms_up(self) -> bool:
        """Whether this is the warm-up before the first round, which is not paid for."""
        return self.terms.iterations is not None

    def rng(self, shared: bool = False) -> np.random.Generator:
        """Return the random stream of this client and round, or the one that its group shares."""
        client = min(self.group) if shared and self.group else self.terms.client
        return stream(self.seed, "behaviour", self.terms.round, client)


@dataclass(frozen=True)
class Behaviour:
    """An honest client; others override what they do differently.

    All three moments must depend on their arguments alone, so that a run can be repeated. Numbers
    of a model are to be added up by :mod:`flamma.numerics`, and random numbers to be drawn from
    :meth:`Encounter.rng`, so that every machine gets the same bits.
    """

    def tell(self, introduction: Introduction) -> Profile:
        """Return what the client says of itself when it introduces itself."""
        return introduction.profile

    def act(self, encounter: Encounter) -> LocalTask:
        """Return what the client really does with an offer; 0 epochs is nothing."""
        return encounter.honest

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
        """Return what the client sends back.

        Without training, ``report`` has no params and no failure: an honest client abstains.
        """
        return report

    def effort(self, task: LocalTask, encounter: Encounter) -> float:
        """Return what the client's cost is multiplied with: epochs squared times share of data."""
        return task.data.share * task.epochs**2


def with_cost(profile: Profile, cost: float) -> Profile:
    """Return the profile with another cost, the nearest one that a game can have."""
    return replace(profile, cost=float(np.clip(cost, SMALLEST_COST, LARGEST_COST)))
