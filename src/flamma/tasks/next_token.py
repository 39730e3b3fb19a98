"""Next token: a sample is a sequence of token ids, and each has a token to predict."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import DataError, FlammaError
from flamma.numerics import exp
from flamma.tasks.base import (
    LOSS,
    MAX_CLASSES,
    ClientMetric,
    SampleMarks,
    Task,
    part_sums,
    ratios,
    whole_labels,
)
from flamma.types import Floats, Inputs, Ints, Targets

if TYPE_CHECKING:
    from torch import Tensor

_IGNORED_TOKEN = -100
"""A target that is not predicted, such as padding; torch's losses leave out the same number."""


def _logits(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.shape[:-1] != targets.shape:
        raise FlammaError(
            f"a model of next tokens gives outputs of shape (samples, length, tokens), but they "
            f"are {tuple(outputs.shape)} for targets of shape {tuple(targets.shape)}."
        )
    return outputs


def _right_tokens(outputs: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
    """Return how many tokens of every sample are predicted right, and how many there are."""
    import torch

    wanted = targets != _IGNORED_TOKEN
    right = (_logits(outputs, targets).argmax(2) == targets) & wanted & ~losses.isnan()[:, None]
    return torch.stack([right.sum(1), wanted.sum(1)], dim=1).float()


def _token_accuracy(marks: SampleMarks, targets: Targets, offsets: Ints) -> Floats:
    """Return the share of each client's tokens that are predicted right.

    Examples
    --------
    >>> marks, tokens = np.array([[1.0, 2.0], [2.0, 2.0]]), np.zeros((2, 2))
    >>> _token_accuracy(marks, tokens, np.array([0, 2]))
    array([0.75])
    """
    return ratios(part_sums(marks[:, 0], offsets), part_sums(marks[:, 1], offsets))


_TOKEN_ACCURACY = ClientMetric(
    "accuracy", "accuracy over tokens", _right_tokens, _token_accuracy, mark_shape=(2,)
)


def _token_losses(outputs: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
    """Return the sum of the cross-entropies of every sample's tokens, and how many there are.

    Whatever the loss is that is trained by; infinity stands in place of NaN.
    """
    import torch

    counts = (targets != _IGNORED_TOKEN).sum(1)
    sums = _cross_entropies(outputs, targets).sum(1)
    return torch.stack([sums.nan_to_num(nan=math.inf, posinf=math.inf), counts.float()], dim=1)


def _perplexity(marks: SampleMarks, targets: Targets, offsets: Ints) -> Floats:
    """Return e to the mean cross-entropy of each client's tokens: 1 for perfect predictions.

    It is the number of tokens among which a model that is as unsure would guess (Jelinek et al.,
    Perplexity, a measure of the difficulty of speech recognition tasks, 1977).

    Examples
    --------
    >>> marks, tokens = np.array([[0.0, 2.0], [2.0, 2.0]]), np.zeros((2, 2))
    >>> _perplexity(marks, tokens, np.array([0, 2])).round(4)  # the square root of e
    array([1.6487])
    """
    means = ratios(part_sums(marks[:, 0], offsets), part_sums(marks[:, 1], offsets))
    return exp(means)


_PERPLEXITY = ClientMetric(
    "perplexity",
    "perplexity",
    _token_losses,
    _perplexity,
    mark_shape=(2,),
    is_share=False,
    lower_is_better=True,
)


def _cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every token, 0 where it is not predicted."""
    from torch.nn.functional import cross_entropy

    flat = _logits(outputs, targets).flatten(0, 1)
    each = cross_entropy(flat, targets.flatten(), reduction="none", ignore_index=_IGNORED_TOKEN)
    return each.view(targets.shape)


class _NextToken(Task):
    """Predicts the token at every place of a sequence."""

    name = "next-token"
    summary = "a token per place of a sequence, by cross-entropy"
    metrics = (_TOKEN_ACCURACY, _PERPLEXITY, LOSS)
    takes_tokens = True
    ignored = _IGNORED_TOKEN

    def targets(self, given: ArrayLike, what: str) -> Ints:
        """Return the tokens to predict as int64 of shape (samples, length).

        They are whole numbers from 0, or :data:`IGNORED_TOKEN`.
        """
        array = np.asarray(given)
        if array.ndim != 2:
            raise DataError(
                f"{what} must be token ids of shape (samples, length), not {array.shape}; for one "
                f"label per sample the task is classification."
            )
        ignored = array == _IGNORED_TOKEN
        tokens = whole_labels(np.where(ignored, 0, array), what)
        tokens[ignored] = _IGNORED_TOKEN
        return tokens

    def inputs(self, given: ArrayLike) -> Inputs:
        """Return token ids as int64."""
        return whole_labels(given, "tokens")

    def outputs(self, inputs: Inputs, targets: Targets) -> int:
        """Return the size of the vocabulary: one more than the largest token."""
        return min(MAX_CLASSES, int(max(inputs.max(initial=0), targets.max(initial=0))) + 1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy over the tokens of every sample, 0 if it has none."""
        counts = (targets != _IGNORED_TOKEN).sum(1)
        return _cross_entropies(outputs, targets).sum(1) / counts.clamp(min=1)

    def predictions(self, outputs: NDArray[np.float32]) -> Targets:
        """Return the token with the largest logit at every place."""
        tokens: Ints = outputs.argmax(axis=2)
        return tokens

    def no_targets(self, shape: tuple[int, ...]) -> Targets:
        """Return the targets of no sequences of the given length."""
        return np.zeros((0, *shape), dtype=np.int64)


NEXT_TOKEN = _NextToken()
