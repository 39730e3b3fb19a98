"""The contract of tasks and of metrics of a client's predictions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import ConfigError, DataError
from flamma.io import unknown
from flamma.types import Floats, Inputs, Ints, Params, ScoreKind, Targets

if TYPE_CHECKING:
    from torch import Tensor


_Number = np.number | np.bool_

MAX_CLASSES = 100_000
"""Upper bound of the number of classes: a model has weights for each of them."""


def whole_labels(labels: ArrayLike, what: str, remedy: str = "") -> Ints:
    """Return labels as int64; ``what`` names them in messages, and ``remedy`` what else to do.

    Floating-point numbers will do if they are whole, but nothing is rounded.

    Examples
    --------
    >>> whole_labels([0.0, 2.0], "labels")
    array([0, 2])
    """
    given = np.asarray(labels)
    if given.dtype.kind not in "biuf":
        raise DataError(f"{what} must be whole numbers, not {given.dtype}.")
    if given.dtype.kind == "f" and not (np.isfinite(given) & (given == np.rint(given))).all():
        advice = f"; {remedy}" if remedy else ""
        raise DataError(
            f"{what} must be whole numbers, but one has a fraction or is not finite{advice}."
        )
    if given.size and given.min() < 0:
        raise DataError(f"{what} must be whole numbers from 0, but one is {given.min():.0f}.")
    if given.size and given.max() >= MAX_CLASSES:
        raise DataError(f"{what} must be below {MAX_CLASSES}, but one is {given.max():.0f}.")
    return given.astype(np.int64)


# Sums and means over each client's part of an array, in the order of its entries.


def owners_of(offsets: Ints) -> Ints:
    """Return the client of every entry: client ``i`` owns those from ``offsets[i]`` on."""
    counts = np.diff(offsets)
    return np.repeat(np.arange(counts.size), counts)


def part_sums(values: NDArray[_Number], offsets: Ints) -> Floats:
    """Return the sum of each client's values, which are added up in their order.

    Examples
    --------
    >>> part_sums(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
    array([3., 0., 3.])
    """
    own = values[offsets[0] : offsets[-1]]
    sums: Floats = np.bincount(  # type: ignore[assignment]
        owners_of(offsets), weights=own, minlength=offsets.size - 1
    )
    return sums


def part_means(values: NDArray[_Number], offsets: Ints) -> Floats:
    """Return the mean of each client's values; a client without values has NaN."""
    return ratios(part_sums(values, offsets), np.diff(offsets))


def ranks_of(values: NDArray[_Number], offsets: Ints) -> Floats:
    """Return the rank of each value among its client's, from 1 on; equal ones share their mean.

    Examples
    --------
    >>> ranks_of(np.array([5.0, 1.0, 5.0, 9.0]), np.array([0, 3, 4]))
    array([2.5, 1. , 2.5, 1. ])
    """
    owner = owners_of(offsets)
    order = np.lexsort((values, owner))
    whose, ranked = owner[order], values[order]
    new = np.ones(order.size, dtype=bool)
    new[1:] = (ranked[1:] != ranked[:-1]) | (whose[1:] != whose[:-1])
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], order.size)
    ranks = np.empty(order.size)
    ranks[order] = np.repeat((starts + ends + 1) / 2, ends - starts) - offsets[whose]
    return ranks


def ratios(above: Floats, below: NDArray[_Number]) -> Floats:
    """Return each quotient, NaN where the divisor is 0."""
    found = np.full(below.size, math.nan)
    filled = below != 0
    found[filled] = above[filled] / below[filled]
    return found


# The contracts of tasks and of metrics.

SampleMarks = NDArray[np.float32 | np.float64 | np.bool_]
"""The marks of a metric: an entry or a row of a few numbers for each sample's prediction."""


@dataclass(frozen=True, eq=False)
class ClientMetric:
    """A metric of one client's predictions; higher is better, and 1 is shown as 100%.

    It comes in two steps, so that samples can be scored in any process and in pieces: ``mark``
    keeps what is needed of each prediction, and ``score`` makes of them a number per client.

    Parameters
    ----------
    name, title : str
        Its name in a configuration, and in tables and pages.
    mark : callable
        Returns the marks of a batch from its outputs, targets and losses. The outputs where the
        loss is NaN are no predictions.
    score : callable
        Returns a number per client from all marks, targets and the clients' offsets into them; NaN
        where the metric is not defined, as it is without samples.
    mark_shape : tuple of int
        The shape of one sample's mark.
    mark_type : type
        The type of its numbers.
    marks_right : bool
        Whether the mark is just whether a sample is classified right, as lanes return it.
    from_losses : callable, optional
        Returns the marks from the losses of samples and their labels where the loss is the
        cross-entropy of a label; lanes return no outputs.
    takes_outputs : bool
        Whether the mark is a model's output; a trial finds its shape.
    is_share : bool
        Whether it lies between 0 and 1 for any predictions.
    always_defined : bool
        Whether every client with samples has a score.
    lower_is_better : bool
        Whether it is a loss or the like: at least 0, lower is better, and it is not in percent.
    """

    name: str
    title: str
    mark: Callable[[Tensor, Tensor, Tensor], Tensor]
    score: Callable[[SampleMarks, Targets, Ints], Floats]
    mark_shape: tuple[int, ...] = ()
    mark_type: type[np.float32 | np.float64 | np.bool_] = np.float32
    marks_right: bool = False
    from_losses: Callable[[Params, Ints], SampleMarks] | None = None
    takes_outputs: bool = False
    is_share: bool = True
    always_defined: bool = False
    lower_is_better: bool = False

    @property
    def kind(self) -> ScoreKind:
        """The kind of its scores."""
        return ScoreKind(self.title, self.lower_is_better)

    def could_be(self, score: float) -> bool:
        """Return whether a client with samples can have this score, in percent or as it is."""
        if math.isnan(score):
            return not self.always_defined
        if self.lower_is_better:
            return score >= 0
        return 0 <= score <= 100 if self.is_share else score < math.inf


LOSS = ClientMetric(
    "loss",
    "loss",
    lambda outputs, targets, losses: losses.nan_to_num(nan=math.inf, posinf=math.inf),
    lambda losses, targets, offsets: part_means(losses, offsets),
    from_losses=lambda losses, labels: losses,
    is_share=False,
    always_defined=True,
    lower_is_better=True,
)
"""The mean loss of a client's samples, of any task."""


class Task(ABC):
    """A learning task: the form of targets and outputs, the loss of a sample, and the metrics.

    Attributes
    ----------
    name, summary : str
        Its name in the registry, and one line about it.
    metrics : tuple of ClientMetric
        The metrics of a client, the default first.
    labels_samples : bool
        Whether the target of a sample is its class, so that samples can be counted, split and
        stratified by class.
    target_type : type
        The type of targets: int64 of classes or tokens, float32 of numbers.
    takes_tokens : bool
        Whether every sample is of token ids.
    ignored : int or None
        A target that is not predicted, such as padding.
    trains_in_lanes : bool
        Whether its loss is the cross-entropy of one label per sample, which lanes have compiled.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    metrics: ClassVar[tuple[ClientMetric, ...]]
    labels_samples: ClassVar[bool] = False
    target_type: ClassVar[type[np.generic]] = np.int64
    takes_tokens: ClassVar[bool] = False
    ignored: ClassVar[int | None] = None
    trains_in_lanes: ClassVar[bool] = False

    @abstractmethod
    def targets(self, given: ArrayLike, what: str) -> Targets:
        """Return targets in the type and the shape that the task has; ``what`` names them."""

    @abstractmethod
    def outputs(self, inputs: Inputs, targets: Targets) -> int:
        """Return how many numbers a model gives for each prediction, such as one per class."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample, at least 0, of a model's outputs."""

    def mean_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of the samples' losses."""
        return self.losses(outputs, targets).mean()

    @abstractmethod
    def predictions(self, outputs: NDArray[np.float32]) -> Targets:
        """Return what a model's outputs predict, in the form of the targets."""

    def no_targets(self, shape: tuple[int, ...]) -> Targets:
        """Return the targets of no samples of the given shape."""
        return np.zeros(0, dtype=self.target_type)

    def blank(self, samples: int, shape: tuple[int, ...]) -> tuple[Inputs, Targets]:
        """Return samples of zeros, and targets of zeros, to try a model with."""
        none = self.no_targets(shape)
        kind = np.int64 if self.takes_tokens else np.float32
        targets = np.zeros((samples, *none.shape[1:]), dtype=none.dtype)
        return np.zeros((samples, *shape), dtype=kind), targets

    def inputs(self, given: ArrayLike) -> Inputs:
        """Return samples as a model gets them: whole numbers of 32 or 64 bits as int64.

        They may be token ids. A model that cannot take them gets them as float32, which everything
        else becomes here already: pictures are often bytes.
        """
        array = np.asarray(given)
        tokens = array.dtype.kind in "iu" and array.dtype.itemsize >= 4
        return np.asarray(array, dtype=np.int64 if tokens else np.float32)

    def metric(self, name: str = "") -> ClientMetric:
        """Return a metric by name; the first one if none is named."""
        known = {metric.name: metric for metric in self.metrics}
        if not name:
            return self.metrics[0]
        if name not in known:
            raise ConfigError(unknown(f"metric of {self.name}", name, known))
        return known[name]
