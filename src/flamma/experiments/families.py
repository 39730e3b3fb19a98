"""The strategies of a comparison by family: many are easier to read in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flamma.errors import ConfigError
from flamma.experiments.suite import variants
from flamma.strategies import FAMILIES, family_of
from flamma.toml import parse_toml

if TYPE_CHECKING:
    from flamma.experiments.table import Comparison

MOST_UNGROUPED = 12
"""Tables and pictures of more strategies are grouped by family."""


def families_compared(
    comparison: Comparison, behind: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """Return the strategies of a comparison by family, in the order in which families are listed.

    There are no families where there are few strategies, or all are of the same one. A variant
    is of the family of the strategy behind it, as ``behind`` or the comparison's suite tells.
    """
    names = list(dict.fromkeys(row.strategy for row in comparison.rows))
    if len(names) <= MOST_UNGROUPED:
        return {}
    named = _variants_of(comparison.suite) | dict(behind or {})
    of = {name: family_of(named.get(name, name)) for name in names}
    found = {family: [name for name in names if of[name] == family] for family in FAMILIES}
    found = {family: members for family, members in found.items() if members}
    return found if len(found) > 1 else {}


def family_name(family: str) -> str:
    """Return the name of a family as a heading has it."""
    return "FLamma" if family == "flamma" else family.capitalize()


def _variants_of(suite: str) -> dict[str, str]:
    """Return the strategies behind the variants of a suite as a table has it, which may be bad."""
    try:
        overrides = parse_toml(suite, "the suite").get("overrides")
    except ConfigError:
        return {}
    return variants(overrides) if isinstance(overrides, Mapping) else {}
