"""Small multiples: one picture per family, with the same two strategies in each to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flamma.experiments.families import family_name
from flamma.reports.comparing import ComparisonView
from flamma.strategies import FAMILIES

REFERENCES = {"fedavg": 15, "flamma-plus": 4}
"""The strategies that are drawn in every family's picture, and their series: dashed in grey and
in black."""

MEMBER_SERIES = (0, 1, 2, 3, 5, 6)
"""The series of the others: all colours but those two."""

COLOURS_IN_TURN = 8
"""Of series; from there on colours come again, with other dashes and shapes."""


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


def series_of(view: ComparisonView, strategy: str) -> int:
    """Return the series of a strategy, which decides its colour and dash in all pictures.

    Of many strategies those of one family differ; those of different families may be alike.
    """
    if not view.families:
        return view.strategies.index(strategy)
    if strategy in REFERENCES:
        return REFERENCES[strategy]
    others = [n for n in view.families[view.family(strategy)] if n not in REFERENCES]
    turn, place = divmod(others.index(strategy), len(MEMBER_SERIES))
    return COLOURS_IN_TURN * turn + MEMBER_SERIES[place]


def family_title(family: str) -> str:
    """Return how a family is headed."""
    return f"{family_name(family)}: {FAMILIES[family]}"


def _references(view: ComparisonView) -> list[str]:
    return [name for name in REFERENCES if name in view.strategies]
