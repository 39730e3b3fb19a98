"""What passes between a strategy and the round loop: states, offers and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeVar

import numpy as np

from flamma.aggregators import Reference
from flamma.game import Game
from flamma.types import Ints, LocalTask, Params, Report, Terms

Validate = Callable[[Params], tuple[float, float]]
"""Scores weights on the server's own validation set: (loss, accuracy in percent)."""

Inspect = Callable[[Sequence[LocalTask]], list[Report]]
"""Does clients' claimed work of this round once more, at the client and on its true data."""

ServerReads = Literal["mean", "updates", "plain"]
"""What a server must see of clients' models: their mean, each of them, or each as it was sent."""

Release = Callable[[Params, int, tuple[Report, ...]], tuple[Report, ...]]
"""Returns what a strategy may see of the reports of a round, given the received model."""


SecondsOf = Callable[[Terms], float]
"""Returns the virtual seconds until a client that begins now has answered its terms."""


@dataclass(frozen=True, eq=False)
class State:
    """What a strategy remembers between rounds: arrays, numbers and rows only, so it can be saved.

    ``round`` is the last finished round, -1 before a warm-up.
    """

    params: Params
    round: int
    samples: Ints

    @property
    def served(self) -> Params:
        """The model that a run yields and evaluates: here the one that clients train."""
        return self.params


S = TypeVar("S", bound=State)


@dataclass(frozen=True, eq=False)
class KeepingState(State):
    """The state of a strategy whose clients keep something from round to round.

    ``answered`` is 1 for every client that was heard from, and so has kept something.
    """

    answered: Ints

    def having_heard(self, accepted: Sequence[Report]) -> Self:
        """Return the state that knows of these answers."""
        answered = self.answered.copy()
        answered[[report.client for report in accepted]] = 1
        return replace(self, answered=answered)


def lost_what_they_kept(state: KeepingState, accepted: Sequence[Report]) -> dict[int, str]:
    """Return a flag for every client that should have kept something and has nothing."""
    return {
        report.client: "it had lost what it kept, and started anew"
        for report in accepted
        if report.starts_anew and state.answered[report.client]
    }


@dataclass(frozen=True, eq=False)
class Offer:
    """Who is selected, in client order, on which terms, and the game the server has solved.

    ``effective`` are the contributions that selection went by, and ``measure`` is what measured
    them; both only where there is a game. ``decay_factor`` is the game's own, whatever the terms
    offer each client. ``inspected`` are the clients whose answers will be inspected in any case,
    which they are not told. ``probabilities`` are those with which each selected client was drawn,
    where what its answer counts depends on them, and ``payments`` what each earns by a usable
    answer, where that is fixed before it works; both have one entry for each of the terms.
    """

    round: int
    terms: tuple[Terms, ...]
    decay_factor: float = 1.0
    game: Game | None = None
    effective: tuple[float, ...] | None = None
    measure: str | None = None
    inspected: tuple[int, ...] = ()
    probabilities: tuple[float, ...] | None = None
    payments: tuple[float, ...] | None = None

    @property
    def decay_factors(self) -> tuple[float, ...] | None:
        """Each selected client's decay factor, None where all have the game's."""
        each = tuple(terms.decay_factor for terms in self.terms)
        common = self.game is None or set(each) <= {self.decay_factor}
        return None if common else each

    @property
    def selected(self) -> tuple[int, ...]:
        """The selected clients, in order."""
        return tuple(terms.client for terms in self.terms)


@dataclass(frozen=True, eq=False)
class Screened:
    """What a strategy makes of answers before it uses them, one for each selected client.

    ``credited``, ``fines``, ``flags`` and ``inspected`` are as in a record.
    """

    answers: tuple[Report, ...]
    credited: tuple[float, ...] | None = None
    fines: Mapping[int, float] = field(default_factory=dict)
    flags: Mapping[int, str] = field(default_factory=dict)
    inspected: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Answers:
    """What came back in a round: the usable reports in client order, and who abstained.

    ``validate`` scores weights on the server's validation set; None where there is none.
    ``reference`` is what aggregators measure updates from. ``screened`` has what was found out
    about the answers, those that are not usable too.
    """

    offer: Offer
    accepted: tuple[Report, ...]
    abstained: tuple[int, ...]
    validate: Validate | None = None
    reference: Reference | None = None
    screened: Screened | None = None


def one_each(offer: Offer, reports: Sequence[Report]) -> list[Report]:
    """Return one report for each selected client, in order; a failed one where none was sent."""
    by_client: dict[int, Report] = {}
    for report in sorted(reports, key=lambda r: r.client):
        by_client.setdefault(report.client, report)
    missing = "no answer"
    return [
        by_client.get(c) or Report(c, params=None, samples=0, epochs=0, failure=missing)
        for c in offer.selected
    ]


def well_formed_report(report: Report, size: int, epochs: tuple[int, int], told: int) -> Report:
    """Return the report as it is, or without its weights and with the reason.

    A failed or refused report has done no epochs that count.
    """
    reason = ""
    fewest, most = epochs
    if report.failure:
        return replace(report, params=None, epochs=0)
    if report.params is None:
        return replace(report, epochs=0)
    if report.params.shape != (size,) or report.params.dtype != np.float32:
        reason = f"refused: {report.params.dtype} weights of shape {report.params.shape}"
    elif not np.isfinite(report.params).all():
        reason = "refused: weights that are not finite"
    elif report.samples <= 0:
        reason = f"refused: {report.samples} samples"
    elif report.samples > told:
        reason = f"refused: {report.samples} samples of a client that had {told}"
    elif not fewest <= report.epochs <= most:
        allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        reason = f"refused: {report.epochs} epochs where {allowed} were on offer"
    elif report.loss < 0:
        reason = f"refused: a loss of {report.loss:g}"
    return replace(report, params=None, epochs=0, failure=reason) if reason else report
