"""Classification, with a label per sample, and regression, with a number per sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import DataError, FlammaError
from flamma.numerics import exp, log
from flamma.tasks.base import (
    LOSS,
    ClientMetric,
    SampleMarks,
    Task,
    owners_of,
    part_means,
    part_sums,
    ranks_of,
    ratios,
    whole_labels,
)
from flamma.types import Floats, Inputs, Ints, Params, Targets

if TYPE_CHECKING:
    from torch import Tensor


_REMEDY = "for numbers to be predicted the task is regression"
"""What to do with targets that are no labels."""


def _is_right(outputs: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
    """Return whether each sample is classified right; argmax of NaN logits is no prediction."""
    right: Tensor = outputs.argmax(1) == targets
    return right & ~losses.isnan()


def _balanced_accuracy(right: SampleMarks, labels: Targets, offsets: Ints) -> Floats:
    """Return the mean over a client's classes of the share of samples that are classified right.

    Examples
    --------
    >>> right, labels = np.array([True, True, True, False]), np.array([0, 0, 0, 1])
    >>> _balanced_accuracy(right, labels, np.array([0, 4]))
    array([0.5])
    """
    key = owners_of(offsets) * (int(labels.max(initial=0)) + 1) + labels
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    recalls = part_means(right[order], np.append(starts, key.size))
    classes_before = np.searchsorted(starts, offsets)  # the classes of a client stand together
    return part_means(recalls, classes_before)


def _margin(outputs: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
    """Return by how much the logit of class 1 is above that of class 0."""
    if outputs.shape[1] != 2:
        raise FlammaError(f"AUC is for two classes, not for {outputs.shape[1]}: use accuracy.")
    return outputs[:, 1] - outputs[:, 0]


def _margin_of_losses(losses: Params, labels: Ints) -> Floats:
    """Return the margin of class 1 by the cross-entropies of samples of two classes.

    The loss of a sample is ln(1 + e^-m), where m is by how much the logit of its class is
    above the other one.

    Examples
    --------
    >>> losses = np.log1p(np.exp([-2.0, 3.0]))  # right by 2, wrong by 3
    >>> _margin_of_losses(losses, np.array([1, 0])).round(6)
    array([2., 3.])
    """
    below = log(exp(losses) - 1)
    return np.where(labels == 1, -below, below)


def _area_under_curve(margins: SampleMarks, labels: Targets, offsets: Ints) -> Floats:
    """Return the share of pairs of both classes that the margin orders right; ties count half.

    It is the area under the receiver operating characteristic (Hanley and McNeil, The meaning and
    use of the area under a receiver operating characteristic (ROC) curve, Radiology 1982), NaN for
    a client that has one class only. A margin that is NaN is below all others of class 1, and above
    all of class 0.

    Examples
    --------
    >>> _area_under_curve(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]), np.array([0, 4]))
    array([0.875])
    """
    positive = labels == 1
    values = np.where(np.isnan(margins), np.where(positive, -np.inf, np.inf), margins)
    positives = part_sums(positive, offsets)
    pairs = positives * (np.diff(offsets) - positives)
    rank_sums = part_sums(np.where(positive, ranks_of(values, offsets), 0.0), offsets)
    return ratios(rank_sums - positives * (positives + 1) / 2, pairs)


ACCURACY = ClientMetric(
    "accuracy",
    "accuracy",
    _is_right,
    lambda right, labels, offsets: part_means(right, offsets),
    mark_type=np.bool_,
    marks_right=True,
    always_defined=True,
)
_BALANCED_ACCURACY = ClientMetric(
    "balanced-accuracy",
    "balanced accuracy",
    _is_right,
    _balanced_accuracy,
    mark_type=np.bool_,
    marks_right=True,
    always_defined=True,
)
_AUC = ClientMetric("auc", "AUC", _margin, _area_under_curve, from_losses=_margin_of_losses)


class _Classification(Task):
    """Predicts the class of a sample."""

    name = "classification"
    summary = "a label per sample, by cross-entropy"
    metrics = (ACCURACY, _BALANCED_ACCURACY, _AUC, LOSS)
    labels_samples = True
    trains_in_lanes = True

    def targets(self, given: ArrayLike, what: str) -> Ints:
        """Return whole numbers from 0 as int64; floating-point numbers will do if they are whole.

        Examples
        --------
        >>> _Classification().targets([0.0, 0.5], "labels")
        Traceback (most recent call last):
        ...
        flamma.errors.DataError: labels must be whole numbers, but one has a fraction or is not
        finite; for numbers to be predicted the task is regression.
        """
        return whole_labels(given, what, _REMEDY)

    def outputs(self, inputs: Inputs, targets: Targets) -> int:
        """Return the number of classes: one more than the largest label."""
        return int(targets.max()) + 1

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of every sample."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, reduction="none")

    def mean_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, by torch's own reduction, whose bits runs are known by."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets)

    def predictions(self, outputs: NDArray[np.float32]) -> Targets:
        """Return the class with the largest logit."""
        classes: Ints = outputs.argmax(axis=1)
        return classes


CLASSIFICATION = _Classification()


# Regression: each sample has a number, and a model gives one.


def _one_each(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the outputs as one number per sample; broadcasting would mix up the samples."""
    if outputs.numel() != targets.numel():
        raise FlammaError(
            f"a model of regression gives one number per sample, but its outputs have the shape "
            f"{tuple(outputs.shape)} for {targets.numel()} samples."
        )
    return outputs.reshape(targets.shape)


def _squared_error(outputs: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
    """Return the squared error of every sample, whatever the loss; infinity in place of NaN."""
    errors = _one_each(outputs, targets) - targets
    return (errors * errors).nan_to_num(nan=float("inf"), posinf=float("inf"))


def _explained_share(errors: SampleMarks, targets: Targets, offsets: Ints) -> Floats:
    """Return R² of each client: 1 - Σ error² / Σ (y - mean)².

    1 is perfect, 0 as good as the client's own mean, and there is no bound below. It is NaN for a
    client whose targets are all the same.

    Examples
    --------
    >>> _explained_share(np.array([0.5, 0.5]), np.array([1.0, 3.0]), np.array([0, 2]))
    array([0.5])
    """
    owner = owners_of(offsets)
    # From the client's first target on, so that equal ones deviate by exactly 0.
    deviations = targets.astype(np.float64) - targets[offsets[owner]]
    deviations -= part_means(deviations, offsets)[owner]
    return 1 - ratios(part_sums(errors, offsets), part_sums(deviations * deviations, offsets))


_R2 = ClientMetric("r2", "R²", _squared_error, _explained_share, is_share=False)


class _Regression(Task):
    """Predicts a number."""

    name = "regression"
    summary = "a number per sample, by squared error"
    metrics = (_R2, LOSS)
    target_type = np.float32

    def targets(self, given: ArrayLike, what: str) -> NDArray[np.float32]:
        """Return finite numbers as float32, one per sample."""
        array = np.asarray(given)
        if array.dtype.kind not in "biuf":
            raise DataError(f"{what} must be numbers, not {array.dtype}.")
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise DataError(f"{what} must be one number per sample, not of shape {array.shape}.")
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32)
        if not np.isfinite(numbers).all():
            raise DataError(f"{what} must be finite numbers of single precision.")
        return numbers

    def outputs(self, inputs: Inputs, targets: Targets) -> int:
        """Return 1: a model gives one number."""
        return 1

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of every sample."""
        errors = _one_each(outputs, targets) - targets
        return errors * errors

    def predictions(self, outputs: NDArray[np.float32]) -> Targets:
        """Return the numbers that a model gives, one per sample."""
        return outputs.reshape(len(outputs))


REGRESSION = _Regression()
