"""Clients that are paid for work they do not do, or not all of it, or do once for several."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from flamma.clients.behaviours.contract import Behaviour, Encounter, Notes
from flamma.clients.behaviours.parts import (
    Claim,
    check_claim,
    check_positive,
    claim,
    moved,
    noise_of,
    update_of,
)
from flamma.errors import ConfigError
from flamma.numerics import norm
from flamma.types import DataUse, LocalTask, Params, Report


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
    noise: float = 1e-3
    claimed: Claim = "honest"
    loss: float = 1.0
    colluding: bool = False

    def __post_init__(self) -> None:
        check_positive("noise", self.noise)
        check_positive("loss", self.loss)
        check_claim(self.claimed)

    def act(self, encounter: Encounter) -> LocalTask:
        """Do nothing; a repeater needs something to repeat, so it trains in the warm-up."""
        if self.sends == "repeat" and encounter.warms_up:
            return encounter.honest
        return nothing(encounter)

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
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
        loss = self.loss if encounter.terms.wants_loss else report.loss
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
    done : int
        The epochs it does, at least 1; fewer where it claims fewer.
    claimed : int, "honest" or "most"
        The epochs it claims: a number, those of an honest client, or the most that are paid for.
    """

    done: int = 1
    claimed: Claim = "honest"

    def __post_init__(self) -> None:
        if self.done < 1:
            raise ConfigError(f"done must be at least 1, not {self.done}.")
        check_claim(self.claimed)

    def act(self, encounter: Encounter) -> LocalTask:
        """Do less than it will claim; the warm-up is done honestly."""
        if encounter.warms_up:
            return encounter.honest
        return replace(encounter.honest, epochs=min(self.done, claim(self.claimed, encounter)))

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
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

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"share must lie above 0 and be at most 1, not {self.share:g}.")

    def act(self, encounter: Encounter) -> LocalTask:
        """Train on the first samples only; an epoch then costs that share of the true cost."""
        return replace(encounter.at_cost(self.share), data=DataUse(share=self.share))


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
    colluding : bool
        Whether all clients of this entry stay away in the same rounds.
    """

    rate: float = 0.5
    colluding: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"rate must lie in [0, 1], not {self.rate:g}.")

    def act(self, encounter: Encounter) -> LocalTask:
        """Do nothing if it will not answer."""
        return nothing(encounter) if self._drops(encounter) else encounter.honest

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
        """Fail in place of an answer."""
        if not self._drops(encounter):
            return report
        return replace(report, params=None, epochs=0, loss=math.nan, failure="no answer")

    def _drops(self, encounter: Encounter) -> bool:
        return bool(encounter.rng(self.colluding).random() < self.rate)


def nothing(encounter: Encounter) -> LocalTask:
    """Return the task of a client that does not train."""
    return replace(encounter.honest, epochs=0, iterations=None)
