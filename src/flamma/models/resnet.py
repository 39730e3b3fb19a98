"""ResNet-18 with a 3x3 stem, for images of 32x32 pixels or so.

References
----------
He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016.
Hsieh, Phanishayee, Mutlu, Gibbons. The non-IID data quagmire of decentralized machine learning.
ICML 2020: batch norm suffers from skewed labels, group norm does not.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Literal

from flamma.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

RESNET_SMALLEST_SIDE = 16
"""Pixels that leave 2x2 after three halvings, so that batch norm has several values per channel."""


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
        Multiplies the usual 64, 128, 256 and 512 channels; the products are rounded to whole
        groups.
    norm : {"group", "batch"}
        The normalisation; ``batch`` has running means and variances, which are aggregated like
        weights.
    groups : int
        Groups of channels in a group norm.
    stem_stride : int
        Stride of the first convolution; 2 reduces the work of all later layers to a quarter.

    Examples
    --------
    >>> sum(p.numel() for p in resnet18((3, 32, 32), 10).parameters())
    11173962
    """
    from torch import nn

    from flamma.models.resnet_block import Block, Norm

    if stem_stride < 1:
        raise ConfigError(f"stem_stride must be at least 1, not {stem_stride}.")
    smallest = RESNET_SMALLEST_SIDE * stem_stride
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ConfigError(
            f"resnet18 needs images (channels, height, width) of at least {smallest}x{smallest}, "
            f"but the samples are {shape}; scale them up or use mlp."
        )
    if not width > 0:
        raise ConfigError(f"width must be positive, not {width:g}.")
    if groups < 1:
        raise ConfigError(f"groups must be at least 1, not {groups}.")
    make: Norm = nn.BatchNorm2d if norm == "batch" else partial(nn.GroupNorm, groups)
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
    """Return the nearest multiple of ``groups`` that is at least 8."""
    return groups * max(math.ceil(8 / groups), round(wanted / groups))
