"""FLamma: fair, incentive-compatible federated learning as a Stackelberg game.

The heavy parts load when they are first used, so ``import flamma`` costs next to nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flamma import _renamed as _renamed
from flamma.errors import FlammaError as FlammaError

if TYPE_CHECKING:
    from flamma.estimators import FederatedClassifier as FederatedClassifier
    from flamma.estimators import FederatedRegressor as FederatedRegressor
    from flamma.experiments.audit import audit as audit
    from flamma.experiments.callbacks import BestCheckpoint as BestCheckpoint
    from flamma.experiments.callbacks import Callback as Callback
    from flamma.experiments.callbacks import EarlyStopping as EarlyStopping
    from flamma.experiments.callbacks import StopRun as StopRun
    from flamma.experiments.comparison import Comparison as Comparison
    from flamma.experiments.comparison import compare as compare
    from flamma.experiments.result import Run as Run
    from flamma.experiments.run import resume as resume
    from flamma.experiments.run import run as run
    from flamma.experiments.tune import tune as tune

__version__ = "0.3.0"

# torch's products then have the same bits wherever their arrays lie in memory. MKL reads it at its
# first product, in every process; whatever trains or scores has imported this package by then.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

_LATE = {
    "BestCheckpoint": "flamma.experiments.callbacks",
    "Callback": "flamma.experiments.callbacks",
    "EarlyStopping": "flamma.experiments.callbacks",
    "FederatedClassifier": "flamma.estimators",
    "FederatedRegressor": "flamma.estimators",
    "Comparison": "flamma.experiments.comparison",
    "Run": "flamma.experiments.result",
    "StopRun": "flamma.experiments.callbacks",
    "audit": "flamma.experiments.audit",
    "compare": "flamma.experiments.comparison",
    "resume": "flamma.experiments.run",
    "run": "flamma.experiments.run",
    "tune": "flamma.experiments.tune",
}

_OPTIONAL = {"FederatedClassifier", "FederatedRegressor"}
"""What needs an optional package, so that ``from flamma import *`` leaves it out."""

__all__ = ["FlammaError", "__version__", *sorted(_LATE.keys() - _OPTIONAL)]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    return _renamed.renamed(__name__, stacklevel=3)(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_OPTIONAL})
