"""The share of clients better off than alone, wherever a comparison has a run of local."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from flamma.experiments.comparison import (
    as_markdown,
    compared,
    last_accuracies,
    layout,
    read_published,
    repetition,
)
from flamma.experiments.result import ScoreTable
from flamma.experiments.run import Run
from flamma.experiments.suite import Cell
from flamma.metrics import METRICS
from flamma.records import Evaluation, RoundRecord
from flamma.reports.comparison import comparison_document, main_table
from flamma.reports.reading import ComparisonView, read_comparison
from made_runs import made_comparison, made_config


def finished(strategy, accuracies, seed=0, split="iid", under=None, clients=None):
    """Return a run whose clients have these accuracies, a row for each round."""
    rows = np.array(accuracies, dtype=np.float64)
    records = [
        RoundRecord(number, (0,), (), {}, 1.0, (1,), None, 1, Evaluation({"accuracy": 50.0}))
        for number in range(1, len(rows) + 1)
    ]
    numbers = np.arange(rows.shape[1]) if clients is None else np.array(clients)
    scores = ScoreTable(numbers, dict(enumerate(rows, start=1)))
    config = made_config(strategy, data={"split": split})
    run = Run(Path("made"), config, records, {}, known_scores=scores)
    return Cell("mnist", split, under or strategy, seed, config), run


def test_by_hand():
    # The ten last rounds of eleven: the first one, in which the last client was better, is left
    # out. Client 0 is better off, 1 as good, 2 and 3 worse.
    alone = [[0, 0, 0, 0]] + [[50, 80, 90, 60]] * 10
    together = [[0, 0, 0, 100]] + [[60, 90, 89, 50], [50, 70, 90, 60]] * 5
    table = compared("made", [finished("local", alone), finished("fedavg", together)])
    assert table.row("mnist", "iid", "fedavg").values["better_off"] == [50.0]
    assert "better_off" not in table.row("mnist", "iid", "local").values


def test_every_seed_is_beside_that_of_the_same_seed_and_split():
    runs = [
        finished("local", [[50, 50]], seed=0),
        finished("local", [[90, 10]], seed=1),
        finished("local", [[99, 99]], seed=0, split="shards"),
        *(finished("fedavg", [[60, 60]], seed=seed) for seed in (0, 1)),
        finished("fedavg", [[60, 60]], seed=0, split="shards"),
        finished("fedprox", [[60, 60]], seed=0, split="classes"),
    ]
    table = compared("made", runs)
    assert table.row("mnist", "iid", "fedavg").values["better_off"] == [100.0, 50.0]
    assert table.row("mnist", "shards", "fedavg").values["better_off"] == [0.0]
    assert "better_off" not in table.row("mnist", "classes", "fedprox").values


def test_a_seed_without_a_run_alone_leaves_the_row_without():
    runs = [finished("local", [[50]]), *(finished("fedavg", [[60]], seed=s) for s in (0, 1))]
    assert "better_off" not in compared("made", runs).row("mnist", "iid", "fedavg").values


def test_the_best_are_marked_as_in_other_columns():
    runs = [finished("local", [[50, 50, 50, 50]], seed=seed) for seed in range(3)]
    for seed in range(3):
        runs.append(finished("fedavg", [[60, 60, 60, 10]], seed=seed))
        runs.append(finished("ditto", [[60, 60, 60, 60]], seed=seed))
    table = compared("made", runs)
    assert table.best("mnist", "iid", "better_off") == ("ditto",)
    assert "**100.00 ± 0.00**" in as_markdown(table)


def test_a_variant_of_local_counts_as_alone():
    runs = [finished("local", [[50]], under="by-myself"), finished("fedavg", [[60]])]
    table = compared("made", runs)
    assert table.row("mnist", "iid", "fedavg").values["better_off"] == [100.0]
    assert "better_off" not in table.row("mnist", "iid", "by-myself").values


def test_only_clients_with_scores_in_both_runs_count():
    nan = float("nan")
    runs = [
        finished("local", [[50, nan, 50]], clients=[1, 4, 7]),
        finished("fedavg", [[60, 60, 60, 40]], clients=[0, 1, 4, 7]),
    ]
    assert compared("made", runs).row("mnist", "iid", "fedavg").values["better_off"] == [50.0]
    strangers = [runs[0], finished("fedavg", [[60]], clients=[9])]
    assert "better_off" not in compared("made", strangers).row("mnist", "iid", "fedavg").values


def test_a_round_without_a_score_is_left_out_of_a_mean():
    _, run = finished("fedavg", [[60, float("nan")], [70, 80]])
    clients, means = last_accuracies(run)
    assert clients.tolist() == [0, 1]
    assert means.tolist() == [65.0, 80.0]


@pytest.fixture(scope="module")
def with_local(tmp_path_factory):
    path = tmp_path_factory.mktemp("with-local")
    return made_comparison(path, ("fedavg", "flamma", "local"), splits=("iid",), seeds=2)


def test_the_file_of_scores_is_read(with_local):
    by_client = {}
    for strategy in ("local", "fedavg"):
        run = with_local / f"runs/mnist/iid/{strategy}/seed-1"
        lines = list(csv.DictReader((run / "clients.csv").read_text().splitlines()))
        last = [line for line in lines if int(line["round"]) > 12 - 10]
        by_client[strategy] = {
            client: np.mean([float(x["accuracy"]) for x in last if int(x["client"]) == client])
            for client in range(8)
        }
    better = [by_client["fedavg"][k] >= by_client["local"][k] for k in range(8)]
    row = read_published(with_local / "table.json").row("mnist", "iid", "fedavg")
    assert row.values["better_off"][1] == pytest.approx(100 * np.mean(better))


def test_every_table_has_the_column(with_local):
    table = read_published(with_local / "table.json")
    [(_, header, lines)] = layout(table, (("", ""), ("", "")))
    assert header[3] == "Share better off (iid)"
    assert [line[3] == "-" for line in lines] == [False, False, True]
    assert "Share better off (iid)" in (with_local / "table.md").read_text()
    assert "Share better off: clients at least as accurate as alone" in as_markdown(table)
    rows = {
        r["strategy"]: r
        for r in csv.DictReader((with_local / "table.csv").read_text().splitlines())
    }
    assert float(rows["fedavg"]["better_off_mean"]) == table.rows[0].mean["better_off"]
    assert rows["local"]["better_off_mean"] == ""
    told = json.loads((with_local / "table.json").read_text())["rows"]
    assert ["better_off" in row["values"] for row in told] == [True, True, False]
    view = ComparisonView(with_local, table, {}, [])
    assert main_table(view, "mnist").header[3] == "Share better off (iid)"
    assert "Share better off (iid)" in str(table)


def test_without_a_run_alone_there_is_no_column(tmp_path):
    path = made_comparison(tmp_path, ("fedavg", "flamma"), splits=("iid",), seeds=2)
    assert "better off" not in (path / "table.md").read_text()
    document = json.dumps(comparison_document(path), default=vars)
    assert "better off" not in document


def test_a_page_without_the_table_computes_it_from_the_runs(with_local, tmp_path):
    whole = read_published(with_local / "table.json")
    (with_local / "table.json").rename(tmp_path / "aside.json")
    try:
        found = read_comparison(with_local).comparison
    finally:
        (tmp_path / "aside.json").rename(with_local / "table.json")
    for row in whole.rows:
        again = found.row(row.dataset, row.split, row.strategy)
        assert again.values.get("better_off") == row.values.get("better_off")


def test_a_repetition_of_some_runs_does_not_compare_it(with_local):
    table = read_published(with_local / "table.json")
    alone_left_out = compared(
        "again",
        [
            (Cell("mnist", "iid", "fedavg", seed, run.config), run)
            for seed in (0, 1)
            for run in [Run.load(with_local / f"runs/mnist/iid/fedavg/seed-{seed}")]
        ],
    )
    assert not any(run.differences for run in repetition(table, alone_left_out).runs)


def test_a_single_run_does_not_have_it():
    _, run = finished("fedavg", [[60]])
    assert "better_off" not in run.summary().metrics
    assert METRICS["better_off"].of_run("better_off", run.history, 1) is None
