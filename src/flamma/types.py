"""The records that pass between rooms: frozen, plain, and small except for the weights.

``params`` is always one flat float32 vector. Its :class:`Layout` says what is where: the
trainable parameters first, then what is only carried along (running means of a batch norm).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Params = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_SAMPLES = 2**40
"""The most samples that a client can say it has."""


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
    def trainable_size(self) -> int:
        """How many of them are trained; they are the first ones."""
        return sum(s for s, learns in zip(self.sizes, self.trainable, strict=True) if learns)


@dataclass(frozen=True)
class Plan:
    """What every strategy is told about the experiment.

    ``budget`` is the most that clients may be paid in all rounds, in units of utility; None for no
    limit.
    """

    rounds: int
    per_round: int
    epochs: int = 5
    learning_rate: float = 0.05
    batch_size: int = 32
    budget: float | None = None


@dataclass(frozen=True, eq=False)
class Population:
    """What the server knows of the clients: how much data each has and, perhaps, its cost.

    Costs are NaN for clients that do not tell theirs. ``trainable_size`` is how many of the
    model's weights are trained. ``names`` are given where clients are more than numbers.
    """

    samples: Ints
    costs: Floats | None
    trainable_size: int
    held_out: Ints | None = None
    names: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return int(self.samples.size)


@dataclass(frozen=True)
class Terms:
    """What the server offers one selected client; a few numbers, so it travels anywhere."""

    client: int
    round: int
    decay_factor: float = 1.0
    contribution: float = math.nan
    step_scale: float = 1.0
    proximal: float = 0.0
    epochs: int | None = None
    iterations: int | None = None
    wants_loss: bool = False


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
class LocalTask:
    """What a client has decided to do: epochs over its data, or a number of mini-batches.

    ``iterations``, where given, counts mini-batches and replaces ``epochs``. A task of 0 epochs
    means that the client abstains.
    """

    client: int
    round: int
    epochs: int
    learning_rate: float
    iterations: int | None = None
    proximal: float = 0.0
    wants_loss: bool = False
    data: DataUse = OWN_DATA

    @property
    def abstains(self) -> bool:
        """Whether there is nothing to do."""
        return self.epochs == 0 and self.iterations is None


@dataclass(frozen=True, eq=False)
class Report:
    """What comes back from a client.

    ``failure`` says why there is nothing to use (late, unavailable, an error, a bad update); an
    abstaining client has neither params nor a failure. ``loss`` is that of the *received* model
    on the client's training data, NaN if it was not asked for.
    """

    client: int
    params: Params | None
    samples: int
    epochs: int
    loss: float = math.nan
    seconds: float = 0.0
    failure: str = ""

    @property
    def abstained(self) -> bool:
        """Whether the client chose to do nothing."""
        return self.params is None and not self.failure


@dataclass(frozen=True, eq=False)
class Scores:
    """The global model evaluated on the clients' own held-out data, and on the common test set.

    Accuracies are in percent; ``samples`` are the held-out samples of each client. A client that
    gave no score has NaN, and ``missing`` says why. ``clients`` has the numbers of the clients in
    order where only a sample of them was evaluated; without it, entry ``i`` is client ``i``.
    """

    accuracy: Floats
    loss: Floats
    samples: Ints
    test_accuracy: float
    test_loss: float
    missing: Mapping[int, str] = field(default_factory=dict)
    clients: Ints | None = None


Scoring = Callable[[], Scores]
"""An evaluation under way: calling it waits for the scores."""
