"""Federated algorithms: one file each, one line here each; others register by entry point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flamma.errors import ConfigError
from flamma.registry import Registry
from flamma.strategies.base import Strategy as Strategy

STRATEGIES: Registry[type[Strategy[Any]]] = Registry(
    "strategy",
    "flamma.strategies",
    {
        "fedavg": "flamma.strategies.fedavg:FedAvg",
        "fedavg-decay": "flamma.strategies.fedavg_decay:FedAvgDecay",
        "fedprox": "flamma.strategies.fedprox:FedProx",
        "qffl": "flamma.strategies.qffl:QFFL",
        "afl": "flamma.strategies.afl:Afl",
        "term": "flamma.strategies.term:Term",
        "fedmgda+": "flamma.strategies.fedmgda_plus:FedMgdaPlus",
        "fedfv": "flamma.strategies.fedfv:FedFV",
        "propfair": "flamma.strategies.propfair:PropFair",
        "gifair": "flamma.strategies.gifair:Gifair",
        "adafed": "flamma.strategies.adafed:AdaFed",
        "incentive": "flamma.strategies.incentive:Incentive",
        "mifa": "flamma.strategies.mifa:Mifa",
        "flamma": "flamma.strategies.flamma:Flamma",
        "flamma-plus": "flamma.strategies.flamma_plus:FlammaPlus",
        "flamma-honest": "flamma.strategies.flamma_honest:FlammaHonest",
        "flamma-adaptive": "flamma.strategies.flamma_adaptive:FlammaAdaptive",
        "central": "flamma.strategies.central:Central",
    },
)
"""All strategies by name."""


FAMILIES: Mapping[str, str] = {
    "reference": "what the others are compared with",
    "flamma": "the Stackelberg game",
    "fairness": "fairness by weights",
    "optimisation": "optimisation under skew",
    "selection": "who takes part",
    "incentive": "incentives and rewards",
    "personal": "a model for each client",
    "other": "from other packages",
}
"""The families of strategies, and what each is about."""


def in_family(family: str) -> list[str]:
    """Return the names of the strategies of a family, in the order of the registry."""
    return [name for name in STRATEGIES if STRATEGIES[name].family == family]


def label_of(name: str) -> str:
    """Return the label of a strategy; a variant of a suite is shown by its own name."""
    try:
        return STRATEGIES[name].label or name
    except ConfigError:
        return name


def competes(name: str) -> bool:
    """Return whether a strategy is compared with the others: all but a ceiling on pooled data."""
    try:
        return not STRATEGIES[name].pools_data
    except ConfigError:
        return True
