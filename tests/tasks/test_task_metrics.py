"""Metrics of a client's predictions, each against a few lines that compute it client by client."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flamma.errors import ConfigError, FlammaError
from flamma.tasks import PLAIN_MEASURES, TASKS, _custom_metric, measures_for
from flamma.tasks.next_token import _IGNORED_TOKEN
from flamma.tasks.supervised import (
    _AUC,
    _area_under_curve,
    _balanced_accuracy,
    _explained_share,
    _margin_of_losses,
)
from flamma.types import ScoreKind

sizes = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def drawn(counts, seed, classes=3):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return rng, offsets, rng.integers(0, classes, offsets[-1])


def one_by_one(offsets, of):
    return [of(slice(a, b)) for a, b in pairwise(offsets)]


@given(sizes, st.integers(0, 99))
def test_balanced_accuracy_is_the_mean_recall_of_a_clients_classes(counts, seed):
    rng, offsets, labels = drawn(counts, seed)
    right = rng.random(labels.size) < 0.5

    def of(part):
        own = [right[part][labels[part] == k].mean() for k in np.unique(labels[part])]
        return np.mean(own) if own else math.nan

    found = _balanced_accuracy(right, labels, offsets)
    np.testing.assert_allclose(found, one_by_one(offsets, of), atol=1e-12)


@given(sizes, st.integers(0, 99))
def test_auc_is_the_share_of_pairs_in_the_right_order(counts, seed):
    rng, offsets, labels = drawn(counts, seed, classes=2)
    margins = rng.integers(0, 4, labels.size).astype(np.float32)  # with many ties

    def of(part):
        high, low = margins[part][labels[part] == 1], margins[part][labels[part] == 0]
        pairs = np.sign(high[:, None] - low[None, :]) / 2 + 0.5
        return pairs.mean() if pairs.size else math.nan

    found = _area_under_curve(margins, labels, offsets)
    np.testing.assert_allclose(found, one_by_one(offsets, of), atol=1e-12)


def test_auc_of_margins_that_are_not_numbers_is_the_worst():
    margins = np.array([math.nan, math.nan, 0.0], dtype=np.float32)
    assert _area_under_curve(margins, np.array([0, 1, 1]), np.array([0, 3])) == [0.0]


@given(sizes, st.integers(0, 99))
def test_r2_is_one_less_the_unexplained_share(counts, seed):
    rng, offsets, labels = drawn(counts, seed)
    targets, errors = labels / 10, rng.random(labels.size)

    def of(part):
        if np.unique(targets[part]).size < 2:
            return math.nan
        return 1 - errors[part].sum() / (targets[part].var() * targets[part].size)

    found = _explained_share(errors, targets, offsets)
    np.testing.assert_allclose(found, one_by_one(offsets, of), rtol=1e-9, atol=1e-9)


def test_equal_targets_have_no_r2_though_their_mean_is_rounded():
    targets = np.full(3, 0.1, dtype=np.float32)
    assert np.isnan(_explained_share(np.ones(3), targets, np.array([0, 3]))).all()


def test_r2_of_predictions_that_are_not_numbers_is_no_gap_in_the_table():
    measures = measures_for("regression")
    outputs, targets = torch.tensor([[math.nan], [1.0]]), torch.tensor([0.0, 1.0])
    marks = measures.metric.mark(outputs, targets, measures.losses(outputs, targets)).numpy()
    assert measures.score(marks, targets.numpy()) == -math.inf


def test_token_accuracy_and_loss_leave_out_what_is_not_predicted():
    measures = measures_for("next-token")
    logits = torch.tensor([[[5.0, 0.0], [5.0, 0.0]], [[0.0, 5.0], [5.0, 0.0]]])
    targets = torch.tensor([[0, _IGNORED_TOKEN], [1, 1]])
    losses = measures.losses(logits, targets)
    sure, wrong = math.log1p(math.exp(-5)), math.log1p(math.exp(5))
    np.testing.assert_allclose(losses, [sure, (sure + wrong) / 2], rtol=1e-6)
    marks = measures.metric.mark(logits, targets, losses).numpy()
    assert measures.score(marks, targets.numpy()) == pytest.approx(100 * 2 / 3)


@given(sizes, st.integers(0, 99))
def test_the_losses_of_two_classes_order_samples_as_their_margins_do(counts, seed):
    rng, offsets, labels = drawn(counts, seed, classes=2)
    margins = rng.integers(-8, 9, labels.size).astype(np.float32)
    own = torch.tensor(np.where(labels == 1, margins, -margins))
    losses = torch.nn.functional.softplus(-own).numpy()
    np.testing.assert_allclose(_margin_of_losses(losses, labels), margins, atol=2e-3)
    # Equal margins of both classes are rounded apart, so that these are not compared.
    apart = margins + np.where(labels == 1, 0.5, 0.0)
    own = torch.tensor(np.where(labels == 1, apart, -apart))
    found = _margin_of_losses(torch.nn.functional.softplus(-own).numpy(), labels)
    np.testing.assert_array_equal(
        _area_under_curve(found.round(2), labels, offsets),
        _area_under_curve(apart, labels, offsets),
    )


def test_losses_that_are_not_numbers_or_infinite_are_the_worst_margins():
    losses, labels = np.array([math.nan, math.inf, 0.0], np.float32), np.array([1, 0, 1])
    np.testing.assert_array_equal(_margin_of_losses(losses, labels), [math.nan, math.inf, math.inf])


def test_perplexity_is_of_tokens_and_loss_of_samples():
    logits = torch.tensor([[[5.0, 0.0], [5.0, 0.0]], [[0.0, 5.0], [5.0, 0.0]]])
    targets = torch.tensor([[0, _IGNORED_TOKEN], [1, 1]])
    sure, wrong = math.log1p(math.exp(-5)), math.log1p(math.exp(5))
    expected = {
        "perplexity": math.exp((2 * sure + wrong) / 3),
        "loss": (sure + (sure + wrong) / 2) / 2,
    }
    for name, value in expected.items():
        measures = measures_for("next-token", name)
        marks = measures.metric.mark(logits, targets, measures.losses(logits, targets)).numpy()
        assert measures.score(marks, targets.numpy()) == pytest.approx(value, rel=1e-6)
        assert measures.score_kind == ScoreKind(name, lower_is_better=True)
        broken = torch.full_like(logits, math.nan)
        marks = measures.metric.mark(broken, targets, measures.losses(broken, targets)).numpy()
        assert measures.score(marks, targets.numpy()) == math.inf


@pytest.mark.parametrize(
    ("score", "possible"), [(0.0, True), (250.0, True), (math.inf, True), (-1, False)]
)
def test_a_loss_is_any_number_from_0(score, possible):
    assert measures_for("regression", "loss").metric.could_be(score) is possible
    assert not measures_for("regression", "loss").metric.could_be(math.nan)


def test_lanes_are_told_why_they_cannot_be_used():
    assert PLAIN_MEASURES.unsupported_reason() == ""
    assert measures_for("classification", "balanced-accuracy").unsupported_reason() == ""
    assert measures_for("classification", "auc").unsupported_reason() == ""
    assert measures_for("classification", "loss").unsupported_reason() == ""
    marked = replace(PLAIN_MEASURES, metric=replace(_AUC, from_losses=None))
    assert "not enough for AUC" in marked.unsupported_reason()
    assert "the loss of regression" in measures_for("regression").unsupported_reason()
    assert "of your own" in measures_for("classification", loss=lambda o, t: o).unsupported_reason()


def test_a_metric_of_another_task_is_refused_and_the_nearest_named():
    with pytest.raises(ConfigError, match="metric of classification 'acuracy': did you mean acc"):
        TASKS["classification"].metric("acuracy")
    with pytest.raises(ConfigError, match="unknown metric of regression 'auc'"):
        measures_for("regression", "auc")


def test_a_loss_of_ones_own_is_per_sample():
    outputs, targets = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    cross_entropy = torch.nn.functional.cross_entropy
    with pytest.raises(FlammaError, match=r"shape \(3,\), not a mean"):
        measures_for("classification", loss=cross_entropy).losses(outputs, targets)
    with pytest.raises(FlammaError, match="not float"):
        measures_for("classification", loss=lambda o, t: 1.0).losses(outputs, targets)


def test_a_metric_of_ones_own_is_a_number_of_each_client():
    metric = _custom_metric(lambda outputs, targets: (outputs[:, 0] * targets).mean())
    marks, targets = np.array([[1.0], [2.0], [3.0]]), np.array([1, 1, 2])
    found = metric.score(marks, targets, np.array([0, 2, 2, 3]))
    np.testing.assert_array_equal(found, [1.5, math.nan, 6.0])
    with pytest.raises(FlammaError, match="one number per client, not a list"):
        _custom_metric(lambda outputs, targets: [1]).score(marks, targets, np.array([0, 3]))


def test_a_metric_of_ones_own_is_called_after_its_function():
    def macro_f1(outputs, targets):
        return 0.0

    assert _custom_metric(macro_f1).title == "macro f1"
    assert _custom_metric(lambda outputs, targets: 0.0).title == "own metric"
