"""The models: logistic regression, perceptrons, LeNet-5, ResNet-18, and models of tokens."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from flamma.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


def logistic(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return logistic regression on the flattened sample."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


# A multi-layer perceptron on the flattened sample.


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


# LeNet-5 for grey or colour images.
#
# LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition.
# Proceedings of the IEEE, 1998. With ReLU and max pooling, as federated learning uses it.

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


# ResNet-18 with a 3x3 stem, for images of 32x32 pixels or so.
#
# He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016. Hsieh, Phanishayee,
# Mutlu, Gibbons. The non-IID data quagmire of decentralized machine learning. ICML 2020: batch norm
# suffers from skewed labels, group norm does not.

_RESNET_SMALLEST_SIDE = 16
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

    from flamma.models.modules import Block, Norm

    if stem_stride < 1:
        raise ConfigError(f"stem_stride must be at least 1, not {stem_stride}.")
    smallest = _RESNET_SMALLEST_SIDE * stem_stride
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
    fewest = math.ceil(8 / groups)  # a stage has whole groups, and at least 8 channels
    stages = [groups * max(fewest, round(c * width / groups)) for c in (64, 128, 256, 512)]
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


# Models of token ids: embeddings with a perceptron, a recurrent network, a transformer.
#
# Cho et al. Learning phrase representations using RNN encoder-decoder for statistical machine
# translation. EMNLP 2014 (the gated recurrent unit). Vaswani et al. Attention is all you need.
# NeurIPS 2017 (the transformer).

_INITIAL_SPREAD = 0.1
"""The standard deviation of initial embeddings of categories: a rare one should say little."""


def embedding(
    shape: tuple[int, ...],
    classes: int,
    *,
    tokens: int = 10_000,
    size: int = 8,
    hidden: tuple[int, ...] = (32,),
) -> nn.Sequential:
    """Return a perceptron on the embeddings of a row of categories.

    Parameters
    ----------
    shape, classes
        Of one sample, and how many numbers are predicted.
    tokens : int
        How many different token ids there are in all columns.
    size : int
        Numbers that represent a token.
    hidden : tuple of int
        The sizes of the hidden layers.

    Examples
    --------
    >>> model = embedding((5,), 1, tokens=100, size=4, hidden=())
    >>> sum(p.numel() for p in model.parameters())  # 100 * 4, 5 * 4 + 1
    421
    """
    from torch import nn

    _check(shape, "embedding", tokens=tokens, size=size)
    rows = nn.Embedding(tokens, size)
    nn.init.normal_(rows.weight, std=_INITIAL_SPREAD)
    return nn.Sequential(rows, *mlp((*shape, size), classes, hidden=hidden))


def gru(
    shape: tuple[int, ...], classes: int, *, size: int = 32, hidden: int = 64, layers: int = 1
) -> nn.Module:
    """Return a gated recurrent unit that predicts a token at every place of a sequence.

    Parameters
    ----------
    shape, classes
        The length of a sequence, and how many tokens there are.
    size : int
        Numbers that stand for a token.
    hidden : int
        The size of the state.
    layers : int
        How many units are stacked.

    Examples
    --------
    >>> import torch
    >>> gru((7,), 5, size=3, hidden=4)(torch.zeros(2, 7, dtype=torch.int64)).shape
    torch.Size([2, 7, 5])
    """
    from flamma.models.modules import Recurrent

    _check(shape, "gru", size=size, hidden=hidden, layers=layers)
    return Recurrent(classes, size, hidden, layers)


def transformer(
    shape: tuple[int, ...],
    classes: int,
    *,
    size: int = 64,
    heads: int = 4,
    layers: int = 2,
) -> nn.Module:
    """Return a transformer that predicts a token at every place from those up to it.

    Parameters
    ----------
    shape, classes
        The length of a sequence, and how many tokens there are.
    size : int
        Numbers that stand for a token, a multiple of ``heads``.
    heads : int
        How many parts attention has.
    layers : int
        How many blocks there are.

    Examples
    --------
    >>> import torch
    >>> transformer((7,), 5, size=8, heads=2)(torch.zeros(2, 7, dtype=torch.int64)).shape
    torch.Size([2, 7, 5])
    """
    from flamma.models.modules import Transformer

    _check(shape, "transformer", size=size, heads=heads, layers=layers)
    if size % heads:
        raise ConfigError(f"size must be a multiple of heads, but {size} is not one of {heads}.")
    return Transformer(shape[0], classes, size, heads, layers)


def _check(shape: tuple[int, ...], model: str, **options: int) -> None:
    if len(shape) != 1:
        raise ConfigError(f"{model} needs rows of token ids, but the samples are {shape}.")
    for name, value in options.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}.")
