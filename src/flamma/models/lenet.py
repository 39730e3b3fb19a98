"""LeNet-5 for grey or colour images.

References
----------
LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition.
Proceedings of the IEEE, 1998. With ReLU and max pooling, as federated learning uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flamma.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

LENET_SMALLEST_SIDE = 12
"""Pixels of the smallest image that leaves something for the second pooling."""


def lenet5(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return LeNet-5 for images of the given (channels, height, width).

    Examples
    --------
    >>> sum(p.numel() for p in lenet5((1, 28, 28), 10).parameters())
    61706
    """
    from torch import nn

    if len(shape) != 3 or min(shape[1:]) < LENET_SMALLEST_SIDE:
        raise ConfigError(
            f"lenet5 needs images (channels, height, width) of at least {LENET_SMALLEST_SIDE}x"
            f"{LENET_SMALLEST_SIDE}, but the samples are {shape}; scale them up or use mlp."
        )
    channels, height, width = shape
    features = 16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
