"""Regression: each sample has a number, and a model gives one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError, FlammaError
from flamma.tasks.contract import LOSS, ClientMetric, SampleMarks, Task
from flamma.tasks.parts import owners_of, part_means, part_sums, ratios
from flamma.types import Floats, Inputs, Ints, Targets

if TYPE_CHECKING:
    from torch import Tensor


def _one_each(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the outputs as one number per sample; broadcasting would mix up the samples."""
    if outputs.numel() != targets.numel():
        raise FlammaError(
            f"a model of regression gives one number per sample, but its outputs have the shape "
            f"{tuple(outputs.shape)} for {targets.numel()} samples."
        )
    return outputs.reshape(targets.shape)


def squared_error(outputs: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
    """Return the squared error of every sample, whatever the loss; infinity in place of NaN."""
    errors = _one_each(outputs, targets) - targets
    return (errors * errors).nan_to_num(nan=float("inf"), posinf=float("inf"))


def explained_share(errors: SampleMarks, targets: Targets, offsets: Ints) -> Floats:
    """Return R² of each client: 1 - Σ error² / Σ (y - mean)².

    1 is perfect, 0 as good as the client's own mean, and there is no bound below. It is NaN for a
    client whose targets are all the same.

    Examples
    --------
    >>> explained_share(np.array([0.5, 0.5]), np.array([1.0, 3.0]), np.array([0, 2]))
    array([0.5])
    """
    owner = owners_of(offsets)
    # From the client's first target on, so that equal ones deviate by exactly 0.
    deviations = targets.astype(np.float64) - targets[offsets[owner]]
    deviations -= part_means(deviations, offsets)[owner]
    return 1 - ratios(part_sums(errors, offsets), part_sums(deviations * deviations, offsets))


R2 = ClientMetric("r2", "R²", squared_error, explained_share, is_share=False)


class Regression(Task):
    """Predicts a number."""

    name = "regression"
    summary = "a number per sample, by squared error"
    metrics = (R2, LOSS)
    target_type = np.float32

    def targets(self, given: Any, what: str) -> NDArray[np.float32]:
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

    def predictions(self, outputs: NDArray[np.float32]) -> NDArray[Any]:
        """Return the numbers that a model gives, one per sample."""
        return outputs.reshape(len(outputs))


REGRESSION = Regression()
