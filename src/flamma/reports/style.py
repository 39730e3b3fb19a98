"""One colour per strategy, the same in the page, in pictures and in the documentation.

A family has a hue, and its strategies differ in lightness and within the hue's neighbourhood. Two
strategies with the same dash can be told apart in both themes, also by readers who see no red, no
green or no blue; the others are told apart by dash and marker too (a test measures it).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """How a line or a marker is drawn.

    Attributes
    ----------
    light, dark : str
        Its colour on a light and on a dark page.
    dash : int
        Which of :data:`DASHES` its line has, and which of :data:`SHAPES` its marker.
    """

    light: str
    dark: str
    dash: int


DASHES: tuple[tuple[int, ...], ...] = (
    *((), (7, 3), (7, 3, 2, 3), (2, 3), (12, 2), (12, 3, 3, 3), (4, 3), (1, 3)),
    *((9, 2, 2, 2, 2, 2), (5, 2, 5, 5)),
)
"""Pixels of ink and of gap, in turn, of a line two pixels wide; the first has no gaps."""

SHAPES = (
    *("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down"),
    *("pentagon", "hourglass"),
)
"""Markers, by the names that plotly has for them."""

SERIES = (
    Look("#0072B2", "#56A8DE", 0),
    Look("#C98300", "#F0BA3F", 1),
    Look("#009E73", "#2FC79B", 2),
    Look("#B7568F", "#E29AC4", 3),
    Look("#1A1D21", "#F4F5F6", 4),
    Look("#D55E00", "#F0884A", 5),
    Look("#3A9BDC", "#8FD0F7", 6),
    Look("#7F7F7F", "#9AA2AB", 7),
)
"""The looks of what is not a strategy, such as the clients' mean: after Okabe and Ito (2008)."""

_STRATEGY_LOOKS = {
    # reference: black and grey
    "fedavg": Look("#1A1D21", "#F4F5F6", 1),
    "central": Look("#7A7A7A", "#9AA2AB", 7),
    # flamma: blue
    "flamma": Look("#0072B2", "#7BC4FE", 0),
    "flamma-plus": Look("#332288", "#7F7DEA", 5),
    "flamma-memory": Look("#5566AA", "#A9B6F2", 3),
    "flamma-honest": Look("#2794FB", "#C7E1FF", 6),
    "flamma-adaptive": Look("#025884", "#66ACDD", 2),
    # fairness: purple
    "qffl": Look("#AA3377", "#FE8FC7", 3),
    "afl": Look("#64006D", "#C167C9", 0),
    "term": Look("#C168D5", "#F5CFFE", 7),
    "fedmgda+": Look("#6F3BB2", "#BD98FD", 8),
    "fedfv": Look("#892289", "#E17EDF", 6),
    "propfair": Look("#A251C0", "#E7B0FD", 9),
    "gifair": Look("#83054A", "#E46A9D", 4),
    "adafed": Look("#D357A7", "#FDC6E5", 5),
    # optimisation: green
    "fedprox": Look("#009E73", "#75EEBF", 2),
    "fedavg-decay": Look("#215605", "#74AC61", 1),
    "mifa": Look("#147F0A", "#73D36A", 7),
    "fednova": Look("#253A06", "#76905C", 7),
    "scaffold": Look("#749C0B", "#BEEB6F", 9),
    "feddyn": Look("#136842", "#70BC91", 9),
    "fedavgm": Look("#4F8D11", "#9CDF6E", 5),
    "fedadam": Look("#49620E", "#98B667", 6),
    "fedyogi": Look("#02423A", "#4D9B8E", 8),
    "fedvarp": Look("#314502", "#829A5C", 2),
    # asynchronous: teal
    "fedbuff": Look("#049595", "#B4FDFD", 8),
    # selection: brown to gold
    "power-of-choice": Look("#8D6A00", "#E0BA66", 1),
    "oort": Look("#BC871B", "#FED79A", 6),
    "fairfedcs": Look("#694500", "#C0985F", 3),
    "fedfair3": Look("#9F7A0B", "#F0C96C", 0),
    "adafl": Look("#7E5403", "#D4A563", 4),
    # incentive: red to orange
    "incentive": Look("#D55E00", "#F65311", 4),
    "maxfl": Look("#AC1635", "#FD868C", 0),
    "cgsv": Look("#C8384B", "#FEA9AB", 8),
    "cffl": Look("#7F0322", "#E26A72", 5),
    "pricing": Look("#562B02", "#B07F5A", 9),
    "contract": Look("#B15901", "#FDAF7A", 2),
    "fli": Look("#EC5C55", "#FED2CD", 3),
    # personal: cyan
    "ditto": Look("#007C91", "#6FCEE4", 1),
    "local": Look("#219BBB", "#9CE6FE", 4),
}
"""The look of every built-in strategy."""


def looks_of(strategies: Iterable[str]) -> dict[str, Look]:
    """Return the look of each strategy; no two of them are alike as long as there are looks left.

    A built-in strategy has its look whatever it stands beside. A variant, or another package's
    strategy, gets one by its name: the same in every comparison, unless a strategy before it in
    the alphabet has taken it there.
    """
    names = sorted(set(strategies))
    found = {name: _STRATEGY_LOOKS[name] for name in names if name in _STRATEGY_LOOKS}
    for name in names:
        if name not in found:
            found[name] = _free_look(name, {*found.values()})
    return found


def _free_look(name: str, taken: set[Look]) -> Look:
    """Return the look that a name's digest points at, or the next one that is free."""
    looks = [
        Look(own.light, own.dark, (own.dash + turn) % len(DASHES))
        for turn in range(len(DASHES))
        for own in SERIES[:-1]  # not grey, which the pages use for what is beside the point
    ]
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % len(looks)
    in_turn = (*looks[first:], *looks[:first])
    return next((look for look in in_turn if look not in taken), looks[first])
