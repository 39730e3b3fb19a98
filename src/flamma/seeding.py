"""Keyed random streams: the only source of randomness.

A stream depends on what it is for, not on when or where it is drawn, so results do not depend on
the number of processes, the order of clients, or an interruption.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:  # noqa: A002
    """Return the random stream of one purpose, round and client.

    Examples
    --------
    >>> first = stream(7, "select", round=3).random()
    >>> first == stream(7, "select", round=3).random() != stream(7, "select", round=4).random()
    True
    """
    key = (seed, zlib.crc32(purpose.encode()), round, client)
    # Small numbers are the same key as an array, which is quicker to read.
    entropy = np.array(key, dtype=np.uint32) if max(key) < 2**32 and min(key) >= 0 else key
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
