"""The contract of contribution measures: what they see of a round, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from flamma.errors import StrategyError
from flamma.types import Floats, Ints, Params


@dataclass(frozen=True, eq=False)
class Update:
    """One client's update, trainable weights only.

    Attributes
    ----------
    local : ndarray
        The model the client sent.
    received : ndarray
        The global model it started from.
    aggregate : ndarray
        The new global model.
    """

    local: Params
    received: Params
    aggregate: Params


@dataclass(frozen=True, eq=False)
class RoundUpdates:
    """All updates of a round, for measures that compare clients.

    Attributes
    ----------
    clients : ndarray
        The clients whose updates were accepted, in order.
    models : sequence of ndarray
        All weights of the model that each of them sent.
    before, after : ndarray
        All weights of the global model that they received, and of the new one.
    trainable_size : int
        How many of the weights are trained; they are the first ones.
    weights : ndarray
        Each client's share of the mean; the shares add up to 1.
    previous : ndarray
        What each client's contribution was at its last report; NaN if there was none.
    round : int
        The number of the round, with which random draws are keyed.
    last_step : ndarray, optional
        How the global model moved in the round before, all weights; None where it is not known.
        Every client that took part knows it, without any work.
    validate : callable, optional
        Returns loss and accuracy in percent of a whole model on the server's validation set.
    """

    clients: Ints
    models: Sequence[Params]
    before: Params
    after: Params
    trainable_size: int
    weights: Floats
    previous: Floats
    round: int = 0
    last_step: Params | None = None
    validate: Callable[[Params], tuple[float, float]] | None = None

    @property
    def locals(self) -> list[Params]:
        """The trainable weights of the model that each client sent."""
        return [model[: self.trainable_size] for model in self.models]

    @property
    def received(self) -> Params:
        """The trainable weights of the model that the clients started from."""
        return self.before[: self.trainable_size]

    @property
    def aggregate(self) -> Params:
        """The trainable weights of the new global model."""
        return self.after[: self.trainable_size]

    def moves(self) -> Iterator[Floats]:
        """Yield how each client moved the trainable weights, in double precision.

        One by one, because all of them at once can be much larger than the models.
        """
        for local in self.locals:
            yield local.astype(np.float64) - self.received

    def common_move(self) -> Floats:
        """Return how the server moved the trainable weights, in double precision."""
        return self.aggregate.astype(np.float64) - self.received

    def single(self) -> Iterator[Update]:
        """Yield each client's update by itself."""
        for local in self.locals:
            yield Update(local, self.received, self.aggregate)


ContributionMeasure = Callable[..., float | Floats]
"""``(update, **options) -> contribution`` of one client by itself, or with :func:`round_measure`
``(updates, **options) -> contributions`` of all clients of a round."""

MeasureFunction = TypeVar("MeasureFunction", bound=Callable[..., Floats])


def round_measure(
    *, needs_validation: bool = False
) -> Callable[[MeasureFunction], MeasureFunction]:
    """Mark a function as a measure that is given all updates of a round.

    It takes :class:`RoundUpdates` and returns one contribution in [0, 1] for each client. A
    function without this mark takes the :class:`Update` of one client and returns one number.

    Parameters
    ----------
    needs_validation : bool
        Whether it scores models on the server's validation set. A strategy that uses the measure
        then needs one.

    Examples
    --------
    >>> @round_measure()
    ... def by_data(updates):
    ...     return updates.weights / updates.weights.max()
    >>> by_data.measures_rounds, by_data.needs_validation
    (True, False)
    """

    def mark(measure: MeasureFunction) -> MeasureFunction:
        measure.measures_rounds = True  # type: ignore[attr-defined]
        measure.needs_validation = needs_validation  # type: ignore[attr-defined]
        return measure

    return mark


def relative_to_best(values: Floats, quantile: float, least: float = 0.0) -> Floats:
    """Return positive values divided by a quantile of them, at most 1; all others as 0.

    Absolute values depend on the model, on the step size and on how far the training is; within
    a round they tell clients apart. With a ``quantile`` of 1 the best client has 1, unless even
    its value is below ``least``: it is then divided by that.

    Examples
    --------
    >>> relative_to_best(np.array([1.0, -3.0, 4.0, 2.0]), 1.0)
    array([0.25, 0.  , 1.  , 0.5 ])
    >>> relative_to_best(np.array([1.0, -3.0, 4.0, 2.0]), 0.5)
    array([0.5, 0. , 1. , 1. ])
    """
    if not 0 <= quantile <= 1:
        raise StrategyError(f"quantile must lie in [0, 1], not {quantile:g}.")
    values = np.where(np.isfinite(values), values, 0.0)
    positive = values[values > 0]
    if not positive.size:
        return np.zeros(values.size)
    unit = max(float(np.quantile(positive, quantile, method="higher")), least)
    # A unit that is almost 0 can make the quotient overflow, which is 1 all the same.
    with np.errstate(over="ignore"):
        return np.clip(values / unit, 0.0, 1.0)
