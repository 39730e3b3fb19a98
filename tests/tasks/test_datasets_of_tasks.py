"""Named datasets of other tasks: splits that need labels are refused, tokens are not scaled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import flamma
from flamma.data.build import build_federation
from flamma.data.datasets import DATASETS
from flamma.data.records import Dataset, DatasetEntry
from flamma.errors import DataError
from flamma.experiments.comparison import Comparison, Row, parse_table, scored_alike
from flamma.reports.reading import pareto
from flamma.types import ScoreKind


def load_prices(folder, samples):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)).astype(np.float32)
    y = x[:, 0].astype(np.float64)  # becomes float32
    groups = np.arange(60) // 10
    return Dataset(
        "prices", x[:60], y[:60], x[60:], y[60:], ("price",), groups=groups, task="regression"
    )


def load_text(folder, samples):
    x = np.arange(450).reshape(90, 5) % 7
    tokens = tuple("abcdefg")
    return Dataset("text", x[:60], x[:60], x[60:], x[60:], tokens, mean=(9.0,), task="next-token")


@pytest.fixture(autouse=True)
def datasets():
    entry = DatasetEntry("prices", (3,), ("price",), 60, 30, load_prices, task="regression")
    text = replace(entry, load=load_text, class_names=tuple("abcdefg"), task="next-token")
    DATASETS.add("prices", entry)
    DATASETS.add("text", text)
    yield
    DATASETS.discard("prices")
    DATASETS.discard("text")


@pytest.mark.parametrize("split", ["shards", "classes", "dirichlet"])
def test_splits_by_label_are_refused_for_numbers(split):
    with pytest.raises(DataError, match=f"split {split} deals samples by their class.* use iid"):
        build_federation("prices", split, 4, 0, validation_samples=0)


@pytest.mark.parametrize(("split", "clients"), [("iid", 4), ("groups", 6)])
def test_numbers_can_be_split_without_labels(split, clients):
    data = build_federation("prices", split, clients, 0, validation_samples=0)
    assert (data.task, data.classes, data.train_y.dtype) == ("regression", 1, np.float32)
    np.testing.assert_array_equal(data.train_y, data.train_x[:, 0])  # rows stay together
    np.testing.assert_array_equal(data.held_y, data.held_x[:, 0])
    assert len(data.train_y) + len(data.held_y) == 60
    assert np.diff(data.held_offsets).min() >= 1
    assert data.class_counts().shape == (clients, 0)


def test_token_ids_are_not_standardised():
    data = build_federation("text", "iid", 4, 0, validation_samples=8)
    assert data.train_x.dtype == data.train_y.dtype == data.test_x.dtype == np.int64
    assert data.train_y.shape[1] == 5
    np.testing.assert_array_equal(data.train_x, data.train_y)
    assert (len(data.validation_y), data.classes) == (8, 7)


def test_a_token_beyond_the_vocabulary_is_refused():
    x = np.full((4, 5), 9)
    with pytest.raises(DataError, match="has 7 classes, but training labels from 9 to 9"):
        Dataset("text", x, x, x, x, tuple("abcdefg"), task="next-token")
    ignored = np.full((4, 5), -100)
    assert Dataset("text", x, ignored, x, ignored, tuple("abc"), task="next-token").classes == 3


def test_a_run_shows_and_reports_what_it_is_scored_by(tmp_path, capsys):
    from flamma.cli import main
    from flamma.reports.document import write_report

    lines = []
    config = {
        "rounds": 2,
        "per_round": 2,
        "data": {"dataset": "prices", "split": "groups", "clients": 6, "validation_samples": 0},
        "model": "logistic",
        "strategy": "fedavg",
    }
    run = flamma.run(config, out=tmp_path / "run", on_round=lines.append)
    assert [record.evaluation.scored_by for record in lines] == ["R²", "R²"]
    assert main(["show", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "R², %" in shown
    assert "test R², %" in shown
    assert "accuracy" not in shown
    page = write_report(run.path).read_text(encoding="utf-8")
    assert '"title":"R² of every client"' in page
    assert '"accuracy, %"' not in page


@pytest.mark.parametrize(
    ("metric", "title", "told"),
    [
        ("balanced-accuracy", "Balanced accuracy", "is the mean over clients in percent, "),
        ("loss", "Loss", "is the mean over clients, variance that of the clients'; "),
    ],
)
def test_a_comparison_is_headed_by_what_clients_are_scored_by(tmp_path, metric, title, told):
    from flamma.experiments.comparison import as_markdown, compare
    from flamma.reports.document import write_report

    suite = {
        "datasets": ["digits"],
        "splits": ["iid"],
        "strategies": ["fedavg", "qffl"],
        "seeds": 2,
        "run": {
            "rounds": 2,
            "per_round": 2,
            "data": {"clients": 4, "train_samples": 80},
            "model": "logistic",
            "evaluation": {"metric": metric},
        },
    }
    comparison = compare(suite, out=tmp_path, processes=1)
    assert {row.score_kind for row in comparison.rows} == {
        ScoreKind(title.lower(), lower_is_better=metric == "loss")
    }
    assert f"| {title} (iid) |" in as_markdown(comparison)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert f"{title} {told}" in page
    assert '"accuracy, %"' not in page
    assert '"loss, %"' not in page
    again = parse_table((tmp_path / "table.json").read_text())
    assert [row.score_kind for row in again.rows] == [row.score_kind for row in comparison.rows]


def scored_rows(kind, levels):
    """Return rows of strategies by a metric of three seeds."""
    return [
        Row(
            "digits",
            "iid",
            strategy,
            (0, 1, 2),
            {"accuracy": level, "accuracy_variance": 1.0},
            {"accuracy": 0.1, "accuracy_variance": 0.0},
            {"accuracy": [level - 0.1, level, level + 0.1], "accuracy_variance": [1.0, 1.0, 1.0]},
            scored_by=kind.title,
            less_is_better=kind.lower_is_better,
        )
        for strategy, level in levels.items()
    ]


def test_the_best_of_a_table_is_the_one_with_the_least_loss():
    levels = {"fedavg": 2.0, "qffl": 1.0, "fedprox": 3.0}
    for kind, best in (
        (ScoreKind("loss", lower_is_better=True), "qffl"),
        (ScoreKind("R²"), "fedprox"),
    ):
        rows = scored_rows(kind, levels)
        comparison = Comparison("c", rows, [])
        assert comparison.best("digits", "iid", "accuracy") == (best,)
        assert [row.strategy for row in pareto(rows)] == [best]


def test_rows_that_are_scored_differently_have_just_a_score():
    rows = scored_rows(ScoreKind("AUC"), {"fedavg": 2.0}) + scored_rows(ScoreKind(), {"qffl": 1.0})
    assert scored_alike(rows) == ScoreKind("score")
    assert scored_alike(rows[:1]) == ScoreKind("AUC")
    assert scored_alike([]) == ScoreKind()
