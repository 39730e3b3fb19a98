"""Statistics over settings, against scipy and examples computed by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flamma.experiments.comparison import (
    Comparison,
    Row,
    as_markdown,
    statistics_note,
    statistics_of,
    statistics_table,
    write_tables,
)
from flamma.experiments.statistics import (
    AcrossSettings,
    across_settings,
    bootstrap_interval,
    critical_difference,
    friedman,
    holm,
    mean_ranks,
    relative_to,
    sign_test,
    signed_rank_test,
)

SEEDS = (0, 1, 2)


def row(setting: str, strategy: str, accuracy: list[float], variance: list[float]) -> Row:
    values = {"accuracy": accuracy, "accuracy_variance": variance}
    mean = {name: float(np.mean(own)) for name, own in values.items()}
    std = {name: float(np.std(own, ddof=1)) for name, own in values.items()}
    return Row(setting, "iid", strategy, SEEDS[: len(accuracy)], mean, std, values)


@pytest.fixture
def rows() -> list[Row]:
    """FedAvg, one that always gains about 2 points, and one that gains in one setting of six."""
    found = []
    for place in range(6):
        base = np.array([50.0, 60.0, 70.0]) + place
        ahead = base + np.array([1.9, 2.0, 2.1]) + 0.1 * place
        mixed = base + (np.array([0.9, 1.0, 1.1]) if place == 0 else np.array([-5.0, 0.0, 4.0]))
        found.append(row(f"s{place}", "fedavg", base.tolist(), [100.0, 110.0, 120.0]))
        found.append(row(f"s{place}", "flamma", ahead.tolist(), [49.5, 54.5, 59.5]))
        found.append(row(f"s{place}", "qffl", mixed.tolist(), [100.0, 110.0, 120.0]))
        found.append(row(f"s{place}", "central", [99.0] * 3, [1.0] * 3))
    return found


def test_wins_differences_and_ranks_are_those_computed_by_hand(rows):
    found = across_settings(rows, "accuracy")
    assert found is not None
    # In the first setting 2, 1, 0 points; in the others 2 and more, 0, -1/3.
    assert list(found.ranks) == ["flamma", "fedavg", "qffl"]
    assert found.ranks["flamma"] == 1.0
    assert found.ranks["qffl"] == pytest.approx((2 + 5 * 3) / 6)
    of = {own.strategy: own for own in found.against}
    assert set(of) == {"flamma", "qffl"}
    assert (of["flamma"].wins, of["flamma"].ties, of["flamma"].losses) == (6, 0, 0)
    assert (of["qffl"].wins, of["qffl"].ties, of["qffl"].losses) == (1, 5, 0)
    assert of["flamma"].difference == pytest.approx(2.25)
    assert of["qffl"].difference == pytest.approx((1 - 5 / 3) / 6)
    assert of["flamma"].sign_p == pytest.approx(2 / 2**6)
    assert of["flamma"].low < 2.25 < of["flamma"].high
    assert of["qffl"].low < 0 < of["qffl"].high


def test_a_lower_variance_wins(rows):
    found = across_settings(rows, "accuracy_variance")
    assert found is not None
    of = {own.strategy: own for own in found.against}
    assert (of["flamma"].wins, of["flamma"].better) == (6, 6)
    assert of["flamma"].difference == pytest.approx(-55.5)
    assert (of["qffl"].ties, of["qffl"].wilcoxon_p, of["qffl"].sign_p) == (6, 1.0, 1.0)
    assert found.ranks == {"flamma": 1.0, "fedavg": 2.5, "qffl": 2.5}


def test_the_tests_are_those_of_scipy():
    rng = np.random.default_rng(4)
    values = {name: rng.normal(size=9) for name in "abcd"}
    first, second = values["a"], values["b"]
    assert signed_rank_test(first - second) == stats.wilcoxon(first, second).pvalue
    wins = int(np.count_nonzero(first > second))
    assert sign_test(first - second) == stats.binomtest(wins, 9).pvalue
    assert friedman(values) == stats.friedmanchisquare(*values.values()).pvalue
    by_hand = stats.rankdata(-np.stack(list(values.values())), axis=0).mean(axis=1)
    assert mean_ranks(values, 1) == pytest.approx(dict(zip("abcd", by_hand, strict=True)))


def test_the_critical_difference_is_that_of_demsars_tables():
    # Demšar 2006, Table 5(a): q of 0.05 is 2.343 for three, 2.728 for five, 3.164 for ten.
    for strategies, quantile in ((3, 2.343), (5, 2.728), (10, 3.164)):
        expected = quantile * math.sqrt(strategies * (strategies + 1) / (6 * 14))
        assert critical_difference(strategies, 14) == pytest.approx(expected, abs=1e-3)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holms_correction_is_that_of_its_definition(p_values):
    corrected = holm(p_values)
    count = len(p_values)
    for own, found in zip(p_values, corrected, strict=True):
        smaller = sorted(p_values)[: sorted(p_values).index(own) + 1]
        expected = max((count - rank) * p for rank, p in enumerate(smaller))
        assert found == pytest.approx(min(1.0, expected)) or p_values.count(own) > 1
        assert own <= found <= 1


def test_the_bootstrap_draws_settings_and_then_seeds():
    same = [np.full(3, 4.0)] * 5
    assert bootstrap_interval(same) == (4.0, 4.0)
    # Settings that differ by themselves leave an interval that seeds alone do not.
    settings = [np.full(3, float(k)) for k in range(6)]
    low, high = bootstrap_interval(settings)
    assert 0.8 < low < 1.6
    assert 3.4 < high < 4.2
    # One seed that differs moves a setting's mean, too.
    low, high = bootstrap_interval([np.array([0.0, 6.0])] * 6)
    assert 0 < low < 2 < 4 < high < 6
    assert bootstrap_interval(settings) == bootstrap_interval(settings)


def test_groups_that_cannot_be_told_apart_are_the_largest():
    ranks = {"a": 1.0, "b": 1.8, "c": 2.9, "d": 4.5}
    found = AcrossSettings("accuracy", (), ranks, 0.0, 1.2, "a", ())
    assert found.cliques() == [("a", "b"), ("b", "c")]


def test_too_few_settings_or_an_absent_strategy_tell_nothing(rows):
    few = [own for own in rows if own.dataset in ("s0", "s1", "s2", "s3")]
    assert across_settings(few, "accuracy") is None
    assert "Mean rank" not in as_markdown(Comparison("few", few, []))
    partly = [own for own in rows if (own.dataset, own.strategy) != ("s2", "qffl")]
    found = across_settings(partly, "accuracy")
    assert found is not None
    assert (list(found.ranks), found.left_out) == (["flamma", "fedavg"], ("qffl",))
    assert "left out: q-FFL" in statistics_note([found])
    alone = [own for own in rows if own.strategy != "fedavg"]
    found = across_settings(alone, "accuracy")
    assert found is not None
    assert found.against == ()
    assert statistics_table(found)[1] == ["Algorithm", "Mean rank"]


def test_tables_of_many_settings_have_the_statistics(rows, tmp_path):
    comparison = Comparison("many", rows, [])
    write_tables(comparison, tmp_path)
    table = json.loads((tmp_path / "table.json").read_text())
    [accuracy, variance] = table["across_settings"]
    assert (accuracy["metric"], variance["metric"]) == ("accuracy", "accuracy_variance")
    assert accuracy["against"][0]["strategy"] == "flamma"
    text = (tmp_path / "table.md").read_text()
    assert "| FLamma | 1.00 | 6-0-0 | +2.25 |" in text
    assert comparison.across_settings("accuracy") == statistics_of(rows)[0]


def test_the_frontier_is_relative_to_the_reference(rows):
    found = relative_to(rows)
    assert set(found) == {"fedavg", "flamma", "qffl"}
    gained, ratio = found["flamma"]["s0", "iid"]
    assert gained == pytest.approx(2.0)
    assert ratio == pytest.approx(-1.0)  # 55.5 / 111
    assert set(found["fedavg"].values()) == {(0.0, 0.0)}
