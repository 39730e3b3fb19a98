"""FLamma: fair, incentive-compatible federated learning as a Stackelberg game.

The heavy parts load when they are first used, so ``import flamma`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flamma.errors import FlammaError as FlammaError

if TYPE_CHECKING:
    from flamma.data.federated import federated_from_arrays as federated_from_arrays
    from flamma.experiments.audit import audit as audit
    from flamma.experiments.compare import compare as compare
    from flamma.experiments.run import Run as Run
    from flamma.experiments.run import resume as resume
    from flamma.experiments.run import run as run

__version__ = "0.2.0"

_LATE = {
    "Run": "flamma.experiments.run",
    "audit": "flamma.experiments.audit",
    "compare": "flamma.experiments.compare",
    "federated_from_arrays": "flamma.data.federated",
    "resume": "flamma.experiments.run",
    "run": "flamma.experiments.run",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'flamma' has no attribute {name!r}")
