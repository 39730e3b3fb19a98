"""Models of token ids: embeddings with a perceptron, a recurrent network, a transformer.

References
----------
Cho et al. Learning phrase representations using RNN encoder-decoder for statistical machine
translation. EMNLP 2014 (the gated recurrent unit).
Vaswani et al. Attention is all you need. NeurIPS 2017 (the transformer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flamma.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

INITIAL_SPREAD = 0.1
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
        Numbers that stand for a token.
    hidden : tuple of int
        The sizes of the hidden layers.

    Examples
    --------
    >>> model = embedding((5,), 1, tokens=100, size=4, hidden=())
    >>> sum(p.numel() for p in model.parameters())  # 100 * 4, 5 * 4 + 1
    421
    """
    from torch import nn

    from flamma.models.mlp import mlp

    _check(shape, "embedding", tokens=tokens, size=size)
    rows = nn.Embedding(tokens, size)
    nn.init.normal_(rows.weight, std=INITIAL_SPREAD)
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
    from flamma.models.sequences import Recurrent

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
    from flamma.models.sequences import Transformer

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
