"""ResNet-18 with a 3x3 stem, for images of 32x32 pixels or so.

References
----------
He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016.
Hsieh, Phanishayee, Mutlu, Gibbons. The non-IID data quagmire of decentralized machine learning.
ICML 2020: batch norm suffers from skewed labels, group norm does not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from flamma.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

RESNET_SMALLEST_SIDE = 16
"""Pixels that leave 2x2 after three halvings, so batch norm has more than one value a channel."""


def resnet18(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: float = 1.0,
    norm: Literal["group", "batch"] = "group",
    groups: int = 8,
    stem_stride: int = 1,
) -> nn.Sequential:
    """Return ResNet-18.

    Parameters
    ----------
    shape, classes
        (channels, height, width) of an image, and the number of labels.
    width : float
        What the usual 64, 128, 256 and 512 channels are multiplied with; the products are
        rounded to whole groups.
    norm : {"group", "batch"}
        ``batch`` has running means and variances, which then are aggregated like weights.
    groups : int
        Groups of channels in a group norm.
    stem_stride : int
        Stride of the first convolution; 2 makes everything behind it a quarter of the work.

    Examples
    --------
    >>> sum(p.numel() for p in resnet18((3, 32, 32), 10).parameters())
    11173962
    """
    from torch import nn

    from flamma.models.resnet_block import Block, Norm

    if not (isinstance(stem_stride, int) and stem_stride >= 1):
        raise ConfigError(f"stem_stride must be a positive whole number, not {stem_stride!r}.")
    smallest = RESNET_SMALLEST_SIDE * stem_stride
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ConfigError(
            f"resnet18 needs images (channels, height, width) of at least {smallest}x{smallest}, "
            f"but the samples are {shape}; scale them up or use mlp."
        )
    if not (isinstance(width, int | float) and math.isfinite(width) and width > 0):
        raise ConfigError(f"width must be a positive number, not {width!r}.")
    if not (isinstance(groups, int) and groups >= 1):
        raise ConfigError(f"groups must be a positive whole number, not {groups!r}.")
    make: Norm
    if norm == "group":

        def make(channels: int) -> nn.Module:
            return nn.GroupNorm(groups, channels)

    elif norm == "batch":
        make = nn.BatchNorm2d
    else:
        raise ConfigError(f"norm must be 'group' or 'batch', not {norm!r}.")
    stages = [_channels(usual * width, groups) for usual in (64, 128, 256, 512)]
    layers: list[nn.Module] = [
        nn.Conv2d(shape[0], stages[0], 3, stride=stem_stride, padding=1, bias=False),
        make(stages[0]),
        nn.ReLU(inplace=True),
    ]
    inputs = stages[0]
    for number, outputs in enumerate(stages):
        layers.append(Block(inputs, outputs, stride=1 if number == 0 else 2, norm=make))
        layers.append(Block(outputs, outputs, stride=1, norm=make))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _channels(wanted: float, groups: int) -> int:
    """Return the nearest number of channels that is at least 8 and makes whole groups."""
    return groups * max(math.ceil(8 / groups), round(wanted / groups))
