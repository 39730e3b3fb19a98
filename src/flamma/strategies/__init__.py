"""Federated algorithms: one file each, one line here each; others register by entry point."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from flamma.errors import ConfigError
from flamma.names import unknown
from flamma.strategies.base import Strategy as Strategy

STRATEGIES = {
    "fedavg": "flamma.strategies.fedavg:FedAvg",
    "fedprox": "flamma.strategies.fedprox:FedProx",
    "qffl": "flamma.strategies.qffl:QFFL",
    "incentive": "flamma.strategies.incentive:Incentive",
    "flamma": "flamma.strategies.flamma:Flamma",
    "flamma-plus": "flamma.strategies.flamma_plus:FlammaPlus",
}
"""Name to ``module:class``; the class is imported when it is asked for."""

GROUP = "flamma.strategies"


def strategy_names() -> list[str]:
    """Return the names of all strategies, ours first."""
    return [*STRATEGIES, *(e.name for e in entry_points(group=GROUP) if e.name not in STRATEGIES)]


def strategy_class(name: str) -> type[Strategy]:
    """Return the strategy of this name, or say which there are."""
    if name in STRATEGIES:
        module, _, attribute = STRATEGIES[name].partition(":")
        found = getattr(import_module(module), attribute)
    else:
        for entry in entry_points(group=GROUP, name=name):
            found = entry.load()
            break
        else:
            raise ConfigError(unknown("strategy", name, strategy_names()))
    assert issubclass(found, Strategy)
    return found  # type: ignore[no-any-return]


def strategy_lines() -> dict[str, str]:
    """Return every strategy's name with one line on it."""
    return {name: strategy_class(name).summary for name in strategy_names()}
