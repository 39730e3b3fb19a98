"""The record of a round, frozen and typed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from flamma.errors import RecordError
from flamma.game import Certificate
from flamma.records.lines import line_of, read_line
from flamma.records.parts import Evaluation, RoundGame, RoundPrivacy, Survey, Warmup


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round.

    ``contributions``, ``game``, ``certificate`` and both utilities are None where no game was
    played, ``evaluation`` where the model was not evaluated. ``client_utilities`` has None for a
    selected client that gave no usable answer. ``epochs_total`` counts the epochs of accepted
    updates only. ``scores_checksum`` is that of the round's lines in ``clients.csv``,
    and ``run`` tells which run the record belongs to.

    Attributes
    ----------
    decay_factors : tuple of float
        Each selected client's own decay factor; None where all have the same.
    credited : tuple of float
        The epochs that each is paid for; None where that is what they claim.
    payments : tuple of float
        What each selected client is paid in units of utility, before its fine, where that is an
        amount for the round; None where it is γ ω τ.
    fines : mapping of int to float
        What clients have to pay, in units of utility.
    flags : mapping of int to str
        The clients whose answer looked wrong, and what did.
    inspected : tuple of int
        The clients whose work was done once more at the client, and compared.
    efforts : tuple of float
        The truth where clients may lie: what each one's cost is multiplied with, epochs done
        squared times the share of data. None where all did what they claim.
    privacy : RoundPrivacy
        What differential privacy has been spent so far; None where there is none.
    virtual_seconds : float
        The virtual time at the end of the round, since the start of the run; None where there is
        no virtual clock.
    """

    round: int
    selected: tuple[int, ...]
    abstained: tuple[int, ...]
    failed: Mapping[int, str]
    decay_factor: float
    local_epochs: tuple[int, ...]
    contributions: tuple[float, ...] | None
    epochs_total: int
    evaluation: Evaluation | None = None
    game: RoundGame | None = None
    certificate: Certificate | None = None
    server_utility: float | None = None
    client_utilities: tuple[float | None, ...] | None = None
    decay_factors: tuple[float, ...] | None = None
    credited: tuple[float, ...] | None = None
    fines: Mapping[int, float] = field(default_factory=dict)
    flags: Mapping[int, str] = field(default_factory=dict)
    inspected: tuple[int, ...] = ()
    efforts: tuple[float, ...] | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    seconds_train: float = 0.0
    seconds_evaluate: float = 0.0
    seconds: float = 0.0
    warmup: Warmup | None = None
    survey: Survey | None = None
    scores_checksum: str | None = None
    run: str | None = None
    payments: tuple[float, ...] | None = None
    privacy: RoundPrivacy | None = None
    virtual_seconds: float | None = None

    def __post_init__(self) -> None:
        each = [
            self.local_epochs,
            self.contributions,
            self.client_utilities,
            self.decay_factors,
            self.credited,
            self.efforts,
            self.payments,
        ]
        if self.game is not None:
            each += [self.game.costs, self.game.effective]
        if any(values is not None and len(values) != len(self.selected) for values in each):
            raise RecordError("its lists do not have one entry for each selected client")
        if self.round < 0 or min((*self.selected, *self.abstained), default=0) < 0:
            raise RecordError("it numbers a round or a client below 0")
        if not math.isfinite(self.decay_factor):
            raise RecordError("its decay factor is not a number")

    @property
    def evaluated(self) -> bool:
        """Whether the model of this round was scored by at least one client."""
        return self.metric("accuracy") is not None

    @property
    def is_paid(self) -> bool:
        """Whether clients are paid in this round: by an amount each, or for a contribution."""
        return self.payments is not None or self.contributions is not None

    @property
    def used(self) -> int:
        """How many clients' answers were used: of those who neither failed nor abstained."""
        return len(self.selected) - len(self.failed) - len(self.abstained)

    def payment(self, place: int) -> float:
        """Return what the selected client at a place earns less its fine; 0 where nobody is paid.

        That is its entry of ``payments``, or else γ ω τ with the epochs it is credited with.
        """
        fine = self.fines.get(self.selected[place], 0.0)
        if self.payments is not None:
            return self.payments[place] - fine
        if self.contributions is None:
            return 0.0
        gamma = self.decay_factor if self.decay_factors is None else self.decay_factors[place]
        epochs = self.local_epochs[place] if self.credited is None else self.credited[place]
        return gamma * self.contributions[place] * epochs - fine

    def effort(self, place: int) -> float:
        """Return what the cost of the selected client at a place is multiplied with."""
        if self.efforts is not None:
            return self.efforts[place]
        return float(self.local_epochs[place] ** 2)

    def metric(self, name: str) -> float | None:
        """Return a metric of the evaluation, None where there is none."""
        return None if self.evaluation is None else self.evaluation[name]

    def to_json(self) -> str:
        """Return the record as one line of JSON with its checksum."""
        return line_of(self)

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Return the record that a line holds.

        Raises
        ------
        RecordError
            If the line is damaged, or was written by a newer version of FLamma.
        """
        return read_line(line, cls)
