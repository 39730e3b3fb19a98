"""The parts of a round's record: its evaluation, its game, and what came before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flamma.types import NamesItsScore


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
        The range of the decay factor and of the local epochs; None in records of version 1.
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
    decay_bounds: tuple[float, float] | None = None
    epoch_bounds: tuple[float, float] | None = None
    whole_epochs: bool | None = None
    costs: tuple[float, ...] | None = None
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
