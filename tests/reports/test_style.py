"""One colour per strategy: fixed, seen on the page, and told apart by every reader."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from colours import contrast, linear
from flamma.reports.pictures import _line_style
from flamma.reports.style import _STRATEGY_LOOKS, DASHES, SERIES, SHAPES, looks_of
from flamma.strategies import RETIRED, STRATEGIES

PAPER = {"light": "#FFFFFF", "dark": "#1B1F25"}
PAPERS_SIX = ("fedavg", "fedprox", "qffl", "incentive", "flamma", "flamma-plus")

# What readers without red, green or blue cones see: Machado, Oliveira and Fernandes (2009).
VISIONS = {
    "full": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


def oklab(rgb):
    """Ottosson's perceptual space, in which distances are about as large as they look."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    opponents = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return opponents @ np.cbrt(cones @ rgb)


def difference(one, other, vision):
    seen = [oklab(np.clip(VISIONS[vision] @ linear(c), 0, 1)) for c in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def test_every_built_in_strategy_has_a_look_of_its_own():
    assert {*_STRATEGY_LOOKS} == {*STRATEGIES, *RETIRED}
    assert len({look.light for look in _STRATEGY_LOOKS.values()}) == len(_STRATEGY_LOOKS)
    assert len({look.dark for look in _STRATEGY_LOOKS.values()}) == len(_STRATEGY_LOOKS)
    assert len(DASHES) == len(SHAPES) == len({*DASHES}) == len({*SHAPES})


@pytest.mark.parametrize("theme", PAPER)
def test_lines_stand_out_from_the_page(theme):
    for look in (*SERIES, *_STRATEGY_LOOKS.values()):
        assert contrast(getattr(look, theme), PAPER[theme]) >= 3, look


@pytest.mark.parametrize("theme", PAPER)
@pytest.mark.parametrize("vision", VISIONS)
def test_two_with_the_same_dash_differ_in_colour_for_every_reader(theme, vision):
    for one, other in combinations(_STRATEGY_LOOKS, 2):
        looks = _STRATEGY_LOOKS[one], _STRATEGY_LOOKS[other]
        if looks[0].dash == looks[1].dash:
            colours = [getattr(look, theme) for look in looks]
            assert difference(*colours, vision) > 0.07, (one, other)


def test_those_of_the_default_comparison_differ_in_dash_too():
    assert len({_STRATEGY_LOOKS[name].dash for name in PAPERS_SIX}) == len(PAPERS_SIX)


def test_a_look_does_not_depend_on_the_company():
    alone, beside = looks_of(["mine"]), looks_of(["mine", "flamma", "oort"])
    assert beside["mine"] == alone["mine"]
    assert beside["flamma"] == looks_of(["flamma", "fedavg"])["flamma"] == _STRATEGY_LOOKS["flamma"]


def test_strategies_of_others_are_told_apart():
    names = [f"variant-{k}" for k in range(40)]
    found = looks_of([*names, *_STRATEGY_LOOKS])
    assert len({*found.values()}) == 40 + len(_STRATEGY_LOOKS)
    more = looks_of([f"variant-{k}" for k in range(200)])  # more than there are looks
    assert len(more) == 200


def test_pictures_have_the_dashes_in_widths_of_the_line():
    style = _line_style(_STRATEGY_LOOKS["fedavg"], 1.5)
    assert style == {"color": "#1A1D21", "linestyle": (0, (3.5, 1.5)), "linewidth": 1.5}
    assert _line_style(_STRATEGY_LOOKS["flamma"], 0.9)["linestyle"] == "-"
