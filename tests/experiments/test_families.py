"""Comparisons of many strategies, in tables grouped by family."""

from __future__ import annotations

import pytest

from flamma.experiments.comparison import Comparison, Row, as_markdown, layout
from flamma.experiments.result import text_table
from flamma.experiments.suite import MOST_UNGROUPED, families_compared
from flamma.strategies import label_of

MANY = ("qffl", "flamma", "fedavg", "afl", "term", "fedfv", "gifair", "fedprox", "mifa", "oort")
MANY += ("flamma-plus", "propfair", "ditto")


def row(strategy, split="shards", **more):
    mean = {"accuracy": 90.0, "accuracy_variance": 50.0, "worst_10": 70.0, "epochs_total": 450.0}
    mean |= {"bytes_up": 16.04e6, "bytes_down": 2e4, "seconds": 3.2} | more
    values = {name: [value] for name, value in mean.items()}
    return Row("digits", split, strategy, (0,), mean, dict.fromkeys(mean, 0.0), values)


def comparison(strategies, suite="", **more):
    return Comparison("made", [row(name, **more) for name in strategies], [], suite=suite)


def lines_of(table):
    [(caption, header, lines)] = layout(table, (("", ""), ("", "")))
    return caption, header, lines


def test_few_strategies_and_those_of_one_family_are_not_grouped():
    assert len(MANY) == MOST_UNGROUPED + 1
    assert families_compared(comparison(MANY))
    assert families_compared(comparison(MANY[:-1])) == {}
    variants = [f"variant-{k}" for k in range(20)]
    assert families_compared(comparison(variants)) == {}


def test_families_come_in_the_order_of_the_list_and_keep_that_of_their_members():
    found = families_compared(comparison(MANY))
    assert found == {
        "reference": ["fedavg"],
        "flamma": ["flamma", "flamma-plus"],
        "fairness": ["qffl", "afl", "term", "fedfv", "gifair", "propfair"],
        "optimisation": ["fedprox", "mifa"],
        "selection": ["oort"],
        "personal": ["ditto"],
    }


SUITE = """
[overrides.late]
strategy = { name = "flamma", decay_start = 0.6 }
[overrides."digits/shards/sure"]
strategy.name = "oort"
"""


@pytest.mark.parametrize("damage", [False, True])
def test_a_variant_is_of_the_family_of_the_strategy_behind_it(damage):
    suite = SUITE.replace("]", "", 1) if damage else SUITE
    found = families_compared(comparison([*MANY, "late", "sure"], suite))
    assert found.get("other", []) == (["late", "sure"] if damage else [])
    assert ("late" in found["flamma"], "sure" in found["selection"]) == (not damage, not damage)
    told = families_compared(comparison([*MANY, "late", "sure"], suite), {"late": "fedprox"})
    assert "late" in told["optimisation"]


def test_the_table_of_many_has_headings_and_what_the_runs_took():
    caption, header, lines = lines_of(comparison(MANY))
    assert caption == "digits, shards"
    assert header == [
        *("Algorithm", "Accuracy", "Variance", "Worst 10%", "Local epochs", "MB up", "MB down"),
        "Seconds",
    ]
    assert [line[0] for line in lines[:6]] == [
        *("Reference", "FedAvg", "FLamma", "FLamma", "FLamma-plus", "Fairness"),
    ]
    assert [len(line) for line in lines[:3]] == [1, len(header), 1]
    assert lines[1][-4:] == ["450", "16.0", "0.02", "3.2"]
    assert len(lines) == len(MANY) + 6


def test_the_table_of_few_is_as_it_was():
    caption, header, lines = lines_of(comparison(MANY[:12]))
    assert caption == "digits"
    assert header == ["Algorithm", "Accuracy (shards)", "Variance (shards)", "Local epochs"]
    assert [line[0] for line in lines] == [label_of(name) for name in MANY[:12]]


def test_the_share_better_off_is_told_where_somebody_trains_alone():
    _, header, lines = lines_of(comparison(MANY, better_off=75.0))
    assert header[4] == "Share better off"
    assert lines[1][4] == "75.00"


def test_two_splits_are_side_by_side_and_what_they_took_is_their_mean():
    rows = [row(name) for name in MANY] + [row(name, "iid", epochs_total=50.0) for name in MANY]
    caption, header, lines = lines_of(Comparison("made", rows, []))
    assert caption == "digits"
    assert header[1:7:3] == ["Accuracy (shards)", "Accuracy (iid)"]
    assert lines[1][header.index("Local epochs")] == "250"


def test_families_in_the_terminal_and_in_markdown():
    table = comparison(MANY)
    _, header, lines = lines_of(table)
    shown = text_table(header, lines).splitlines()
    assert shown[2:4] == ["Reference", shown[3]]
    assert shown[3].startswith("  FedAvg   ")
    assert len({len(line) for line in shown if line.startswith("  ")}) == 1
    markdown = as_markdown(table).splitlines()
    assert "| **Reference** |  |  |  |  |  |  |  |" in markdown
    assert all(line.count("|") == 9 for line in markdown if line.startswith("|"))
