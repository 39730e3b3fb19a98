"""Behaviours: what a client tells, does and sends back; honest unless a run says otherwise.

The server sees only what it is told. Another package adds a behaviour by an entry point of the
group ``flamma.behaviours`` that names a frozen dataclass derived from :class:`Behaviour`; its
fields are its options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np

from flamma.errors import ConfigError
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.io import quoted
from flamma.numerics import norm, normal
from flamma.registry import Between, CheckedOptions, Choice, Registry, above, at_least, convert
from flamma.seeding import stream
from flamma.types import (
    MOST_SAMPLES,
    DataUse,
    LocalWork,
    Params,
    Population,
    Profile,
    Terms,
    Update,
)

# The contract of behaviours: three moments at which a client may depart from the truth.

Respond = Callable[[Terms, Profile], LocalWork]
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

    def write(self, client: int, round: int, note: Params) -> None:
        """Keep a vector."""
        self._kept.setdefault(client, {})[round] = note

    def read(self, client: int, round: int) -> Params | None:
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
    def honest(self) -> LocalWork:
        """What an honest client of this profile does."""
        return self.respond(self.terms, self.profile)

    def at_cost(self, factor: float) -> LocalWork:
        """Return what an honest client would do whose cost is this multiple of the true one."""
        return self.respond(self.terms, with_cost(self.profile, self.profile.cost * factor))

    @property
    def warms_up(self) -> bool:
        """Whether this is the warm-up before the first round, which is not paid for."""
        return self.terms.batches is not None

    def rng(self, shared: bool = False) -> np.random.Generator:
        """Return the random stream of this client and round, or the one that its group shares."""
        client = min(self.group) if shared and self.group else self.terms.client
        return stream(self.seed, "behaviour", self.terms.round, client)


@dataclass(frozen=True)
class Behaviour(CheckedOptions):
    """An honest client; others override what they do differently.

    All three moments must depend on their arguments alone, so that a run can be repeated. Numbers
    of a model are to be added up by :mod:`flamma.numerics`, and random numbers to be drawn from
    :meth:`Encounter.rng`, so that every machine gets the same bits.
    """

    def tell(self, introduction: Introduction) -> Profile:
        """Return what the client says of itself when it introduces itself."""
        return introduction.profile

    def act(self, encounter: Encounter) -> LocalWork:
        """Return what the client really does with an offer; 0 epochs is nothing."""
        return encounter.honest

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        """Return what the client sends back.

        Without training, ``report`` has no params and no failure: an honest client abstains.
        """
        return report

    def effort(self, task: LocalWork, encounter: Encounter) -> float:
        """Return what the client's cost is multiplied with: epochs squared times share of data."""
        return task.data.share * task.epochs**2


def with_cost(profile: Profile, cost: float) -> Profile:
    """Return the profile with another cost, the nearest one that a game can have."""
    return replace(profile, cost=float(np.clip(cost, SMALLEST_COST, LARGEST_COST)))


# What several behaviours are made of: claims, noise, and checks of their options.

Claim = Annotated[int | Literal["honest", "most"], at_least(1)]
"""The epochs that a client says it did.

A number; what an honest client would have done; or what one would whose work costs nothing, which
is the most that the strategy pays for.
"""


def claim(claimed: Claim, encounter: Encounter) -> int:
    """Return the epochs that a client says it did; 0 where it does not even pretend to work.

    The warm-up is not paid for, so nothing but the honest number is said there.
    """
    if encounter.warms_up or claimed == "honest":
        return encounter.honest.epochs
    return encounter.at_cost(0).epochs if claimed == "most" else claimed


def noise_of(encounter: Encounter, like: Params, length: float, shared: bool = False) -> Params:
    """Return Gaussian noise of a given expected length, keyed by round and client or group."""
    drawn = normal(encounter.rng(shared), like.size)
    with np.errstate(over="ignore", invalid="ignore"):  # the length may be that of anything
        scaled = drawn * (length / math.sqrt(max(1, like.size)))
        return scaled.astype(np.float32)


def moved(received: Params, move: Params) -> Params:
    """Return the received model moved a way; what leaves the range of numbers is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return received + move


def update_of(params: Params, received: Params) -> Params:
    """Return how far a model was moved by training."""
    with np.errstate(over="ignore", invalid="ignore"):
        return params - received


# Clients that work honestly and lie about themselves: their costs, samples and losses.


@dataclass(frozen=True)
class CostLiar(Behaviour):
    """Reports another cost than it has, and then plays as is best at its true one.

    Parameters
    ----------
    factor : float or "best"
        What the true cost is multiplied with; ``best`` is what pays most in the strategy's game
        of all clients if each contributes fully and the others tell the truth.
    """

    factor: Annotated[float | Literal["best"], above(0)] = 0.5

    def tell(self, introduction: Introduction) -> Profile:
        """Tell another cost."""
        profile, population = introduction.profile, introduction.population
        if self.factor != "best":
            return with_cost(profile, profile.cost * self.factor)
        if population is None:
            raise ConfigError(
                'factor = "best" needs the other clients\' costs, which a site does not know: give '
                "a number."
            )
        best = introduction.best_report
        return profile if best is None else with_cost(profile, best(population, profile.client))


@dataclass(frozen=True)
class Imitator(Behaviour):
    """Reports the truth and plays as a client of another cost would, to be taken for it later.

    Parameters
    ----------
    factor : float
        What the true cost is multiplied with; above 1 it works less than is best for it.
    """

    factor: Annotated[float, above(0)] = 2.0

    def act(self, encounter: Encounter) -> LocalWork:
        """Respond as the other client would."""
        return encounter.at_cost(self.factor)


@dataclass(frozen=True)
class DataInflater(Behaviour):
    """Says that it has more samples than it has.

    Parameters
    ----------
    factor : float
        What the number of samples is multiplied with.
    from_start : bool
        Whether it says so when it introduces itself, or only in its answers.
    """

    factor: Annotated[float, above(0)] = 10.0
    from_start: bool = True

    def tell(self, introduction: Introduction) -> Profile:
        """Tell more samples."""
        profile = introduction.profile
        return replace(profile, samples=self._more(profile)) if self.from_start else profile

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        """Repeat the lie."""
        return replace(report, samples=self._more(encounter.profile))

    def _more(self, profile: Profile) -> int:
        return round(min(MOST_SAMPLES, max(1, profile.samples * self.factor)))


@dataclass(frozen=True)
class LossInflater(Behaviour):
    """Says that the model is worse for it than it is, to weigh more.

    Parameters
    ----------
    factor : float
        What the loss is multiplied with.
    """

    factor: Annotated[float, above(0)] = 10.0

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        """Tell another loss; one that the server did not ask for is not told."""
        return replace(report, loss=report.loss * self.factor)


# Clients that are paid for work they do not do, or not all of it, or do once for several.


@dataclass(frozen=True)
class FreeRider(Behaviour):
    """Does not train, sends something that costs nothing, and claims to have worked.

    Parameters
    ----------
    sends : {"received", "noise", "repeat"}
        The received model as it is; that model with a little noise; or that model moved as in the
        client's first answer: its training in the warm-up, or noise where there was none.
    noise : float
        The length of the noise as a share of the model's length.
    claimed : int, "honest" or "most"
        The epochs it claims: a number, those of an honest client, or the most that are paid for.
    loss : float
        The loss it claims where the server asks for one.
    colluding : bool
        Whether all clients of this entry send the same noise, so that they confirm each other.
    """

    sends: Literal["received", "noise", "repeat"] = "received"
    noise: Annotated[float, above(0)] = 1e-3
    claimed: Claim = "honest"
    loss: Annotated[float, above(0)] = 1.0
    colluding: bool = False

    def act(self, encounter: Encounter) -> LocalWork:
        """Do nothing; a repeater needs something to repeat, so it trains in the warm-up."""
        if self.sends == "repeat" and encounter.warms_up:
            return encounter.honest
        return nothing(encounter)

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        """Send what costs nothing."""
        if report.params is not None:
            notes.write(report.client, encounter.terms.round, update_of(report.params, received))
            return report
        claimed = claim(self.claimed, encounter)
        if report.failure or not (claimed or encounter.warms_up):
            return report
        params = (
            received.copy()
            if self.sends == "received"
            else self._made_up(encounter, received, notes)
        )
        loss = self.loss if encounter.terms.report_loss == "received" else report.loss
        return replace(report, params=params, epochs=claimed, loss=loss)

    def _made_up(self, encounter: Encounter, received: Params, notes: Notes) -> Params:
        client, number = encounter.terms.client, encounter.terms.round
        before = notes.read(client, number) if self.sends == "repeat" else None
        if before is not None:
            return moved(received, before)
        noise = noise_of(encounter, received, self.noise * norm(received), shared=self.colluding)
        if self.sends == "repeat":
            notes.write(client, number, noise)
        return moved(received, noise)


@dataclass(frozen=True)
class EpochFaker(Behaviour):
    """Trains fewer epochs than it claims.

    Parameters
    ----------
    done : int or "honest"
        The epochs it does: a number of at least 1, or those of an honest client; fewer where it
        claims fewer.
    claimed : int, "honest" or "most"
        The epochs it claims: a number, those of an honest client, or the most that are paid for.
    """

    done: Annotated[int | Literal["honest"], at_least(1)] = 1
    claimed: Claim = "honest"

    def act(self, encounter: Encounter) -> LocalWork:
        """Do less than it will claim; the warm-up is done honestly."""
        if encounter.warms_up:
            return encounter.honest
        done = encounter.honest.epochs if isinstance(self.done, str) else self.done
        return replace(encounter.honest, epochs=min(done, claim(self.claimed, encounter)))

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        """Claim more."""
        if report.params is None or encounter.warms_up:
            return report
        return replace(report, epochs=claim(self.claimed, encounter))


@dataclass(frozen=True)
class PartTrainer(Behaviour):
    """Trains on a share of its data and says that it was all, as often as is best at that cost.

    Parameters
    ----------
    share : float
        The share, above 0 and at most 1.
    """

    share: Annotated[float, Between(0, 1, without="low")] = 0.5

    def act(self, encounter: Encounter) -> LocalWork:
        """Train on the first samples only; an epoch then costs that share of the true cost."""
        return replace(encounter.at_cost(self.share), data=DataUse(share=self.share))


@dataclass(frozen=True)
class Sybil(Behaviour):
    """One client under several names: all train on the first one's data, at the cost of one.

    The clients of one entry of ``[behaviours]`` are one client. Where the first of those that are
    selected has trained, the others send the same update.
    """

    def act(self, encounter: Encounter) -> LocalWork:
        """Train on the data of the first of the group."""
        owner = min(encounter.group, default=encounter.terms.client)
        return replace(encounter.honest, data=DataUse(owner=owner))

    def effort(self, task: LocalWork, encounter: Encounter) -> float:
        """Count the work once among those that are selected."""
        present = [c for c in encounter.group if c in encounter.selected]
        first = min(present, default=encounter.terms.client)
        return super().effort(task, encounter) if encounter.terms.client == first else 0.0


@dataclass(frozen=True)
class Dropper(Behaviour):
    """Takes the model and, more or less often, does not answer.

    Parameters
    ----------
    rate : float
        How likely it is not to answer in a round.
    colluding : bool
        Whether all clients of this entry stay away in the same rounds.
    """

    rate: Annotated[float, Between(0, 1)] = 0.5
    colluding: bool = False

    def act(self, encounter: Encounter) -> LocalWork:
        """Do nothing if it will not answer."""
        return nothing(encounter) if self._drops(encounter) else encounter.honest

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        """Fail in place of an answer."""
        if not self._drops(encounter):
            return report
        return replace(report, params=None, epochs=0, loss=math.nan, failure="no answer")

    def _drops(self, encounter: Encounter) -> bool:
        return bool(encounter.rng(self.colluding).random() < self.rate)


def nothing(encounter: Encounter) -> LocalWork:
    """Return the task of a client that does not train."""
    terms = replace(encounter.terms, batches=None)
    return replace(encounter.honest, terms=terms, epochs=0)


# Clients that want to do harm: they train, and send something else.


@dataclass(frozen=True)
class SignFlip(Behaviour):
    """Sends the opposite of its update.

    Parameters
    ----------
    factor : float
        How many times as long it is.
    """

    factor: Annotated[float, above(0)] = 1.0

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        """Turn the update around."""
        return multiplied(report, received, -self.factor)


@dataclass(frozen=True)
class ScaledUpdate(Behaviour):
    """Sends a longer update than it trained, so that the model becomes its own.

    Parameters
    ----------
    factor : float
        How many times as long it is.
    colluding : bool
        Whether the clients of this entry share the factor, so that each stands out less.
    """

    factor: Annotated[float, above(0)] = 10.0
    colluding: bool = False

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        """Stretch the update."""
        sharing = len(encounter.group) if self.colluding and encounter.group else 1
        return multiplied(report, received, self.factor / sharing)


@dataclass(frozen=True)
class LabelFlip(Behaviour):
    """Trains on its data with wrong labels: class k is called ``classes - 1 - k``."""

    def act(self, encounter: Encounter) -> LocalWork:
        """Train on wrong labels."""
        return replace(encounter.honest, data=DataUse(flips_labels=True))


@dataclass(frozen=True)
class GaussianNoise(Behaviour):
    """Sends noise in place of its update.

    Parameters
    ----------
    factor : float
        The length of the noise as a multiple of the update's.
    colluding : bool
        Whether all clients of this entry send the same noise, which a mean does not cancel.
    """

    factor: Annotated[float, above(0)] = 1.0
    colluding: bool = False

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        """Replace the update by noise."""
        if report.params is None:
            return report
        length = self.factor * norm(update_of(report.params, received))
        noise = noise_of(encounter, received, length, shared=self.colluding)
        return replace(report, params=moved(received, noise))


def multiplied(report: Update, received: Params, factor: float) -> Update:
    """Return a report whose update is multiplied with a factor."""
    if report.params is None:
        return report
    with np.errstate(over="ignore", invalid="ignore"):
        move = np.float32(factor) * update_of(report.params, received)
    return replace(report, params=moved(received, move))


# All behaviours by name.

LIARS = "flamma.clients.behaviours"
SHIRKERS = "flamma.clients.behaviours"
ATTACKERS = "flamma.clients.behaviours"

BEHAVIOURS: Registry[type[Behaviour]] = Registry(
    "behaviour",
    "flamma.behaviours",
    {
        "honest": Behaviour,
        "cost-liar": f"{LIARS}:CostLiar",
        "imitator": f"{LIARS}:Imitator",
        "data-inflater": f"{LIARS}:DataInflater",
        "loss-inflater": f"{LIARS}:LossInflater",
        "free-rider": f"{SHIRKERS}:FreeRider",
        "epoch-faker": f"{SHIRKERS}:EpochFaker",
        "part-trainer": f"{SHIRKERS}:PartTrainer",
        "sybil": f"{SHIRKERS}:Sybil",
        "dropper": f"{SHIRKERS}:Dropper",
        "sign-flip": f"{ATTACKERS}:SignFlip",
        "scaled-update": f"{ATTACKERS}:ScaledUpdate",
        "label-flip": f"{ATTACKERS}:LabelFlip",
        "gaussian-noise": f"{ATTACKERS}:GaussianNoise",
    },
)
"""All behaviours by name."""


# Which clients have which behaviour, as the table ``[behaviours]`` says.


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
