"""The contract of aggregators: what they are given, and what they may ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flamma.errors import StrategyError
from flamma.numerics import total
from flamma.options import read_options
from flamma.types import Floats, Params

Vectors = Sequence[NDArray[np.floating]] | NDArray[np.floating]
"""Vectors one by one, or the rows of a matrix."""

Aggregator = Callable[..., Floats]
"""``(vectors, weights, **options) -> vector`` in double precision.

One that works on updates rather than on models has a third parameter without a default,
``reference``, and is given a :class:`Reference`.
"""

SERVER_UPDATE = "needs_server_update"
"""The attribute of a component for which the server must train on its validation set."""

AnyAggregator = TypeVar("AnyAggregator", bound=Aggregator)


@dataclass(frozen=True, eq=False)
class Reference:
    """What updates are measured from.

    Attributes
    ----------
    received : ndarray
        The model that clients received: the vector of a client that has changed nothing.
    own_update : callable, optional
        Returns the server's own update, which it makes by training the received model on its
        validation set: of the weights that are trained, which are the first ones. It is called
        only by aggregators that need it.
    """

    received: Params | Floats
    own_update: Callable[[], Floats] | None = None

    def server_update(self) -> Floats:
        """Return the server's own update.

        Raises
        ------
        StrategyError
            If the server has no data, or no way to train on them.
        """
        if self.own_update is None:
            raise StrategyError(
                "the aggregator needs an update of the server's own, but the server cannot train: "
                "give it a validation set, or choose another aggregator."
            )
        return self.own_update()

    def of_trained(self, size: int) -> Reference:
        """Return the reference of the trained weights alone, of which there are so many."""
        return Reference(self.received[:size], self.own_update)


@dataclass(frozen=True, eq=False)
class Weighed:
    """The vectors that count, their weights with a sum of 1, and what the weights summed up to."""

    vectors: list[NDArray[np.floating]]
    weights: Floats
    scale: float

    @classmethod
    def of(cls, vectors: Vectors, weights: Floats, weighted: bool) -> Weighed:
        """Return the vectors of positive weight; they count alike if they are not ``weighted``."""
        given = np.asarray(weights, dtype=np.float64)
        counts = np.flatnonzero(given > 0)
        if not counts.size:
            raise StrategyError("at least one vector with a positive weight is needed.")
        own = given[counts] if weighted else np.ones(counts.size)
        return cls([vectors[k] for k in counts.tolist()], own / total(own), total(given))


def asks(
    *,
    check: Callable[..., None] | None = None,
    needs_validation: bool = False,
    needs_server_update: bool = False,
) -> Callable[[AnyAggregator], AnyAggregator]:
    """Say what an aggregator asks for.

    Parameters
    ----------
    check : callable, optional
        ``(answers, **options)``, called when a strategy is made with as many answers as a round
        is planned to have. It raises a :class:`~flamma.errors.StrategyError` if the options
        cannot work.
    needs_validation : bool
        Whether the server must have a validation set.
    needs_server_update : bool
        Whether the server must be able to train on it.
    """

    def mark(entry: AnyAggregator) -> AnyAggregator:
        for name, value in {
            "check": check,
            "needs_validation": needs_validation,
            SERVER_UPDATE: needs_server_update,
        }.items():
            setattr(entry, name, value)
        return entry

    return mark


def takes_reference(entry: Aggregator) -> bool:
    """Return whether an aggregator works on updates, and so asks for the reference."""
    found = inspect.signature(entry).parameters.get("reference")
    return found is not None and found.default is found.empty


def check_options(entry: Aggregator, answers: int, options: Mapping[str, Any]) -> None:
    """Let an aggregator refuse its options for so many answers a round."""
    check = getattr(entry, "check", None)
    if check is not None:
        check(answers, **read_options(entry, options))
