"""Federated algorithms: one file each, one line here each; others register by entry point."""

from __future__ import annotations

from flamma.registry import Registry
from flamma.strategies.base import Strategy as Strategy

STRATEGIES: Registry[type[Strategy]] = Registry(
    "strategy",
    "flamma.strategies",
    {
        "fedavg": "flamma.strategies.fedavg:FedAvg",
        "fedavg-decay": "flamma.strategies.fedavg_decay:FedAvgDecay",
        "fedprox": "flamma.strategies.fedprox:FedProx",
        "qffl": "flamma.strategies.qffl:QFFL",
        "incentive": "flamma.strategies.incentive:Incentive",
        "mifa": "flamma.strategies.mifa:Mifa",
        "flamma": "flamma.strategies.flamma:Flamma",
        "flamma-plus": "flamma.strategies.flamma_plus:FlammaPlus",
        "flamma-adaptive": "flamma.strategies.flamma_adaptive:FlammaAdaptive",
        "central": "flamma.strategies.central:Central",
    },
)
"""All strategies by name."""
