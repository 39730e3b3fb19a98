"""Trains clients in the lanes of the processor's vector registers.

A client's mini-batch is dealt out over eight lanes, so that every operation on a number of the net
becomes one on eight numbers, one of each part, whatever the layers' sizes. A register of AVX-512
holds the lanes of two clients, two registers of SSE2 or NEON those of one. A client's result has
the same bits in every lane, beside any other clients and on every processor.

This needs compiled kernels, which are optional: see :func:`available`.
"""

from __future__ import annotations

from flamma.training.lanes.library import available, instruction_sets, unavailable_reason
from flamma.training.lanes.trainer import LanesTrainer

__all__ = ["LanesTrainer", "available", "instruction_sets", "unavailable_reason"]
