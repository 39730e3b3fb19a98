"""The record of a round: one line of ``rounds.jsonl``, written by runs, read by all else.

A record is frozen and typed, and its JSON has the same names in the same places. Every line says
the version of its form and ends with a checksum of what stands before it.
"""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from flamma.errors import RecordError
from flamma.game import Certificate
from flamma.types import NamesItsScore

# The parts of a round's record: its evaluation, its game, and what came before it.


@dataclass(frozen=True)
class Evaluation(NamesItsScore):
    """How good the model of a round is for its clients.

    Attributes
    ----------
    metrics : mapping of str to float or None
        The metrics of :data:`flamma.metrics.METRICS` by name; None where one is not defined, such
        as the mean over zero clients.
    unscored : mapping of int to str
        The clients that gave no score, and why: a mean over clients leaves them out.
    sample : int or None
        How many clients were drawn for the evaluation, and the metrics are over these alone; None
        where all clients were evaluated.
    personal : bool
        Whether clients scored models of their own, rather than the global one.
    scored_by : str
        What a client's score is called where it is not accuracy; it stands in its place in the
        names of metrics.
    less_is_better : bool
        Whether less of that is better, as of a loss; it is not in percent then.
    """

    metrics: Mapping[str, float | None]
    unscored: Mapping[int, str] = field(default_factory=dict)
    sample: int | None = None
    personal: bool = False
    scored_by: str = ""
    less_is_better: bool = False

    def __getitem__(self, name: str) -> float | None:
        return self.metrics.get(name)


@dataclass(frozen=True)
class RoundGame:
    """The game of a round as the server took it, one entry per selected client in every list.

    Attributes
    ----------
    price : float
        λ, the weight of the server's own cost of influence.
    decay_bounds, epoch_bounds : (float, float)
        The range of the decay factor and of the local epochs.
    whole_epochs : bool
        Whether the server solved for whole epochs.
    costs : tuple of float
        The clients' costs as the server knew or estimated them.
    effective : tuple of float
        The contributions that selection went by.
    measure : str
        The contribution measure.
    """

    price: float
    decay_bounds: tuple[float, float]
    epoch_bounds: tuple[float, float]
    whole_epochs: bool
    costs: tuple[float, ...]
    effective: tuple[float, ...] | None = None
    measure: str | None = None


@dataclass(frozen=True)
class Warmup:
    """The warm-up before round 1, told with that round so that there is one line per round."""

    failed: Mapping[int, str]
    bytes_up: int
    bytes_down: int
    seconds: float
    epochs: float


@dataclass(frozen=True)
class Survey:
    """How many clients were asked for their loss before the offer, and which gave none.

    ``bytes_down`` is what they were sent for that, and a part of the round's.
    """

    asked: int
    failed: Mapping[int, str]
    bytes_down: int = 0


@dataclass(frozen=True)
class RoundPrivacy:
    """What the run has cost in differential privacy up to and including a round.

    Neighbouring runs differ in one client, whose updates are zero in one of them. ``releases`` is
    how often clients' updates have gone into something that was given away.
    """

    epsilon: float
    delta: float
    releases: int

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.4g} at delta {self.delta:g} after {self.releases} releases"


# The lines of ``rounds.jsonl``: a typed record as JSON with a checksum, and back.

R = TypeVar("R")

RECORD_VERSION = 2
"""The form of the lines that are written now."""


def line_of(record: Any) -> str:
    """Return a record as one line of JSON with its version and its checksum."""
    table = {"version": RECORD_VERSION, **_encode(record)}
    text = json.dumps(table, allow_nan=False, separators=(",", ":"))
    return f'{text[:-1]},"checksum":"{_checksum(text)}"}}'


def read_line(line: str | bytes, kind: type[R]) -> R:
    """Return the record of a kind that a line holds.

    Raises
    ------
    RecordError
        If the line is damaged, or was written by a version of FLamma that cannot be read.
    """
    try:
        text = line if isinstance(line, str) else line.decode()
        table = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RecordError("it is not JSON") from error
    if not isinstance(table, dict):
        raise RecordError("it is not a JSON object")
    _check_version(table)
    content, found, told = text.rpartition(',"checksum":"')
    if not found or told != f'{_checksum(content + "}")}"}}':
        raise RecordError("it does not match its checksum")
    try:
        record: R = _decode(table, kind)
    except RecordError:
        raise
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise RecordError("a part of it is missing or damaged") from error
    return record


def rows_checksum(rows: Sequence[str]) -> str | None:
    """Return the checksum of a round's lines in ``clients.csv``, None if there are none."""
    return _checksum("\n".join(rows)) if rows else None


def _check_version(table: Mapping[str, Any]) -> None:
    """Refuse a line of a version that cannot be read."""
    told = table.get("version")
    if told is None and "accuracy" in table:  # as flat lines have it
        raise RecordError("version 0.1 wrote it, and commit 5770684 reads it", older=True)
    if not isinstance(told, int) or isinstance(told, bool) or told < RECORD_VERSION:
        raise RecordError("it has no version" if told is None else f"its version is {told!r}")
    if told > RECORD_VERSION:
        raise RecordError(
            f"it is of version {told}, which this FLamma does not know: install a newer one",
            newer=True,
        )


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _encode(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        if {*map(type, value)} <= {int}:
            return list(value)  # a list of a thousand clients in one go
        return [_encode(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _decode(value: Any, kind: Any) -> Any:
    """Return a JSON value as the annotated type; a float that is null is NaN.

    Raises
    ------
    TypeError
        If it is anything else.
    """
    if kind is float and (value is None or type(value) in (int, float)):
        if value is not None and not math.isfinite(value):
            raise TypeError("it is larger than any number")
        return math.nan if value is None else float(value)
    if kind in (int, str, bool):
        if type(value) is kind:
            return value
    elif isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(kind)
        known = {key: entry for key, entry in value.items() if key in hints}
        return kind(**{key: _decode(entry, hints[key]) for key, entry in known.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType) and type(None) in arguments:
        [inner] = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else _decode(value, inner)
    if origin is tuple and isinstance(value, list):
        if arguments[-1] is Ellipsis:
            if arguments[0] is int and {*map(type, value)} <= {int}:
                return tuple(value)  # a list of a thousand clients in one go
            return tuple(_decode(entry, arguments[0]) for entry in value)
        return tuple(_decode(v, a) for v, a in zip(value, arguments, strict=True))
    if origin is Mapping and isinstance(value, dict):
        keys, entries = arguments
        return {
            (int(key) if keys is int else key): _decode(entry, entries)
            for key, entry in value.items()
        }
    raise TypeError(f"{value!r} is no {kind}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


# The record of a round, frozen and typed.


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
