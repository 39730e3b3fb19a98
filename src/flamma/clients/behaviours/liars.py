"""Clients that look after themselves: they lie about their costs, work and data to gain by it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from flamma.clients.behaviours.contract import Behaviour, Encounter, Introduction, Notes
from flamma.errors import ConfigError
from flamma.numerics import norm, normal
from flamma.types import DataUse, LocalTask, Params, Profile, Report

Claim = int | Literal["honest"]
"""Epochs that a client does or says it did: a number, or what an honest client would do."""


@dataclass(frozen=True)
class CostLiar(Behaviour):
    """Reports another cost than it has, and then plays as is best at its true one.

    Parameters
    ----------
    factor : float or "best"
        What the true cost is multiplied with; ``best`` is what pays most in the strategy's game
        of all clients if each contributes fully and the others tell the truth.
    """

    factor: float | Literal["best"] = 0.5

    def __post_init__(self) -> None:
        if self.factor != "best":
            check_positive("factor", self.factor)

    def tell(self, introduction: Introduction) -> Profile:
        """Tell another cost."""
        profile = introduction.profile
        if self.factor != "best":
            return replace(profile, cost=profile.cost * self.factor)
        best = introduction.best_report
        if best is None:
            return profile
        return replace(profile, cost=best(introduction.population, profile.client))


@dataclass(frozen=True)
class Imitator(Behaviour):
    """Reports the truth and plays as a client of another cost would, to be taken for it later.

    Parameters
    ----------
    factor : float
        What the true cost is multiplied with; above 1 it works less than is best for it.
    """

    factor: float = 2.0

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)

    def act(self, encounter: Encounter) -> LocalTask:
        """Respond as the other client would."""
        profile = encounter.profile
        other = replace(profile, cost=profile.cost * self.factor)
        return encounter.respond(encounter.terms, other)


@dataclass(frozen=True)
class FreeRider(Behaviour):
    """Does not train, sends something that costs nothing, and claims to have worked.

    Parameters
    ----------
    sends : {"received", "noise", "repeat"}
        The received model as it is, that model with a little noise, or that model moved as in the
        client's last answer, or noise if it has not answered yet.
    noise : float
        The length of the noise as a share of the model's length.
    claimed : int or "honest"
        The epochs it claims.
    """

    sends: Literal["received", "noise", "repeat"] = "received"
    noise: float = 1e-3
    claimed: Claim = "honest"

    def __post_init__(self) -> None:
        check_positive("noise", self.noise)
        check_claim(self.claimed)

    def act(self, encounter: Encounter) -> LocalTask:
        """Do nothing; a repeater needs something to repeat, so it trains in the warm-up."""
        if self.sends == "repeat" and encounter.warms_up:
            return encounter.honest
        return replace(encounter.honest, epochs=0, iterations=None)

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
        """Send what costs nothing."""
        client, number = encounter.terms.client, encounter.terms.round
        if report.params is not None:
            notes.write(client, number, report.params - received)
            return report
        if report.failure or encounter.honest.abstains:
            return report
        move = noise_of(encounter, received, self.noise * norm(received))
        if self.sends == "repeat":
            before = notes.read(client, number)
            move = move if before is None else before
            notes.write(client, number, move)
        sent = received.copy() if self.sends == "received" else received + move
        return replace(report, params=sent, epochs=claim(self.claimed, encounter), loss=report.loss)


@dataclass(frozen=True)
class EpochFaker(Behaviour):
    """Trains fewer epochs than it claims.

    Parameters
    ----------
    done : int or "honest"
        The epochs it does, at least 1, or those that an honest client would do.
    claimed : int or "honest"
        The epochs it claims.
    """

    done: Claim = 1
    claimed: Claim = "honest"

    def __post_init__(self) -> None:
        check_claim(self.done, "done")
        check_claim(self.claimed)

    def act(self, encounter: Encounter) -> LocalTask:
        """Do as many epochs as it does where an honest client would work."""
        task = encounter.honest
        if encounter.warms_up or task.abstains:
            return task
        return replace(task, epochs=claim(self.done, encounter))

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
        """Claim more."""
        if report.params is None or encounter.warms_up:
            return report
        return replace(report, epochs=claim(self.claimed, encounter))


@dataclass(frozen=True)
class PartTrainer(Behaviour):
    """Trains on a share of its data and says that it was all.

    Parameters
    ----------
    share : float
        The share, above 0 and at most 1.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"share must lie above 0 and be at most 1, not {self.share:g}.")

    def act(self, encounter: Encounter) -> LocalTask:
        """Train on the first samples only."""
        return replace(encounter.honest, data=DataUse(share=self.share))


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

    factor: float = 10.0
    from_start: bool = True

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)

    def tell(self, introduction: Introduction) -> Profile:
        """Tell more samples."""
        profile = introduction.profile
        return replace(profile, samples=self._more(profile)) if self.from_start else profile

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
        """Repeat the lie."""
        return replace(report, samples=self._more(encounter.profile))

    def _more(self, profile: Profile) -> int:
        return max(1, round(profile.samples * self.factor))


@dataclass(frozen=True)
class LossInflater(Behaviour):
    """Says that the model is worse for it than it is, to weigh more.

    Parameters
    ----------
    factor : float
        What the loss is multiplied with.
    """

    factor: float = 10.0

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
        """Tell another loss."""
        return replace(report, loss=report.loss * self.factor)


@dataclass(frozen=True)
class Sybil(Behaviour):
    """One client under several names: all train on the first one's data, at the cost of one.

    The clients of one entry of ``[behaviours]`` are one client. Where the first of those that are
    selected has trained, the others send the same update.
    """

    def act(self, encounter: Encounter) -> LocalTask:
        """Train on the data of the first of the group."""
        owner = min(encounter.group, default=encounter.terms.client)
        return replace(encounter.honest, data=DataUse(owner=owner))

    def effort(self, task: LocalTask, encounter: Encounter) -> float:
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
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"rate must lie in [0, 1], not {self.rate:g}.")

    def act(self, encounter: Encounter) -> LocalTask:
        """Do nothing if it will not answer."""
        idle = replace(encounter.honest, epochs=0, iterations=None)
        return idle if self._drops(encounter) else encounter.honest

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
        """Fail in place of an answer."""
        if not self._drops(encounter):
            return report
        return replace(report, params=None, epochs=0, loss=math.nan, failure="no answer")

    def _drops(self, encounter: Encounter) -> bool:
        return bool(encounter.rng().random() < self.rate)


def claim(claimed: Claim, encounter: Encounter) -> int:
    """Return the epochs that a client says it did."""
    return encounter.honest.epochs if claimed == "honest" else claimed


def noise_of(encounter: Encounter, like: Params, length: float, shared: bool = False) -> Params:
    """Return Gaussian noise of a given expected length, keyed by round and client or group."""
    drawn = normal(encounter.rng(shared), like.size)
    scaled = drawn * (length / math.sqrt(max(1, like.size)))
    return scaled.astype(np.float32)


def check_positive(name: str, value: float) -> None:
    """Refuse a factor that is not a positive number."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a positive number, not {value:g}.")


def check_claim(claimed: Claim, name: str = "claimed") -> None:
    """Refuse a claim of no epochs or fewer."""
    if claimed != "honest" and claimed < 1:
        raise ConfigError(f'{name} must be "honest" or at least 1, not {claimed}.')
