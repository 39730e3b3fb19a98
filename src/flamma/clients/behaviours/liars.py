"""Clients that work honestly and lie about themselves: their costs, samples and losses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from flamma.clients.behaviours.contract import (
    Behaviour,
    Encounter,
    Introduction,
    Notes,
    with_cost,
)
from flamma.clients.behaviours.parts import check_positive
from flamma.errors import ConfigError
from flamma.types import MOST_SAMPLES, LocalTask, Params, Profile, Report


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

    factor: float = 2.0

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)

    def act(self, encounter: Encounter) -> LocalTask:
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
        return round(min(MOST_SAMPLES, max(1, profile.samples * self.factor)))


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
        """Tell another loss; one that the server did not ask for is not told."""
        return replace(report, loss=report.loss * self.factor)
