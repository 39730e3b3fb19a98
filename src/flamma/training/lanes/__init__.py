"""Trains clients in the lanes of the processor's vector registers.

A client's mini-batch is dealt out over eight lanes, so that every operation on a number of the net
becomes one on eight numbers, one of each part, whatever the layers' sizes. A register of AVX-512
holds the lanes of two clients, two registers of SSE2 or NEON those of one. A client's result has
the same bits in every lane, beside any other clients and on every processor.

This needs compiled kernels, which are optional: :func:`available` tells whether they are there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flamma.training.lanes.library import available as available
from flamma.training.lanes.library import instruction_sets as instruction_sets
from flamma.training.lanes.library import why_not as why_not
from flamma.training.lanes.trainer import LanesTrainer as LanesTrainer

if TYPE_CHECKING:
    from flamma.training.lanes.plan import plan_of as plan_of


def __getattr__(name: str) -> Any:
    if name == "plan_of":  # imports torch, which is not needed with a ready plan
        return import_module("flamma.training.lanes.plan").plan_of
    raise AttributeError(f"module 'flamma.training.lanes' has no attribute {name!r}")
