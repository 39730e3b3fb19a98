"""Small multiples: one picture per family, with the same two strategies in each to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flamma.experiments.families import family_name
from flamma.reports.comparing import ComparisonView
from flamma.strategies import FAMILIES

REFERENCES = ("fedavg", "flamma-plus")
"""The strategies that are drawn in every family's picture."""


@dataclass(frozen=True)
class Multiple:
    """What one of the small multiples shows: a family, and references beside it."""

    family: str
    members: Sequence[str]
    references: Sequence[str]

    def suffixed(self, name: str) -> str:
        """Return the name of a chart, with the family if there is one."""
        return f"{name}-{self.family}" if self.family else name

    def titled(self, title: str) -> str:
        """Return the title of a chart, after the family if there is one."""
        if not self.family:
            return title
        return f"{family_name(self.family)}: {title[:1].lower()}{title[1:]}"


def multiples(view: ComparisonView) -> list[Multiple]:
    """Return one for every family; of few strategies one for all of them."""
    if not view.families:
        return [Multiple("", view.strategies, ())]
    return [
        Multiple(family, members, [n for n in _references(view) if n not in members])
        for family, members in view.families.items()
    ]


def family_title(family: str) -> str:
    """Return how a family is headed."""
    return f"{family_name(family)}: {FAMILIES[family]}"


def _references(view: ComparisonView) -> list[str]:
    return [name for name in REFERENCES if name in view.strategies]
