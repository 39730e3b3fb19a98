"""What passes between a strategy and the round loop: states, offers and answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeVar

from flamma.aggregators import Reference
from flamma.game import Game
from flamma.records import RoundRecord
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

    ``credited``, ``fines``, ``flags`` and ``inspected`` are as in a record. ``unverified`` are the
    clients whose inspection failed, so that nobody knows what their answers are worth.
    """

    answers: tuple[Report, ...]
    credited: tuple[float, ...] | None = None
    fines: Mapping[int, float] = field(default_factory=dict)
    flags: Mapping[int, str] = field(default_factory=dict)
    inspected: tuple[int, ...] = ()
    unverified: tuple[int, ...] = ()


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

    @property
    def earned(self) -> tuple[float, ...] | None:
        """What the offer has fixed for each selected client, and 0 for one without usable answer.

        None if it has fixed nothing.
        """
        if self.offer.payments is None:
            return None
        usable = {report.client for report in self.accepted}
        pairs = zip(self.offer.selected, self.offer.payments, strict=True)
        return tuple(amount if client in usable else 0.0 for client, amount in pairs)


def record_of(
    offer: Offer,
    screened: Screened,
    flags: Mapping[int, str],
    *,
    epochs_total: int,
    payments: tuple[float, ...] | None,
) -> RoundRecord:
    """Return the record of a round, as far as a strategy knows it."""
    answers = screened.answers
    contributions = tuple(terms.contribution for terms in offer.terms)
    return RoundRecord(
        round=offer.round,
        selected=offer.selected,
        abstained=tuple(r.client for r in answers if r.abstained),
        failed={r.client: r.failure for r in answers if r.failure},
        decay_factor=offer.decay_factor,
        local_epochs=tuple(r.epochs for r in answers),
        contributions=None if any(map(math.isnan, contributions)) else contributions or None,
        epochs_total=epochs_total,
        decay_factors=offer.decay_factors,
        credited=screened.credited,
        fines=screened.fines,
        flags=flags,
        inspected=screened.inspected,
        payments=payments,
    )
