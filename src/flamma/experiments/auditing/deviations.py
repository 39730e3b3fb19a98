"""Deviations that an audit tries: a behaviour, its options, and a name for both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flamma.clients.behaviours import BEHAVIOURS, read_assignments
from flamma.errors import ConfigError
from flamma.experiments.config import Config
from flamma.names import check_folder_name, unknown
from flamma.options import parse_value
from flamma.types import Terms

BEST = "best"
"""The cost report that would have paid most in the games of the honest run."""

MOST_ALLOWED = "most"
"""As many claimed epochs as the strategy accepts."""


@dataclass(frozen=True)
class Deviation:
    """One way not to play along.

    Attributes
    ----------
    name : str
        What tables and directories call it.
    behaviour : str
        A name of :data:`flamma.clients.behaviours.BEHAVIOURS`.
    options : mapping
        The options of the behaviour. For a cost-liar the factor :data:`BEST`, and for claimed
        epochs :data:`MOST_ALLOWED`, are replaced for each client and strategy.
    partners : int
        How many other clients take part; what it gains is what they gain together.
    """

    name: str
    behaviour: str
    options: Mapping[str, Any] = field(default_factory=dict)
    partners: int = 0

    @property
    def needs_best_report(self) -> bool:
        """Whether it depends on the games of the honest run."""
        return self.behaviour == "cost-liar" and self.options.get("factor") == BEST

    def group(self, client: int, clients: int) -> tuple[int, ...]:
        """Return the clients that deviate: the one that is audited and those next to it."""
        others = [*range(client + 1, clients), *range(client - 1, -1, -1)]
        return tuple(sorted((client, *others[: self.partners])))

    def applied(self, config: Config, clients: Sequence[int], factor: float | None) -> Config:
        """Return the configuration of a run in which only these clients deviate.

        ``factor`` is what the true cost is best multiplied with.
        """
        options = dict(self.options)
        if self.needs_best_report:
            options["factor"] = 1.0 if factor is None else factor
        if options.get("claimed") == MOST_ALLOWED:
            options["claimed"] = config.strategy.epoch_range(Terms(clients[0], 1))[1]
        table = {self.behaviour: {"clients": list(clients), **options}}
        return config.with_settings({"behaviours": table})


def _all(*deviations: Deviation) -> dict[str, Deviation]:
    return {deviation.name: deviation for deviation in deviations}


DEVIATIONS: Mapping[str, Deviation] = _all(
    Deviation("cost-x0.1", "cost-liar", {"factor": 0.1}),
    Deviation("cost-x0.5", "cost-liar", {"factor": 0.5}),
    Deviation("cost-x2", "cost-liar", {"factor": 2.0}),
    Deviation("cost-x10", "cost-liar", {"factor": 10.0}),
    Deviation("cost-best", "cost-liar", {"factor": BEST}),
    Deviation("imitate-x0.5", "imitator", {"factor": 0.5}),
    Deviation("imitate-x2", "imitator", {"factor": 2.0}),
    Deviation("free-ride", "free-rider", {"sends": "received"}),
    Deviation("free-ride-noise", "free-rider", {"sends": "noise"}),
    Deviation("free-ride-repeat", "free-rider", {"sends": "repeat"}),
    Deviation("one-epoch", "epoch-faker", {"done": 1, "claimed": "honest"}),
    Deviation("claim-most", "epoch-faker", {"done": "honest", "claimed": MOST_ALLOWED}),
    Deviation("half-data", "part-trainer", {"share": 0.5}),
    Deviation("samples-x10", "data-inflater", {"factor": 10.0}),
    Deviation("loss-x10", "loss-inflater", {"factor": 10.0}),
    Deviation("sybil", "sybil", partners=1),
    Deviation("drop", "dropper", {"rate": 0.5}),
)
"""What is tried by default: clients that look after themselves."""

ATTACKS: Mapping[str, Deviation] = _all(
    Deviation("sign-flip", "sign-flip"),
    Deviation("scaled-update", "scaled-update"),
    Deviation("label-flip", "label-flip"),
    Deviation("gaussian-noise", "gaussian-noise"),
)
"""What clients do that want to harm others, rather than to gain."""

GROUPS: Mapping[str, Sequence[Deviation]] = {
    "default": tuple(DEVIATIONS.values()),
    "attacks": tuple(ATTACKS.values()),
    "all": (*DEVIATIONS.values(), *ATTACKS.values()),
}


def choose_deviations(names: Iterable[str] | None = None) -> tuple[Deviation, ...]:
    """Return deviations by name: one of ours, a group of them, or a behaviour with its options.

    Raises
    ------
    ConfigError
        If there is no such deviation or behaviour, or an option of it cannot be used.

    Examples
    --------
    >>> [d.name for d in choose_deviations(["cost-best", "cost-liar:factor=3"])]
    ['cost-best', 'cost-liar-factor=3']
    """
    found: dict[str, Deviation] = {}
    for name in ["default"] if names is None else names:
        known = {**DEVIATIONS, **ATTACKS}
        chosen = GROUPS.get(name) or [known.get(name) or _of_behaviour(name)]
        found |= {deviation.name: deviation for deviation in chosen}
    if not found:
        raise ConfigError("an audit needs at least one deviation.")
    return tuple(found.values())


def _of_behaviour(text: str) -> Deviation:
    """Return the deviation that a text such as ``free-rider:sends=noise`` describes."""
    behaviour, *given = text.split(":")
    if behaviour not in BEHAVIOURS:
        names = [*GROUPS, *DEVIATIONS, *ATTACKS, *BEHAVIOURS]
        raise ConfigError(unknown("deviation", behaviour, dict.fromkeys(names)))
    options: dict[str, Any] = {}
    for entry in given:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise ConfigError(
                f"an option of a deviation is written as {behaviour}:OPTION=VALUE, not {entry!r}."
            )
        options[key] = parse_value(value)
    name = check_folder_name("-".join([behaviour, *given]), "a deviation")
    deviation = Deviation(name, behaviour, options, int(behaviour == "sybil"))
    if not deviation.needs_best_report and options.get("claimed") != MOST_ALLOWED:
        [read] = read_assignments({behaviour: {"clients": [0], **options}})
        BEHAVIOURS.bind(read.behaviour)()
    return deviation
