"""Clients that want to do harm: they train, and send something else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flamma.clients.behaviours.contract import Behaviour, Encounter, Notes
from flamma.clients.behaviours.parts import check_positive, moved, noise_of, update_of
from flamma.numerics import norm
from flamma.types import DataUse, LocalTask, Params, Report


@dataclass(frozen=True)
class SignFlip(Behaviour):
    """Sends the opposite of its update.

    Parameters
    ----------
    factor : float
        How many times as long it is.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
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

    factor: float = 10.0
    colluding: bool = False

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
        """Stretch the update."""
        sharing = len(encounter.group) if self.colluding and encounter.group else 1
        return multiplied(report, received, self.factor / sharing)


@dataclass(frozen=True)
class LabelFlip(Behaviour):
    """Trains on its data with wrong labels: class k is called ``classes - 1 - k``."""

    def act(self, encounter: Encounter) -> LocalTask:
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

    factor: float = 1.0
    colluding: bool = False

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)

    def send(self, report: Report, encounter: Encounter, received: Params, notes: Notes) -> Report:
        """Replace the update by noise."""
        if report.params is None:
            return report
        length = self.factor * norm(update_of(report.params, received))
        noise = noise_of(encounter, received, length, shared=self.colluding)
        return replace(report, params=moved(received, noise))


def multiplied(report: Report, received: Params, factor: float) -> Report:
    """Return a report whose update is multiplied with a factor."""
    if report.params is None:
        return report
    with np.errstate(over="ignore", invalid="ignore"):
        move = np.float32(factor) * update_of(report.params, received)
    return replace(report, params=moved(received, move))
