"""Experiments: configurations, runs that can be resumed, and comparisons of many runs.

The names of this package load when they are first used; those that most programs need are in
``flamma`` itself.

Examples
--------
>>> from flamma.experiments import make_config
>>> config = make_config({"rounds": 30, "strategy": "flamma-plus"})
>>> config.rounds, config.strategy.name
(30, 'flamma-plus')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flamma.experiments.callbacks import CALLBACKS as CALLBACKS
    from flamma.experiments.callbacks import BestCheckpoint as BestCheckpoint
    from flamma.experiments.callbacks import Callback as Callback
    from flamma.experiments.callbacks import EarlyStopping as EarlyStopping
    from flamma.experiments.callbacks import RunStart as RunStart
    from flamma.experiments.callbacks import StopRun as StopRun
    from flamma.experiments.callbacks import best_round as best_round
    from flamma.experiments.comparison import Comparison as Comparison
    from flamma.experiments.comparison import compare as compare
    from flamma.experiments.config import Config as Config
    from flamma.experiments.config import make_config as make_config
    from flamma.experiments.result import Run as Run
    from flamma.experiments.run import resume as resume
    from flamma.experiments.suite import Suite as Suite
    from flamma.experiments.suite import read_suite as read_suite

__all__ = [
    "CALLBACKS",
    "BestCheckpoint",
    "Callback",
    "Comparison",
    "Config",
    "EarlyStopping",
    "Run",
    "RunStart",
    "StopRun",
    "Suite",
    "best_round",
    "compare",
    "make_config",
    "read_suite",
    "resume",
]

_HOMES = {
    "CALLBACKS": "callbacks",
    "BestCheckpoint": "callbacks",
    "Callback": "callbacks",
    "Comparison": "comparison",
    "Config": "config",
    "EarlyStopping": "callbacks",
    "Run": "result",
    "RunStart": "callbacks",
    "StopRun": "callbacks",
    "Suite": "suite",
    "best_round": "callbacks",
    "compare": "comparison",
    "make_config": "config",
    "read_suite": "suite",
    "resume": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
