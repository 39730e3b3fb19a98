"""The record of a round: one line of ``rounds.jsonl``, written by runs, read by all else.

A record is frozen and typed, and its JSON has the same names in the same places. Every line has
the version of its form; the manifest of the run has the checksum of all lines up to a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self, Union, get_args, get_origin, get_type_hints

from flamma.errors import RecordError
from flamma.game import Certificate
from flamma.types import NamesItsScore

__all__ = [
    "RECORD_VERSION",
    "CostRecord",
    "Evaluation",
    "GameRecord",
    "OfferRecord",
    "Outcomes",
    "RoundPrivacy",
    "RoundRecord",
    "Survey",
    "Warmup",
]

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
class OfferRecord:
    """What the server offered in a round, one entry per selected client in every tuple.

    Attributes
    ----------
    decay_factor : float
        γ, 1 for strategies without one.
    contributions : tuple of float or None
        ω of the selected clients; None where contributions are not measured.
    decay_factors : tuple of float or None
        Each selected client's own decay factor; None where all have the same.
    """

    decay_factor: float = 1.0
    contributions: tuple[float, ...] | None = None
    decay_factors: tuple[float, ...] | None = None

    def decay_factor_of(self, place: int) -> float:
        """Return the decay factor of the selected client at a place."""
        return self.decay_factor if self.decay_factors is None else self.decay_factors[place]


@dataclass(frozen=True)
class Outcomes:
    """What the selected clients did and got, one entry per client in every tuple of numbers.

    Attributes
    ----------
    abstained : tuple of int
        The clients that chose not to train.
    failed : mapping of int to str
        The clients without a usable update, with the reason.
    local_epochs : tuple of int
        The epochs that each client reports; 0 if it failed or abstained.
    epochs_total : int
        The epochs of accepted updates.
    credited : tuple of float or None
        The epochs that each is paid for; None where these are its ``local_epochs``.
    payments : tuple of float or None
        What each is paid in units of utility, before its fine, where that is an amount for the
        round; None where it is γ ω τ, or nothing.
    fines : mapping of int to float
        What clients have to pay, in units of utility.
    flags : mapping of int to str
        The clients with a suspicious answer, and what was suspicious.
    inspected : tuple of int
        The clients whose work was repeated at the client, and compared.
    efforts : tuple of float or None
        The truth where clients may misreport: what each one's cost is multiplied with, epochs done
        squared times the fraction of data. None where all did what they report.
    client_utilities : tuple of (float or None) or None
        The utility of each; None for a client without a usable update, and for all where no
        client is paid.
    """

    abstained: tuple[int, ...]
    failed: Mapping[int, str]
    local_epochs: tuple[int, ...]
    epochs_total: int
    credited: tuple[float, ...] | None = None
    payments: tuple[float, ...] | None = None
    fines: Mapping[int, float] = field(default_factory=dict)
    flags: Mapping[int, str] = field(default_factory=dict)
    inspected: tuple[int, ...] = ()
    efforts: tuple[float, ...] | None = None
    client_utilities: tuple[float | None, ...] | None = None


@dataclass(frozen=True)
class GameRecord:
    """The game that the server solved in a round, and how far from equilibrium it was played.

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
    effective : tuple of float or None
        The contributions that the selection is based on.
    measure : str or None
        The contribution measure.
    certificate : Certificate or None
        The distance from equilibrium, for the clients that answered; None if no client did.
    server_utility : float or None
        The server's utility, likewise.
    """

    price: float
    decay_bounds: tuple[float, float]
    epoch_bounds: tuple[float, float]
    whole_epochs: bool
    costs: tuple[float, ...]
    effective: tuple[float, ...] | None = None
    measure: str | None = None
    certificate: Certificate | None = None
    server_utility: float | None = None


@dataclass(frozen=True)
class CostRecord:
    """The traffic and the time of a round.

    Attributes
    ----------
    bytes_up, bytes_down : int
        Weights that the clients sent and received.
    seconds_train, seconds_evaluate, seconds : float
        The clients' training, the evaluation, and the whole round.
    virtual_seconds : float or None
        The virtual time at the end of the round, since the start of the run; None without a
        virtual clock.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    seconds_train: float = 0.0
    seconds_evaluate: float = 0.0
    seconds: float = 0.0
    virtual_seconds: float | None = None


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


# The record of a round, and its line of ``rounds.jsonl``.

RECORD_VERSION = 3
"""The version of the lines that are written; lines of version 2 are read."""


@dataclass(frozen=True)
class RoundRecord:
    """One finished round.

    Attributes
    ----------
    round : int
        Its number, from 1.
    selected : tuple of int
        The selected clients, in order.
    offer : OfferRecord
        What they were offered.
    outcome : Outcomes
        What they did and got.
    game : GameRecord or None
        The game that was solved; None where none was.
    evaluation : Evaluation or None
        How good the model is; None if it was not evaluated.
    cost : CostRecord
        The traffic and the time of the round.
    warmup : Warmup or None
        The warm-up before round 1.
    survey : Survey or None
        The clients that were asked for a loss before the selection; None if there were none.
    privacy : RoundPrivacy or None
        The differential privacy spent so far; None where there is none.
    run : str or None
        The id of the run.

    Examples
    --------
    >>> record = RoundRecord(1, (0, 4), OfferRecord(0.5), Outcomes((), {4: "late"}, (3, 0), 3))
    >>> record.used, RoundRecord.from_json(record.to_json()) == record
    (1, True)
    """

    round: int
    selected: tuple[int, ...]
    offer: OfferRecord
    outcome: Outcomes
    game: GameRecord | None = None
    evaluation: Evaluation | None = None
    cost: CostRecord = CostRecord()
    warmup: Warmup | None = None
    survey: Survey | None = None
    privacy: RoundPrivacy | None = None
    run: str | None = None

    def __post_init__(self) -> None:
        offer, outcome = self.offer, self.outcome
        each = [
            outcome.local_epochs,
            offer.contributions,
            outcome.client_utilities,
            offer.decay_factors,
            outcome.credited,
            outcome.efforts,
            outcome.payments,
        ]
        if self.game is not None:
            each += [self.game.costs, self.game.effective]
        if any(values is not None and len(values) != len(self.selected) for values in each):
            raise RecordError("its lists do not have one entry for each selected client")
        if self.round < 0 or min((*self.selected, *outcome.abstained), default=0) < 0:
            raise RecordError("it numbers a round or a client below 0")
        if not math.isfinite(offer.decay_factor):
            raise RecordError("its decay factor is not a number")

    if not TYPE_CHECKING:  # types know the new names alone

        def __getattr__(self, name: str) -> object:
            """Return a field by its name in version 0.2, which had no parts."""
            for part, kind in _PARTS.items():
                if name in _hints(kind):
                    warnings.warn(
                        f"{name} of a RoundRecord is now {part}.{name}; the old name goes with "
                        f"version 0.4",
                        DeprecationWarning,
                        stacklevel=2,
                    )
                    holder = getattr(self, part)
                    return None if holder is None else getattr(holder, name)
            raise AttributeError(f"a RoundRecord has no attribute {name!r}")

    @property
    def evaluated(self) -> bool:
        """Whether the model of this round was scored by at least one client."""
        return self.metric("accuracy") is not None

    @property
    def is_paid(self) -> bool:
        """Whether clients are paid in this round: by an amount each, or for a contribution."""
        return self.outcome.payments is not None or self.offer.contributions is not None

    @property
    def used(self) -> int:
        """The number of updates that were used: of clients that neither failed nor abstained."""
        return len(self.selected) - len(self.outcome.failed) - len(self.outcome.abstained)

    def payment(self, place: int) -> float:
        """Return what the selected client at a place earns less its fine; 0 without payments.

        That is its entry of ``payments``, or else γ ω τ with the epochs it is credited with.
        """
        offer, outcome = self.offer, self.outcome
        fine = outcome.fines.get(self.selected[place], 0.0)
        if outcome.payments is not None:
            return outcome.payments[place] - fine
        if offer.contributions is None:
            return 0.0
        epochs = outcome.local_epochs if outcome.credited is None else outcome.credited
        return offer.decay_factor_of(place) * offer.contributions[place] * epochs[place] - fine

    def effort(self, place: int) -> float:
        """Return the effort multiplier of the cost of the selected client at a place."""
        if self.outcome.efforts is not None:
            return self.outcome.efforts[place]
        return float(self.outcome.local_epochs[place] ** 2)

    def metric(self, name: str) -> float | None:
        """Return a metric of the evaluation, None where there is none."""
        return None if self.evaluation is None else self.evaluation[name]

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        table = {"version": RECORD_VERSION, **_encode(self)}
        return json.dumps(table, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Return the record that a line holds.

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
        try:
            record: Self = _decode(_nested(table, text), cls)
        except RecordError:
            raise
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise RecordError("a part of it is missing or damaged") from error
        return record


def _check_version(table: Mapping[str, Any]) -> None:
    """Refuse a line of a version that cannot be read."""
    version = table.get("version")
    if version is None and "accuracy" in table:  # as flat lines have it
        raise RecordError("version 0.1 wrote it, and commit 5770684 reads it", older=True)
    if type(version) is not int or version < _FLAT_VERSION:
        raise RecordError("it has no version" if version is None else f"its version is {version!r}")
    if version > RECORD_VERSION:
        raise RecordError(
            f"it is of version {version}, which this FLamma does not know: install a newer one",
            newer=True,
        )


# Lines of version 2: flat, each with a checksum of itself and of its round in ``clients.csv``.

_FLAT_VERSION = 2
_PARTS = {"offer": OfferRecord, "outcome": Outcomes, "game": GameRecord, "cost": CostRecord}


def _nested(table: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the table of a line in nested parts; one of version 2 must match its checksum."""
    if table["version"] != _FLAT_VERSION:
        return table
    content, found, checksum = text.rpartition(',"checksum":"')
    if not found or checksum != f'{_checksum(content + "}")}"}}':
        raise RecordError("it does not match its checksum")
    parts = {
        part: {name: table[name] for name in _hints(kind) if name in table}
        for part, kind in _PARTS.items()
    }
    game = table.get("game")
    return {**table, **parts, "game": game if game is None else {**game, **parts["game"]}}


def damaged_scores(rounds: str, scores: Mapping[str, str]) -> set[str]:
    """Return the rounds of version 2 with other scores than they were written with.

    Parameters
    ----------
    rounds : str
        The text of ``rounds.jsonl``.
    scores : mapping of str to str
        The lines of each round in ``clients.csv``, by the text of its number.
    """
    told = re.findall(
        r'^\{"version":2,"round":(\d+),.*"scores_checksum":"(\w+)"', rounds, flags=re.MULTILINE
    )
    return {key for key, own in told if own != _checksum(scores.get(key, "").removesuffix("\n"))}


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Typed records as JSON, and back.


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


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
