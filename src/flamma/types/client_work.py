"""What a client knows of itself, what it decides to do, and what its training needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flamma.types.arrays import Params


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
    means that the client abstains, unless it ``evaluates``: then it only tells its loss.

    Parameters
    ----------
    loss_bound : float
        M, where the mean loss ℓ of a mini-batch is replaced by -M log(1 - ℓ / M): its gradient is
        multiplied by M / (M - ℓ), and by M / ε from ℓ = M - ε on. Infinity leaves it as it is. A
        task has a bound or a tilt, not both.
    tilt : float
        t, where the mean loss is replaced by (1/t) log mean exp(t ℓ_j) over the samples j of the
        mini-batch; 0 leaves it as it is.
    wants_trained_loss : bool
        Whether the loss that is told is that of the trained model, not of the received one.
    is_own : bool
        Whether the client trains for itself, with mini-batches of their own.
    """

    client: int
    round: int
    epochs: int
    learning_rate: float
    iterations: int | None = None
    proximal: float = 0.0
    wants_loss: bool = False
    data: DataUse = OWN_DATA
    evaluates: bool = False
    loss_bound: float = math.inf
    tilt: float = 0.0
    wants_trained_loss: bool = False
    is_own: bool = False

    @property
    def abstains(self) -> bool:
        """Whether there is nothing to do."""
        return self.epochs == 0 and self.iterations is None and not self.evaluates

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
