"""Behaviours: what a client reports, does and sends back; compliant unless configured otherwise.

The server sees only what it is sent. Another package adds a behaviour by an entry point of the
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
from flamma.io import JsonTable, quoted
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

# The contract of behaviours: three moments at which a client may deviate.

Respond = Callable[[Terms, Profile], LocalWork]
"""The work of a rational and truthful client of the strategy."""

BestReport = Callable[[Population, int], float]
"""Returns a client's best report of its cost, if it knew the true costs of all clients."""


class Notes:
    """Vectors that a client stores from one round to another; here in memory only.

    A note belongs to the round it was made in, and a client reads the last one of an earlier
    round: so a run that resumes from an earlier round reads the same notes again.
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
    """The knowledge of a client when it introduces itself.

    Attributes
    ----------
    profile : Profile
        The truth about itself.
    population : Population, optional
        The truth about all clients, for a strategic client that knows more than it should; None
        at a site, which knows only itself.
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
        All clients of the round for :meth:`Behaviour.effort`; empty before that, for a client
        does not learn which others were selected.
    """

    terms: Terms
    profile: Profile
    respond: Respond
    seed: int
    group: tuple[int, ...] = ()
    selected: tuple[int, ...] = ()

    @cached_property
    def honest(self) -> LocalWork:
        """The work of an honest client of this profile."""
        return self.respond(self.terms, self.profile)

    def at_cost(self, factor: float) -> LocalWork:
        """Return the work of an honest client with this multiple of the true cost."""
        return self.respond(self.terms, _with_cost(self.profile, self.profile.cost * factor))

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
    """An honest client; others override single methods.

    All three moments must depend on their arguments alone, so that a run can be repeated. Numbers
    of a model are to be added up by :mod:`flamma.numerics`, and random numbers to be drawn from
    :meth:`Encounter.rng`, so that every machine gets the same bits.
    """

    def tell(self, introduction: Introduction) -> Profile:
        """Return the profile that the client reports."""
        return introduction.profile

    def act(self, encounter: Encounter) -> LocalWork:
        """Return the client's actual work on an offer; 0 epochs is none."""
        return encounter.honest

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        """Return the update that the client sends.

        Without training, ``report`` has no params and no failure: an honest client abstains.
        """
        return report

    def effort(self, task: LocalWork, encounter: Encounter) -> float:
        """Return the factor of the client's cost: epochs squared times share of data."""
        return task.data.share * task.epochs**2


def _with_cost(profile: Profile, cost: float) -> Profile:
    """Return the profile with another cost, the nearest one that a game can have."""
    return replace(profile, cost=float(np.clip(cost, SMALLEST_COST, LARGEST_COST)))


# Parts of several behaviours: claims, noise, and checks of options.

_Claim = Annotated[int | Literal["honest", "most"], at_least(1)]
"""The epochs that a client claims.

A number; those of an honest client; or those of a client without costs, which is the most that the
strategy pays for.
"""


def _claim(claimed: _Claim, encounter: Encounter) -> int:
    """Return the epochs that a client claims; the warm-up is not paid for, so never more there."""
    if encounter.warms_up or claimed == "honest":
        return encounter.honest.epochs
    return encounter.at_cost(0).epochs if claimed == "most" else claimed


def _noise_of(encounter: Encounter, like: Params, length: float, shared: bool = False) -> Params:
    """Return Gaussian noise of a given expected length, keyed by round and client or group."""
    drawn = normal(encounter.rng(shared), like.size)
    with np.errstate(over="ignore", invalid="ignore"):  # the length may be that of anything
        scaled = drawn * (length / math.sqrt(max(1, like.size)))
        return scaled.astype(np.float32)


def _moved(received: Params, move: Params) -> Params:
    """Return the received model moved a way; what leaves the range of numbers is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return received + move


def _update_of(params: Params, received: Params) -> Params:
    """Return how far a model was moved by training."""
    with np.errstate(over="ignore", invalid="ignore"):
        return params - received


# Clients that work honestly and misreport: their costs, samples and losses.


@dataclass(frozen=True)
class _CostLiar(Behaviour):
    """Misreports its cost, and then plays its best response at the true one.

    Parameters
    ----------
    factor : float or "best"
        Multiplies the true cost; ``best`` is the best misreport in the strategy's game of all
        clients if each contributes fully and the other clients are truthful.
    """

    factor: Annotated[float | Literal["best"], above(0)] = 0.5

    def tell(self, introduction: Introduction) -> Profile:
        profile, population = introduction.profile, introduction.population
        if self.factor != "best":
            return _with_cost(profile, profile.cost * self.factor)
        if population is None:
            raise ConfigError(
                'factor = "best" needs the other clients\' costs, which a site does not know: give '
                "a number."
            )
        best = introduction.best_report
        return profile if best is None else _with_cost(profile, best(population, profile.client))


@dataclass(frozen=True)
class _Imitator(Behaviour):
    """Reports the truth and plays like a client of another cost, to be mistaken for it later.

    Parameters
    ----------
    factor : float
        Multiplies the true cost; above 1 it works less than its best response.
    """

    factor: Annotated[float, above(0)] = 2.0

    def act(self, encounter: Encounter) -> LocalWork:
        return encounter.at_cost(self.factor)


@dataclass(frozen=True)
class _DataInflater(Behaviour):
    """Reports more samples than it has.

    Parameters
    ----------
    factor : float
        Multiplies the number of samples.
    from_start : bool
        Whether it does so when it introduces itself, or only in its updates.
    """

    factor: Annotated[float, above(0)] = 10.0
    from_start: bool = True

    def tell(self, introduction: Introduction) -> Profile:
        profile = introduction.profile
        return replace(profile, samples=self._more(profile)) if self.from_start else profile

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        return replace(report, samples=self._more(encounter.profile))

    def _more(self, profile: Profile) -> int:
        return round(min(MOST_SAMPLES, max(1, profile.samples * self.factor)))


@dataclass(frozen=True)
class _LossInflater(Behaviour):
    """Reports a larger loss of the model, to get more weight.

    Parameters
    ----------
    factor : float
        Multiplies the loss.
    """

    factor: Annotated[float, above(0)] = 10.0

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        return replace(report, loss=report.loss * self.factor)


# Free-riding clients: no work, partial work, or shared work.


@dataclass(frozen=True)
class _FreeRider(Behaviour):
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
    claimed: _Claim = "honest"
    loss: Annotated[float, above(0)] = 1.0
    colluding: bool = False

    def act(self, encounter: Encounter) -> LocalWork:
        if self.sends == "repeat" and encounter.warms_up:  # it needs something to repeat
            return encounter.honest
        return _nothing(encounter)

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        if report.params is not None:
            notes.write(report.client, encounter.terms.round, _update_of(report.params, received))
            return report
        claimed = _claim(self.claimed, encounter)
        if report.failure or not (claimed or encounter.warms_up):
            return report
        params = received.copy()
        if self.sends != "received":
            params = self._made_up(encounter, received, notes)
        loss = self.loss if encounter.terms.report_loss == "received" else report.loss
        return replace(report, params=params, epochs=claimed, loss=loss)

    def _made_up(self, encounter: Encounter, received: Params, notes: Notes) -> Params:
        client, number = encounter.terms.client, encounter.terms.round
        before = notes.read(client, number) if self.sends == "repeat" else None
        if before is not None:
            return _moved(received, before)
        noise = _noise_of(encounter, received, self.noise * norm(received), shared=self.colluding)
        if self.sends == "repeat":
            notes.write(client, number, noise)
        return _moved(received, noise)


@dataclass(frozen=True)
class _EpochFaker(Behaviour):
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
    claimed: _Claim = "honest"

    def act(self, encounter: Encounter) -> LocalWork:
        if encounter.warms_up:
            return encounter.honest
        done = encounter.honest.epochs if isinstance(self.done, str) else self.done
        return replace(encounter.honest, epochs=min(done, _claim(self.claimed, encounter)))

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        if report.params is None or encounter.warms_up:
            return report
        return replace(report, epochs=_claim(self.claimed, encounter))


@dataclass(frozen=True)
class _PartTrainer(Behaviour):
    """Trains on a fraction of its data and claims all, with the best response at that cost.

    Parameters
    ----------
    share : float
        The share, above 0 and at most 1.
    """

    share: Annotated[float, Between(0, 1, without="low")] = 0.5

    def act(self, encounter: Encounter) -> LocalWork:
        # An epoch costs that share of the true cost.
        return replace(encounter.at_cost(self.share), data=DataUse(share=self.share))


@dataclass(frozen=True)
class _Sybil(Behaviour):
    """One client under several names: all train on the first one's data, at the cost of one.

    All client ids in one ``[behaviours]`` entry are Sybil identities of one real client. Once the
    first selected one has trained, the others send the same update.
    """

    def act(self, encounter: Encounter) -> LocalWork:
        owner = min(encounter.group, default=encounter.terms.client)
        return replace(encounter.honest, data=DataUse(owner=owner))

    def effort(self, task: LocalWork, encounter: Encounter) -> float:
        present = [c for c in encounter.group if c in encounter.selected]
        first = min(present, default=encounter.terms.client)
        return super().effort(task, encounter) if encounter.terms.client == first else 0.0


@dataclass(frozen=True)
class _Dropper(Behaviour):
    """Receives the model and, with some probability, does not respond.

    Parameters
    ----------
    rate : float
        The probability of no response in a round.
    colluding : bool
        Whether all clients of this entry stay away in the same rounds.
    """

    rate: Annotated[float, Between(0, 1)] = 0.5
    colluding: bool = False

    def act(self, encounter: Encounter) -> LocalWork:
        return _nothing(encounter) if self._drops(encounter) else encounter.honest

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        if not self._drops(encounter):
            return report
        return replace(report, params=None, epochs=0, loss=math.nan, failure="no answer")

    def _drops(self, encounter: Encounter) -> bool:
        return bool(encounter.rng(self.colluding).random() < self.rate)


def _nothing(encounter: Encounter) -> LocalWork:
    """Return the task of a client that does not train."""
    terms = replace(encounter.terms, batches=None)
    return replace(encounter.honest, terms=terms, epochs=0)


# Malicious clients: they train, and send something else.


@dataclass(frozen=True)
class _SignFlip(Behaviour):
    """Sends the opposite of its update.

    Parameters
    ----------
    factor : float
        Multiplies its length.
    """

    factor: Annotated[float, above(0)] = 1.0

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        return _multiplied(report, received, -self.factor)


@dataclass(frozen=True)
class _ScaledUpdate(Behaviour):
    """Sends a longer update than it trained, to replace the model by its local one.

    Parameters
    ----------
    factor : float
        Multiplies its length.
    colluding : bool
        Whether the clients of this entry share the factor, so that each stands out less.
    """

    factor: Annotated[float, above(0)] = 10.0
    colluding: bool = False

    def send(self, report: Update, encounter: Encounter, received: Params, notes: Notes) -> Update:
        sharing = len(encounter.group) if self.colluding and encounter.group else 1
        return _multiplied(report, received, self.factor / sharing)


@dataclass(frozen=True)
class _LabelFlip(Behaviour):
    """Trains on its data with wrong labels: class k is called ``classes - 1 - k``."""

    def act(self, encounter: Encounter) -> LocalWork:
        return replace(encounter.honest, data=DataUse(flips_labels=True))


@dataclass(frozen=True)
class _GaussianNoise(Behaviour):
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
        if report.params is None:
            return report
        length = self.factor * norm(_update_of(report.params, received))
        noise = _noise_of(encounter, received, length, shared=self.colluding)
        return replace(report, params=_moved(received, noise))


def _multiplied(report: Update, received: Params, factor: float) -> Update:
    """Return a report whose update is multiplied with a factor."""
    if report.params is None:
        return report
    with np.errstate(over="ignore", invalid="ignore"):
        move = np.float32(factor) * _update_of(report.params, received)
    return replace(report, params=_moved(received, move))


# All behaviours by name.

BEHAVIOURS: Registry[type[Behaviour]] = Registry(
    "behaviour",
    "flamma.behaviours",
    {
        "honest": Behaviour,
        "cost-liar": _CostLiar,
        "imitator": _Imitator,
        "data-inflater": _DataInflater,
        "loss-inflater": _LossInflater,
        "free-rider": _FreeRider,
        "epoch-faker": _EpochFaker,
        "part-trainer": _PartTrainer,
        "sybil": _Sybil,
        "dropper": _Dropper,
        "sign-flip": _SignFlip,
        "scaled-update": _ScaledUpdate,
        "label-flip": _LabelFlip,
        "gaussian-noise": _GaussianNoise,
    },
)
"""All behaviours by name."""


# The behaviours of clients, by the table ``[behaviours]``.


@dataclass(frozen=True)
class BehaviourAssignment:
    """A behaviour and its clients: their number, their share, or a list.

    ``key`` is its name in the configuration, which need not be the behaviour's name.
    """

    behaviour: Choice
    clients: int | float | tuple[int, ...]
    key: str

    def as_table(self) -> JsonTable:
        """Return it as a configuration writes it."""
        own = {"clients": self.clients, **self.behaviour.options}
        return own if self.key == self.behaviour.name else {"name": self.behaviour.name, **own}


def read_assignments(table: Any) -> tuple[BehaviourAssignment, ...]:
    """Return the entries of the table ``[behaviours]``: by name, the clients and the options.

    An entry may have another key if it has a ``name``, so that a behaviour can occur twice.

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

    A number or a share of clients is sampled by the seed, among those without a behaviour.
    ``honest`` clients are like unassigned ones, but no later entry samples them.
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
    """Return a behaviour with its options."""
    try:
        made: Behaviour = BEHAVIOURS.bind(choice)()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return made
