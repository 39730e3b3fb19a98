"""What server and clients exchange in a round: frozen, plain, and small except for the weights.

The server offers a client :class:`Terms` and sends the :class:`Broadcast` model; the client decides
on its :class:`LocalWork` and sends back an :class:`Update`. ``params`` is always one flat float32
vector. Its :class:`Layout` says what is where: the trainable parameters first, then what is only
carried along (running means of a batch norm).

Examples
--------
>>> from flamma.types import LocalWork, Objective, Terms
>>> terms = Terms(client=3, round=1, decay_factor=0.9, objective=Objective(proximal=0.1))
>>> work = LocalWork(terms, epochs=2, learning_rate=0.05)
>>> work.client, work.abstains
(3, False)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from flamma._renamed import renamed

__all__ = [
    "Broadcast",
    "ClientVectors",
    "DataUse",
    "Floats",
    "Inputs",
    "Ints",
    "Layout",
    "LocalWork",
    "Objective",
    "Params",
    "Plan",
    "Population",
    "Profile",
    "Schedule",
    "ScoreKind",
    "Scores",
    "Targets",
    "TaskVectors",
    "Terms",
    "Update",
]

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)

# The arrays that pass between rooms, and what a flat vector of weights is made of.

Params = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Inputs = NDArray[Any]
"""Samples: float32, or int64 where they may be token ids."""
Targets = NDArray[Any]
"""What is to be predicted: int64 labels or tokens, or float32 numbers; the task says which."""


@dataclass(frozen=True)
class Layout:
    """What the flat vector of a model's weights is made of, the trainable parts first."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    trainable: tuple[bool, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each part has."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """How many numbers there are in all."""
        return sum(self.sizes)

    @property
    def trainable_sizes(self) -> tuple[int, ...]:
        """How many numbers each part has that is trained."""
        return tuple(s for s, learns in zip(self.sizes, self.trainable, strict=True) if learns)

    @property
    def trainable_size(self) -> int:
        """How many of them are trained; they are the first ones."""
        return sum(self.trainable_sizes)


# What a strategy is told before the first round: the plan, and who the clients are.


class Schedule(Protocol):
    """How the step size changes from round to round."""

    def factor(self, round: int, rounds: int) -> float:
        """Return what the learning rate is multiplied by in a round, counted from 1."""
        ...


SMALLEST_FACTOR = 1e-9
"""The least that a schedule multiplies by: strategies divide by the step size."""


@dataclass(frozen=True)
class Plan:
    """What every strategy is told about the experiment.

    ``budget`` is the most that clients may be paid in all rounds, in units of utility; None for no
    limit. ``momentum`` is that of the clients' SGD. ``schedule`` multiplies the learning rate; None
    leaves it as it is.
    """

    rounds: int
    per_round: int
    epochs: int = 5
    learning_rate: float = 0.05
    batch_size: int = 32
    budget: float | None = None
    momentum: float = 0.0
    schedule: Schedule | None = None

    def factor(self, round: int) -> float:
        """Return what the schedule multiplies the learning rate by in a round."""
        if self.schedule is None:
            return 1.0
        return max(SMALLEST_FACTOR, self.schedule.factor(round, self.rounds))

    def step_size(self, round: int) -> float:
        """Return the learning rate of a round, before what a client's terms make of it."""
        return self.learning_rate * self.factor(round)


@dataclass(frozen=True, eq=False)
class Population:
    """What the server knows of the clients: how much data each has and, perhaps, its cost.

    Costs are NaN for clients that do not tell theirs. ``trainable_size`` is how many of the
    model's weights are trained. ``names`` are given where clients are more than numbers.
    ``trainable_sizes`` are the lengths of the parts that the trained weights are made of, in order;
    empty where they are not known.
    """

    samples: Ints
    costs: Floats | None
    trainable_size: int
    held_out: Ints | None = None
    names: tuple[str, ...] = ()
    trainable_sizes: tuple[int, ...] = ()

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return int(self.samples.size)


# What a client knows of itself, what it decides to do, and what its training needs.


@dataclass(frozen=True)
class Profile:
    """What a client knows of itself."""

    client: int
    cost: float
    samples: int


@dataclass(frozen=True)
class DataUse:
    """Which data a client trains on: by default all of its own, as they are.

    Parameters
    ----------
    share : float
        The share of its samples, above 0 and at most 1: the first ones.
    flips_labels : bool
        Whether class k is called ``classes - 1 - k``.
    owner : int, optional
        The client whose data they are, if not the client's own.
    """

    share: float = 1.0
    flips_labels: bool = False
    owner: int | None = None

    def samples_of(self, samples: int) -> int:
        """Return how many of so many samples are used, at least one if there are any."""
        return min(samples, max(1, math.ceil(self.share * samples)))


OWN_DATA = DataUse()
"""What honest clients train on."""


@dataclass(frozen=True)
class Objective:
    """What a mini-batch minimises: its mean loss, bounded or tilted, plus μ/2 ‖v - received‖².

    Parameters
    ----------
    proximal : float
        μ.
    bound : float
        M, where the mean loss ℓ of a mini-batch is replaced by -M log(1 - ℓ / M): its gradient is
        multiplied by M / (M - ℓ), and by M / ε from ℓ = M - ε on. Infinity leaves it as it is. A
        loss is bounded or tilted, not both.
    tilt : float
        t, where the mean loss is replaced by (1/t) log mean exp(t ℓ_j) over the samples j of the
        mini-batch; 0 leaves it as it is.
    """

    proximal: float = 0.0
    bound: float = math.inf
    tilt: float = 0.0


_MEAN_LOSS = Objective()

ReportedLoss = Literal["no", "received", "trained"]
"""Of which model a client reports the loss on its training data, if of any."""


@dataclass(frozen=True)
class Terms:
    """What the server offers one client; a few numbers, so it travels anywhere.

    Parameters
    ----------
    client, round : int
        Whose terms these are, and in which round.
    decay_factor, contribution : float
        γ and ω of the game, where one is played.
    step_scale : float
        What the plan's step size is multiplied by.
    epochs : int, optional
        Instead of the plan's epochs.
    batches : int, optional
        Counts mini-batches, and replaces epochs.
    objective : Objective
        What is minimised.
    report_loss : {"no", "received", "trained"}
        Whether the client reports a loss on its training data, and of which model.
    train : bool
        False asks for the loss of the received model and for no training.
    """

    client: int
    round: int
    decay_factor: float = 1.0
    contribution: float = math.nan
    step_scale: float = 1.0
    epochs: int | None = None
    batches: int | None = None
    objective: Objective = _MEAN_LOSS
    report_loss: ReportedLoss = "no"
    train: bool = True


@dataclass(frozen=True)
class LocalWork:
    """What a client has decided to do on its terms: epochs over its data.

    Terms that count mini-batches replace the epochs. A work of 0 epochs means that the client
    abstains, unless the terms ask for no training: then it only reports its loss.

    Parameters
    ----------
    terms : Terms
        What the server has offered.
    epochs : int
        How often it goes over its data.
    learning_rate : float
        The step size.
    data : DataUse
        Which data it trains on.
    personal : bool
        Whether the client trains a model for itself, which draws its own mini-batches.
    """

    terms: Terms
    epochs: int
    learning_rate: float
    data: DataUse = OWN_DATA
    personal: bool = False

    @property
    def client(self) -> int:
        """Whose work it is."""
        return self.terms.client

    @property
    def round(self) -> int:
        """The round of the terms."""
        return self.terms.round

    @property
    def abstains(self) -> bool:
        """Whether there is nothing to do."""
        return self.epochs == 0 and self.terms.batches is None and self.terms.train

    @property
    def owner(self) -> int:
        """The client whose data are used."""
        return self.client if self.data.owner is None else self.data.owner


@dataclass(frozen=True, eq=False)
class TaskVectors:
    """The vectors that a training needs besides the common received weights.

    Parameters
    ----------
    received : Params, optional
        What this client received in place of the common weights: where the proximal term pulls.
    start : Params, optional
        Where the training starts, and whose loss is told, if not at what was received.
    correction : Params, optional
        Added to the gradient of every mini-batch; as long as the trainable weights.
    """

    received: Params | None = None
    start: Params | None = None
    correction: Params | None = None


NO_VECTORS = TaskVectors()
"""What most trainings need."""


@dataclass(frozen=True, eq=False)
class ClientVectors:
    """The vectors at hand when a client prepares its training, and after it.

    Attributes
    ----------
    received : Params
        The model it received.
    extra : Params or None
        What the server sends all clients besides, such as a control variate.
    kept : Params or None
        What it has kept since its last training; None if it has nothing.
    trainable_size : int
        How many of the weights are trained.
    samples : int
        How many samples it has trained on; 0 before the training.
    """

    received: Params
    extra: Params | None
    kept: Params | None
    trainable_size: int
    samples: int = 0


# What the server and a client tell each other in a round, however it travels.

MOST_SAMPLES = 2**40
"""The most samples that a client can say it has."""


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the server sends to clients besides their terms.

    Attributes
    ----------
    params : Params
        The global model.
    round : int
        The last finished round.
    extra : Params, optional
        A vector for all of them besides, as long as the trainable weights.
    per_client : callable, optional
        Returns the model of one client, where each has one of its own in place of the global one.
    evaluates_kept : bool
        Whether clients evaluate the model that they keep themselves, if they have one.
    """

    params: Params
    round: int = 0
    extra: Params | None = None
    per_client: Callable[[int], Params] | None = None
    evaluates_kept: bool = False

    def model(self, client: int) -> Params:
        """Return the model that a client receives."""
        return self.params if self.per_client is None else self.per_client(client)


@dataclass(frozen=True, eq=False)
class Update:
    """What comes back from a client.

    ``failure`` says why there is nothing to use (late, unavailable, an error, a bad update); an
    abstaining client has neither params nor a failure, nor has one that only evaluates. ``loss`` is
    that of the *received* model on the client's training data (of the trained one if the terms say
    so), NaN if it was not asked for. ``restarted`` is whether the client had kept nothing from an
    earlier round, where the strategy lets clients keep something.
    """

    client: int
    params: Params | None
    samples: int
    epochs: int
    loss: float = math.nan
    seconds: float = 0.0
    failure: str = ""
    restarted: bool = False

    @classmethod
    def missing(cls, client: int, reason: str) -> Self:
        """Return the update of a client that sent none, with the reason."""
        return cls(client, params=None, samples=0, epochs=0, failure=reason)

    @property
    def abstained(self) -> bool:
        """Whether the client chose to do nothing."""
        return self.params is None and not self.failure


# How good a model is for the clients, and what they are scored by.


@dataclass(frozen=True)
class ScoreKind:
    """What clients are scored by.

    Attributes
    ----------
    title : str
        What it is called, empty for accuracy.
    lower_is_better : bool
        Whether less of it is better, as of a loss. It is told as it is then, everything else in
        percent.
    """

    title: str = ""
    lower_is_better: bool = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self.title or "accuracy"

    @property
    def unit(self) -> str:
        """Its unit, empty if it has none."""
        return "" if self.lower_is_better else "%"

    @property
    def axis(self) -> str:
        """Its name with its unit, as on an axis.

        Examples
        --------
        >>> ScoreKind().axis, ScoreKind("loss", lower_is_better=True).axis
        ('accuracy, %', 'loss')
        """
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def text(self, score: float) -> str:
        """Return a score as people read it: a percentage to one digit, a loss to three.

        Examples
        --------
        >>> ScoreKind("R²").text(71.25), ScoreKind("loss", lower_is_better=True).text(1.25)
        ('71.2%', '1.250')
        """
        return f"{score:.3f}" if self.lower_is_better else f"{score:.1f}%"


ACCURACY_SCORE = ScoreKind()
"""Plain accuracy."""


class NamesItsScore:
    """A record that has what its clients are scored by as two fields."""

    scored_by: str
    less_is_better: bool

    @property
    def score_kind(self) -> ScoreKind:
        """What clients are scored by."""
        return ScoreKind(self.scored_by, self.less_is_better)


@dataclass(frozen=True, eq=False)
class Scores:
    """The global model evaluated on the clients' own held-out data, and on the common test set.

    Accuracies are in percent. Another metric of a run may stand in their place: ``kind`` says
    which, and ``is_share`` whether it lies between 0 and 100 for any model. ``samples`` are the
    held-out samples of each client. A client that gave no score has NaN, and ``missing`` says why.
    ``clients`` has the numbers of the clients in order where only a sample of them was evaluated;
    without it, entry ``i`` is client ``i``. ``personal`` is whether each client scored a model of
    its own; the test set is scored by the global one.
    """

    accuracy: Floats
    loss: Floats
    samples: Ints
    test_accuracy: float
    test_loss: float
    missing: Mapping[int, str] = field(default_factory=dict)
    clients: Ints | None = None
    personal: bool = False
    kind: ScoreKind = ACCURACY_SCORE
    is_share: bool = True


Scoring = Callable[[], Scores]
"""An evaluation under way: calling it waits for the scores."""
