"""Keyed random streams: the only source of randomness.

A stream depends on what it is for, not on when or where it is drawn, so results do not depend on
the number of processes, the order of clients, or an interruption.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple, Self

import numpy as np

__all__ = ["StreamKey", "stream"]


class StreamKey(NamedTuple):
    """The key of a stream, for code that can draw from it without making a generator.

    Its words are those of :class:`numpy.random.SeedSequence`, which seeds
    :class:`numpy.random.Philox`.
    """

    seed: int
    purpose: int
    round: int
    client: int

    @classmethod
    def of(cls, seed: int, purpose: str, round: int = 0, client: int = 0) -> Self:
        """Return the key of one purpose, round and client."""
        return cls(seed, zlib.crc32(purpose.encode()), round, client)

    @property
    def is_short(self) -> bool:
        """Whether every word fits into 32 bits."""
        return max(self) < 2**32 and min(self) >= 0

    def generator(self) -> np.random.Generator:
        """Return the stream from its start."""
        # Small numbers are the same key as an array, which is quicker to read.
        entropy = np.array(self, dtype=np.uint32) if self.is_short else tuple(self)
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


def stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """Return the random stream of one purpose, round and client.

    Examples
    --------
    >>> first = stream(7, "select", round=3).random()
    >>> first == stream(7, "select", round=3).random() != stream(7, "select", round=4).random()
    True
    """
    return StreamKey.of(seed, purpose, round, client).generator()
