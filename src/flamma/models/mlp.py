"""A multi-layer perceptron on the flattened sample."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from flamma.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


def mlp(shape: tuple[int, ...], classes: int, *, hidden: tuple[int, ...] = (64,)) -> nn.Sequential:
    """Return a perceptron with ReLU and hidden layers of the given sizes.

    ``hidden=(200, 200)`` is the 2NN of McMahan et al., Communication-efficient learning of deep
    networks from decentralized data, AISTATS 2017.

    Parameters
    ----------
    shape, classes
        Of one sample, and the number of labels.
    hidden : tuple of int
        The sizes of the hidden layers.

    Examples
    --------
    >>> sum(p.numel() for p in mlp((1, 28, 28), 10, hidden=(200, 200)).parameters())
    199210
    """
    from torch import nn

    if any(size < 1 for size in hidden):
        raise ConfigError(f"hidden must be positive numbers like [200, 200], not {list(hidden)}.")
    sizes = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))
