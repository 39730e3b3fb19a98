"""Several clients at once, one in each lane of the processor's vector registers.

Clients of a federation train the same small net on different data. A vector register holds
eight numbers (sixteen with AVX-512), so eight clients are put side by side: every operation on a
number of the net becomes one on eight numbers, one of each client, whatever the layers' sizes.
A client's result is the same bits whatever lane it has and whoever its neighbours are.

This needs a compiled part, which is optional: :func:`available` says whether it is here.
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
    if name == "plan_of":  # it needs torch, which whoever has a plan already can do without
        return import_module("flamma.training.lanes.plan").plan_of
    raise AttributeError(f"module 'flamma.training.lanes' has no attribute {name!r}")
