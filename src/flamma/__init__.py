"""FLamma: fair, incentive-compatible federated learning as a Stackelberg game.

The heavy parts load when they are first used, so ``import flamma`` costs next to nothing.

Examples
--------
>>> import flamma
>>> done = flamma.run(strategy="fedavg", model="logistic", rounds=2, clients=5)
>>> [record.round for record in done.history]
[1, 2]
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
    from flamma.experiments.config import Config as Config
    from flamma.experiments.findings import Audit as Audit
    from flamma.experiments.result import Run as Run
    from flamma.experiments.run import load as load
    from flamma.experiments.run import resume as resume
    from flamma.experiments.run import run as run
    from flamma.experiments.tune import tune as tune

__version__ = "0.3.0"

# torch's products then have the same bits wherever their arrays lie in memory. MKL reads it at its
# first product, in every process; whatever trains or scores has imported this package by then.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

__all__ = [
    "Audit",
    "BestCheckpoint",
    "Callback",
    "Comparison",
    "Config",
    "EarlyStopping",
    "FlammaError",
    "Run",
    "StopRun",
    "__version__",
    "audit",
    "compare",
    "load",
    "resume",
    "run",
    "tune",
]

_HOMES = {
    "Audit": "experiments.findings",
    "BestCheckpoint": "experiments.callbacks",
    "Callback": "experiments.callbacks",
    "Comparison": "experiments.comparison",
    "Config": "experiments.config",
    "EarlyStopping": "experiments.callbacks",
    "FederatedClassifier": "estimators",
    "FederatedRegressor": "estimators",
    "Run": "experiments.result",
    "StopRun": "experiments.callbacks",
    "audit": "experiments.audit",
    "compare": "experiments.comparison",
    "load": "experiments.run",
    "resume": "experiments.run",
    "run": "experiments.run",
    "tune": "experiments.tune",
}
"""The module of each name; the estimators are not in ``__all__``."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"flamma.{_HOMES[name]}"), name)
    return _renamed.renamed(__name__, stacklevel=3)(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES})
