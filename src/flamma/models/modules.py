"""The modules of the models: a residual block, a recurrent net and a transformer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

Norm = Callable[[int], nn.Module]
"""Makes the normalisation layer for a number of channels."""


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            norm(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm(outputs),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), norm(outputs)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the ReLU of the sum of both paths."""
        summed: Tensor = self.convolutions(x) + self.shortcut(x)
        return summed.relu_()


# Modules that predict a token at every place of a sequence.


class Recurrent(nn.Module):
    """An embedding, gated recurrent units, and a linear layer over the tokens."""

    def __init__(self, tokens: int, size: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, size)
        self.unit = nn.GRU(size, hidden, layers, batch_first=True)
        self.tokens = nn.Linear(hidden, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of shape (samples, length, tokens)."""
        states, _ = self.unit(self.embedding(x))
        logits: Tensor = self.tokens(states)
        return logits


class Transformer(nn.Module):
    """Embeddings of tokens and places, blocks of attention, and a linear layer over the tokens."""

    def __init__(self, length: int, tokens: int, size: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, size)
        self.places = nn.Parameter(torch.zeros(length, size))
        self.blocks = nn.Sequential(*(_CausalBlock(size, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(size)
        self.tokens = nn.Linear(size, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of shape (samples, length, tokens)."""
        states = self.embedding(x) + self.places[: x.shape[1]]
        logits: Tensor = self.tokens(self.norm(self.blocks(states)))
        return logits


class _CausalBlock(nn.Module):
    """Attention to places up to the current one, then a perceptron, each with a skip connection.

    Both get what is normalised before them, which needs no warm-up (Xiong et al., On layer
    normalization in the transformer architecture, ICML 2020).
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(size)
        self.attention = nn.Linear(size, 3 * size)
        self.mixed = nn.Linear(size, size)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the states of all places."""
        parts = self.attention(self.norm(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        states: Tensor = x + self.mixed(seen.transpose(1, 2).flatten(2))
        changes: Tensor = self.perceptron(states)
        return states + changes
