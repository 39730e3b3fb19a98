"""Federated algorithms: one file each, one line here each; others register by entry point.

A strategy is a pure function of its state: it makes an offer, and a step from what came back.

Examples
--------
>>> import numpy as np
>>> from flamma.seeding import stream
>>> from flamma.strategies import STRATEGIES
>>> from flamma.types import Plan, Population, Update
>>> fedavg = STRATEGIES["fedavg"](plan=Plan(rounds=10, per_round=2))
>>> state = fedavg.init(np.zeros(3, np.float32), Population(np.array([10, 30]), None, 3))
>>> offer = fedavg.offer(state, np.arange(2), stream(0, "select", 1))
>>> one = np.ones(3, np.float32)
>>> updates = [Update(0, 0 * one, samples=10, epochs=5), Update(1, one, samples=30, epochs=5)]
>>> state, record = fedavg.aggregate(state, offer, updates)
>>> state.params, record.outcome.epochs_total
(array([0.75, 0.75, 0.75], dtype=float32), 10)
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from flamma.errors import ConfigError
from flamma.io import unknown
from flamma.registry import Registry
from flamma.strategies.base import (
    KeepingState,
    Needs,
    Offer,
    Round,
    ServerSide,
    State,
    Strategy,
    Verdict,
    data_weights,
    uniform_choice,
    weighted_choice,
)

__all__ = [
    "FAMILIES",
    "RETIRED",
    "STRATEGIES",
    "KeepingState",
    "Needs",
    "Offer",
    "Round",
    "ServerSide",
    "State",
    "Strategy",
    "Verdict",
    "competes",
    "data_weights",
    "family_of",
    "in_family",
    "label_of",
    "strategies_named",
    "uniform_choice",
    "unknown_strategy",
    "weighted_choice",
]

RETIRED: Mapping[str, str] = dict.fromkeys(
    ("flamma-memory", "flamma-adaptive"),
    "use mifa, which also remembers every client's last update, or flamma-plus",
)
"""Strategies that only published tables and old runs have, and what to use in their place."""

STRATEGIES: Registry[type[Strategy[Any]]] = Registry(
    "strategy",
    "flamma.strategies",
    {
        "fedavg": "flamma.strategies.fedavg:FedAvg",
        "fedavg-decay": "flamma.strategies.fedavg:FedAvgDecay",
        "fedprox": "flamma.strategies.fedavg:FedProx",
        "qffl": "flamma.strategies.loss_weights:QFFL",
        "afl": "flamma.strategies.loss_weights:Afl",
        "term": "flamma.strategies.loss_weights:Term",
        "fedmgda+": "flamma.strategies.multi_objective:FedMgdaPlus",
        "fedfv": "flamma.strategies.multi_objective:FedFV",
        "propfair": "flamma.strategies.loss_weights:PropFair",
        "gifair": "flamma.strategies.loss_weights:Gifair",
        "adafed": "flamma.strategies.multi_objective:AdaFed",
        "incentive": "flamma.strategies.rewards:Incentive",
        "maxfl": "flamma.strategies.loss_weights:MaxFL",
        "power-of-choice": "flamma.strategies.selection:PowerOfChoice",
        "oort": "flamma.strategies.selection:Oort",
        "fairfedcs": "flamma.strategies.selection:FairFedCS",
        "fedfair3": "flamma.strategies.selection:FedFair3",
        "adafl": "flamma.strategies.selection:AdaFL",
        "cgsv": "flamma.strategies.rewards:CGSV",
        "cffl": "flamma.strategies.rewards:CFFL",
        "pricing": "flamma.strategies.markets:Pricing",
        "contract": "flamma.strategies.markets:Contract",
        "fli": "flamma.strategies.markets:FLI",
        "mifa": "flamma.strategies.memory:Mifa",
        "fednova": "flamma.strategies.server_optimisers:FedNova",
        "scaffold": "flamma.strategies.drift:Scaffold",
        "feddyn": "flamma.strategies.drift:FedDyn",
        "fedavgm": "flamma.strategies.server_optimisers:FedAvgM",
        "fedadam": "flamma.strategies.server_optimisers:FedAdam",
        "fedyogi": "flamma.strategies.server_optimisers:FedYogi",
        "fedvarp": "flamma.strategies.memory:FedVarp",
        "fedbuff": "flamma.strategies.asynchronous:FedBuff",
        "ditto": "flamma.strategies.personal:Ditto",
        "local": "flamma.strategies.personal:Local",
        "flamma": "flamma.strategies.flamma:Flamma",
        "flamma-plus": "flamma.strategies.flamma_plus:FlammaPlus",
        "flamma-honest": "flamma.strategies.flamma_honest:FlammaHonest",
        "central": "flamma.strategies.fedavg:Central",
    },
    retired=RETIRED,
)
"""All strategies by name."""


FAMILIES: Mapping[str, str] = {
    "reference": "what the others are compared with",
    "flamma": "the Stackelberg game",
    "fairness": "fairness by weights",
    "optimisation": "optimisation under skew",
    "asynchronous": "without waiting for the slowest",
    "selection": "who takes part",
    "incentive": "incentives and rewards",
    "personal": "a model for each client",
    "other": "from other packages",
}
"""The families of strategies, and what each is about."""


_FAMILY_PREFIX = "family:"
"""Before a name that is to be a family's, where a strategy has the same name."""


def family_of(name: str) -> str:
    """Return the family of a strategy; one that says none, or cannot be loaded, is of ``other``."""
    try:
        family = getattr(STRATEGIES[name], "family", "")
    except ConfigError:
        return "flamma" if name in RETIRED else "other"
    return family if family in FAMILIES else "other"


def in_family(family: str) -> list[str]:
    """Return the names of the strategies of a family, in the order of the registry."""
    return [name for name in STRATEGIES if family_of(name) == family]


def strategies_named(names: Sequence[str], labels: Container[str] = ()) -> tuple[str, ...]:
    """Return names of strategies, with the members of a family in place of its name.

    A strategy, or one of the ``labels`` that a suite gives its variants, wins over a family of the
    same name; ``family:NAME`` is always the family. A member that is named itself, or is in two
    families' places, is there once. Names that are neither stay as they are.

    Examples
    --------
    >>> strategies_named(["qffl", "selection"])[:3]
    ('qffl', 'power-of-choice', 'oort')
    >>> strategies_named(["incentive"])
    ('incentive',)
    """
    known = {*STRATEGIES}
    found: list[str] = []
    for name in names:
        family = name.removeprefix(_FAMILY_PREFIX)
        is_family = family in FAMILIES and name not in known and name not in labels
        members = in_family(family) if is_family else []
        if members:
            found += [m for m in members if m not in found and m not in names]
        else:
            found.append(name)
    return tuple(found)


def unknown_strategy(name: str) -> str:
    """Return the sentence that says a name is neither a strategy's nor a family's."""
    if name in RETIRED:
        return STRATEGIES.unknown(name)
    families = {family: f"the family {family}" for family in FAMILIES}
    prefixed = {f"{_FAMILY_PREFIX}{family}": told for family, told in families.items()}
    return unknown("strategy", name, STRATEGIES, prefixed | families)


def label_of(name: str) -> str:
    """Return the label of a strategy; a variant of a suite is shown by its own name."""
    if name in RETIRED and name not in STRATEGIES:
        return f"{name.replace('flamma', 'FLamma')} (retired)"
    try:
        return STRATEGIES[name].label or name
    except ConfigError:
        return name


def competes(name: str) -> bool:
    """Return whether a strategy is compared with the others: all that are federated."""
    try:
        return not STRATEGIES[name].needs.pooled_data and STRATEGIES[name].needs.sends_models
    except ConfigError:
        return True
