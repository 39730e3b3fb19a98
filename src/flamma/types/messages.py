"""What the server and a client tell each other in a round, however it travels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flamma.types.arrays import Params

MOST_SAMPLES = 2**40
"""The most samples that a client can say it has."""


@dataclass(frozen=True)
class Terms:
    """What the server offers one client; a few numbers, so it travels anywhere.

    ``evaluates`` asks for the loss of the received model and for no training. ``loss_bound`` and
    ``tilt`` change what is minimised; see :class:`LocalTask`. ``wants_trained_loss`` asks for the
    loss of the model that the client trained, in place of that of the received one.
    """

    client: int
    round: int
    decay_factor: float = 1.0
    contribution: float = math.nan
    step_scale: float = 1.0
    proximal: float = 0.0
    epochs: int | None = None
    iterations: int | None = None
    wants_loss: bool = False
    evaluates: bool = False
    loss_bound: float = math.inf
    tilt: float = 0.0
    wants_trained_loss: bool = False


@dataclass(frozen=True, eq=False)
class Download:
    """What the server sends to clients besides their terms.

    Attributes
    ----------
    params : Params
        The global model.
    round : int
        The last finished round.
    extra : Params, optional
        A vector for all of them besides, as long as the trainable weights.
    model_for : callable, optional
        Returns the model of one client, where each has one of its own in place of the global one.
    scores_kept : bool
        Whether clients evaluate the model that they keep themselves, if they have one.
    """

    params: Params
    round: int = 0
    extra: Params | None = None
    model_for: Callable[[int], Params] | None = None
    scores_kept: bool = False

    def model(self, client: int) -> Params:
        """Return the model that a client receives."""
        return self.params if self.model_for is None else self.model_for(client)


@dataclass(frozen=True, eq=False)
class Report:
    """What comes back from a client.

    ``failure`` says why there is nothing to use (late, unavailable, an error, a bad update); an
    abstaining client has neither params nor a failure, nor has one that only evaluates. ``loss`` is
    that of the *received* model on the client's training data (of the trained one if the terms say
    so), NaN if it was not asked for. ``starts_anew`` is whether the client had kept nothing from an
    earlier round, where the strategy lets clients keep something.
    """

    client: int
    params: Params | None
    samples: int
    epochs: int
    loss: float = math.nan
    seconds: float = 0.0
    failure: str = ""
    starts_anew: bool = False

    @property
    def abstained(self) -> bool:
        """Whether the client chose to do nothing."""
        return self.params is None and not self.failure
