"""Trains several clients at once, one in each lane of the processor's vector registers.

Clients of a federation train the same small net on different data. A vector register holds
eight numbers (sixteen with AVX-512), so eight clients are put side by side: every operation on a
number of the net becomes one on eight numbers, one of each client, whatever the layers' sizes.
A client's result has the same bits in every lane and beside any other clients.

This needs compiled kernels, which are optional: :func:`available` tells whether they are there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flamma.training.lanes.library import available as available
from flamma.training.lanes.library import why_not as why_not
from flamma.training.lanes.trainer import LanesTrainer as LanesTrainer

if TYPE_CHECKING:
    from flamma.training.lanes.plan import plan_of as plan_of


def __getattr__(name: str) -> Any:
    if name == "plan_of":  # imports torch, which is not needed with a ready plan
        return import_module("flamma.training.lanes.plan").plan_of
    raise AttributeError(f"module 'flamma.training.lanes' has no attribute {name!r}")
