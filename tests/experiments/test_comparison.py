"""Comparisons: complete, resumable, and the table is that of the runs."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

import flamma.experiments.jobs
from flamma.cli import main
from flamma.errors import ConfigError, DataError, FlammaError, InputFileError, RunError
from flamma.experiments.comparison import (
    Comparison,
    Row,
    as_markdown,
    check_overlap,
    compare,
    compared,
    last_accuracies,
    layout,
    parse_table,
    read_published,
    repetition,
    shown_metrics,
    suite_of,
)
from flamma.experiments.config import make_config, with_settings
from flamma.experiments.folder import signed
from flamma.experiments.result import ScoreTable, text_table
from flamma.experiments.run import Run
from flamma.experiments.statistics import paired_difference
from flamma.experiments.suite import (
    MOST_UNGROUPED,
    Cell,
    families_compared,
    narrowed,
    read_suite,
    suite_names,
)
from flamma.metrics import METRICS
from flamma.records import Evaluation, OfferRecord, Outcomes, RoundRecord
from flamma.reports.comparison import _main_table, comparison_document
from flamma.reports.reading import ComparisonView, read_comparison
from flamma.strategies import RETIRED, label_of
from made_runs import made_comparison, made_config

SUITE = {
    "name": "small",
    "seeds": 2,
    "splits": ["iid", "shards"],
    "strategies": ["fedavg", "flamma", "eager"],
    "run": {
        "rounds": 4,
        "per_round": 2,
        "data": {"clients": 5, "train_samples": 150, "validation_samples": 50},
        "model": {"name": "logistic"},
    },
    "overrides": {
        "fedavg": {"training": {"learning_rate": 0.2}},
        "eager": {"strategy": {"name": "flamma", "decay_start": 0.1}},
        "digits/eager": {"training": {"learning_rate": 0.08}},
    },
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison")
    return compare(SUITE, out=out, processes=2), out


def test_the_table_is_that_of_the_runs(done):
    comparison, out = done
    assert len(comparison.rows) == 6
    row = comparison.row("digits", "shards", "flamma")
    summaries = [
        Run.load(out / f"runs/digits/shards/flamma/seed-{seed}").summary() for seed in (0, 1)
    ]
    accuracies = [summary["accuracy"] for summary in summaries]
    assert row.values["accuracy"] == accuracies
    assert row.mean["accuracy"] == pytest.approx(statistics.mean(accuracies))
    assert row.std["accuracy"] == pytest.approx(statistics.stdev(accuracies))
    written = json.loads((out / "table.json").read_text())
    assert written["rows"][0]["mean"] == comparison.rows[0].mean
    with open(out / "table.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert float(lines[0]["accuracy_mean"]) == comparison.rows[0].mean["accuracy"]
    leader = comparison.best("digits", "shards", "accuracy_variance")[0]
    assert comparison.row("digits", "shards", leader).mean["accuracy_variance"] == min(
        r.mean["accuracy_variance"] for r in comparison.rows if r.split == "shards"
    )
    markdown = (out / "table.md").read_text()
    assert f"{row.mean['accuracy']:.2f} ± {row.std['accuracy']:.2f}" in markdown


def made_row(strategy, accuracy, variance, noise=(0.0, 0.1, -0.1)):
    values = {m: [0.0] * len(noise) for m in shown_metrics()}
    values |= {
        "accuracy": [accuracy + n for n in noise],
        "accuracy_variance": [variance + n for n in noise],
    }
    mean = {m: statistics.mean(v) for m, v in values.items()}
    std = {m: statistics.stdev(v) if len(v) > 1 else 0.0 for m, v in values.items()}
    return Row("digits", "iid", strategy, tuple(range(len(noise))), mean, std, values)


def test_the_ceiling_is_not_the_best_however_good_it_is():
    rows = [
        made_row("central", 99.0, 1.0),
        made_row("fedavg", 80.0, 9.0),
        made_row("flamma", 75.0, 4.0),
    ]
    comparison = Comparison("made", rows, [])
    assert comparison.best("digits", "iid", "accuracy") == ("fedavg",)
    assert comparison.best("digits", "iid", "accuracy_variance") == ("flamma",)
    markdown = as_markdown(comparison)
    assert "| Central (ceiling) | 99.00 ± 0.10 | 1.00 ± 0.10 |" in markdown  # there, but not bold
    assert "| FedAvg | **80.00 ± 0.10** | 9.00 ± 0.10 |" in markdown
    assert "| FLamma | 75.00 ± 0.10 | **4.00 ± 0.10** |" in markdown


def test_best_goes_by_differences_paired_over_seeds():
    # Both vary by tens from seed to seed, and one is ahead by 1 on every seed: clear, if paired.
    swings = (-20.0, 5.0, 15.0)
    clear = Comparison(
        "made", [made_row("fedavg", 60, 9, swings), made_row("flamma", 61, 8, swings)], []
    )
    assert clear.best("digits", "iid", "accuracy") == ("flamma",)
    # The same means, but ahead by 11 on one seed and behind by 4 on two: not clear.
    tied = Comparison(
        "made",
        [made_row("fedavg", 60, 9, swings), made_row("flamma", 61, 8, (-10.0, 0.0, 10.0))],
        [],
    )
    assert tied.best("digits", "iid", "accuracy") == ("flamma", "fedavg")
    assert "| FLamma | *61.00 ± 10.00*" in as_markdown(tied)
    assert "| FedAvg | *60.00 ± 18.03*" in as_markdown(tied)
    # The leader's mark is that of the others, so the legend must not call them worse than it.
    assert {tied.mark(row, "accuracy") for row in tied.rows} == {"tied"}
    assert "Italics: the best and all that are not significantly different from it" in (
        as_markdown(tied)
    )
    # In plain text a star, which is not read as part of the number, and numbers stay aligned.
    for own, second in ((tied, "60.00 ± 18.03*"), (clear, "60.00 ± 18.03 ")):
        fedavg, flamma = str(own).splitlines()[3:5]
        assert second in fedavg
        assert flamma[fedavg.index(second) :].startswith("61.00 ± ")
    assert "61.00 ± 10.00*" in str(tied)
    assert "61.00 ± 18.03*" in str(clear)
    for own in (tied, clear):
        assert "~" not in str(own)
        assert (
            "\n* best, or not significantly different from the best (paired over seeds, 95%)"
            in (str(own))
        )
    # With a single seed nothing can be told.
    alone = Comparison(
        "made", [made_row("fedavg", 60, 9, (0,)), made_row("flamma", 90, 8, (0,))], []
    )
    assert alone.best("digits", "iid", "accuracy") == ()
    assert "**" not in as_markdown(alone)


def test_a_paired_difference_has_the_interval_of_students_t():
    found = paired_difference([3.0, 5.0, 4.0], [1.0, 2.0, 3.0])  # differences 2, 3, 1
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.302653 / 3**0.5)  # t(0.975, 2) s / sqrt(n), s = 1
    assert not found.clear


def test_the_most_special_override_has_the_last_word():
    names = ("digits", "iid", "fedavg", "digits/iid", "digits/fedavg", "digits/iid/fedavg")
    for count in range(1, len(names) + 1):
        tables = {
            name: {"training": {"learning_rate": 0.1 * (k + 1)}}
            for k, name in enumerate(names[:count])
        }
        suite = read_suite(SUITE | {"strategies": ["fedavg"], "overrides": tables})
        steps = {c.split: c.config.training.learning_rate for c in suite.cells()}
        assert steps["iid"] == pytest.approx(0.1 * count)
        assert steps["shards"] == pytest.approx(0.1 * (1, 1, 3, 3, 5, 5)[count - 1])


def test_who_has_trained_can_compare(tmp_path):
    """A forked worker must not wait for the threads that its parent trained with."""
    script = (
        "import flamma; from flamma.experiments.comparison import compare\n"
        "flamma.run(strategy__name='fedavg', rounds=1, out='one')\n"
        "suite = {'seeds': 1, 'splits': ['iid'], 'strategies': ['fedavg'], 'run': {'rounds': 1}}\n"
        "print(len(compare(suite, out='many', processes=2).rows))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_all_strategies_see_the_same_clients(done):
    _, out = done
    tables = {
        (out / f"runs/digits/shards/{strategy}/seed-1/population.csv").read_text()
        for strategy in SUITE["strategies"]
    }
    assert len(tables) == 1


def test_overrides_and_variants_are_in_force(done):
    _, out = done
    configs = {s: Run.load(out / f"runs/digits/iid/{s}/seed-0").config for s in SUITE["strategies"]}
    assert configs["fedavg"].training.learning_rate == 0.2
    assert configs["flamma"].training.learning_rate == 0.05
    assert configs["eager"].training.learning_rate == 0.08
    assert configs["eager"].strategy.name == "flamma"
    assert configs["eager"].strategy.decay_start == 0.1


def test_equal_work_is_that_of_the_run_with_the_fewest_epochs(done):
    comparison, out = done
    rows = [row for row in comparison.rows if row.split == "shards"]
    budget = min(min(row.values["epochs_total"]) for row in rows)
    cut_short = 0
    for row in rows:
        history = Run.load(out / f"runs/digits/shards/{row.strategy}/seed-0").history
        before = history[0].warmup.epochs if history[0].warmup else 0.0
        spent = list(accumulate((r.outcome.epochs_total for r in history), initial=before))[1:]
        last = max(1, sum(total <= budget for total in spent))
        cut_short += last < len(history)
        mean = np.mean([record.metric("accuracy") for record in history[:last]])
        assert row.values["equal_work_accuracy"][0] == pytest.approx(mean)
    assert cut_short


def test_started_again_it_keeps_what_is_finished(done, tmp_path):
    comparison, out = done
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    shutil.rmtree(copy / "runs/digits/iid/flamma/seed-1")
    kept = copy / "runs/digits/iid/flamma/seed-0/rounds.jsonl"
    before = kept.stat().st_mtime_ns
    told = []
    again = compare(SUITE, out=copy, processes=1, on_progress=told.append)
    assert kept.stat().st_mtime_ns == before
    for ours, theirs in zip(again.rows, comparison.rows, strict=True):
        assert ours.mean["accuracy"] == theirs.mean["accuracy"]
    assert (told[0].rounds_done, told[0].runs_done) == (11 * 4, 11)  # before the first round
    assert told[-1].rounds_done == told[-1].rounds == 12 * 4
    assert told[-1].runs_done == told[-1].runs == 12


def test_another_suite_in_the_same_place_is_refused(done):
    _, out = done
    changed = {**SUITE, "run": {**SUITE["run"], "rounds": 5}}
    with pytest.raises(RunError, match="another configuration"):
        compare(changed, out=out)


def test_killed_and_started_again_it_ends_the_same(done, tmp_path):
    comparison, _ = done
    file = tmp_path / "suite.json"
    file.write_text(json.dumps(SUITE))
    script = (
        "import json, sys; from flamma.experiments.comparison import compare\n"
        "compare(json.load(open(sys.argv[1])), out=sys.argv[2], processes=2)"
    )
    out = tmp_path / "killed"
    victim = subprocess.Popen([sys.executable, "-c", script, file, out])
    deadline = time.monotonic() + 60
    while len(list(out.rglob("rounds.jsonl"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    victim.kill()
    victim.wait()
    time.sleep(1.2)  # its workers notice within a second
    again = compare(SUITE, out=out, processes=2)
    assert [row.mean["accuracy"] for row in again.rows] == [
        row.mean["accuracy"] for row in comparison.rows
    ]


def test_an_error_in_a_run_names_the_run(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise DataError("digits has no samples.")

    monkeypatch.setattr("flamma.experiments.run.build_federation", refuse)
    with pytest.raises(FlammaError, match=r"seed-0: digits has"):
        compare(SUITE, out=tmp_path, processes=1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seeds": 0}, "seeds"),
        ({"strategies": []}, "at least one"),
        ({"strategies": ["fedavg", "fedavg"]}, "each once"),
        ({"strategies": ["fedavgg"], "overrides": {}}, "did you mean fedavg"),
        ({"overrides": {"fedavgg": {}}}, "did you mean fedavg"),
        ({"run": {"ruonds": 3}}, "did you mean rounds"),
        ({"sedes": 3}, r"did you mean suite\.seeds"),
        ({"overrides": {"fedavg": 3}}, "overrides.fedavg must be a table"),
        ({"extends": 3}, "suite.extends must be"),
        ({"extends": "papre"}, "did you mean paper"),
    ],
)
def test_a_suite_that_cannot_work_is_refused_before_anything_runs(tmp_path, change, expected):
    with pytest.raises(ConfigError, match=expected):
        compare({**SUITE, **change}, out=tmp_path / "out")
    assert not list(tmp_path.rglob("config.toml"))


@pytest.mark.parametrize("name", suite_names())
def test_our_suites_are_valid(name):
    suite = read_suite(name)
    cells = suite.cells()
    pairs = len(suite.pairs) or len(suite.datasets) * len(suite.splits)
    assert len(cells) == suite.seeds * pairs * len(suite.strategies)
    assert len(narrowed(suite, seeds=1, strategies=["fedavg"]).cells()) == pairs


def test_a_suite_has_what_the_one_it_extends_has_but_for_what_it_says_itself(tmp_path):
    (tmp_path / "base.toml").write_text(
        """seeds = 2
        strategies = ["fedavg", "qffl"]
        run = { rounds = 7, training.epochs = 2 }
        [overrides]
        qffl.strategy.q = 0.5
        digits.training = { learning_rate = 0.3, epochs = 4 }
        "digits/iid/fedavg".training.learning_rate = 0.2
        """
    )
    (tmp_path / "mine.toml").write_text(
        """name = "mine"
        extends = "base.toml"
        strategies = ["fedavg", "flamma"]
        run.training.batch_size = 8
        [overrides]
        digits.training.epochs = 3
        flamma.strategy.price = 1.0
        """
    )
    suite = read_suite(tmp_path / "mine.toml")
    assert (suite.name, suite.seeds, suite.strategies) == ("mine", 2, ("fedavg", "flamma"))
    assert set(suite.overrides) == {"digits", "digits/iid/fedavg", "flamma"}  # qffl is not in it
    of = {(c.split, c.strategy): c.config for c in suite.cells()}
    assert {(c.rounds, c.training.epochs, c.training.batch_size) for c in of.values()} == {
        (7, 3, 8)
    }
    assert of["iid", "fedavg"].training.learning_rate == 0.2
    assert of["shards", "fedavg"].training.learning_rate == 0.3
    assert read_suite(tmp_path / "base.toml").overrides["digits"]["training"]["epochs"] == 4


def test_a_suite_that_extends_itself_is_refused(tmp_path):
    (tmp_path / "a.toml").write_text('extends = "b.toml"')
    (tmp_path / "b.toml").write_text('extends = "a.toml"')
    with pytest.raises(ConfigError, match="extends itself"):
        read_suite(tmp_path / "a.toml")


def test_an_unknown_suite_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean quick"):
        read_suite("quik")


def test_a_damaged_run_is_done_again_and_never_averaged(done, tmp_path):
    comparison, out = done
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    place = copy / "runs/digits/iid/flamma/seed-1"
    lines = (place / "rounds.jsonl").read_text().splitlines(keepends=True)
    (place / "rounds.jsonl").write_text("".join(lines[:2]))  # finished, but cut off
    changed = copy / "runs/digits/shards/fedavg/seed-0"
    (changed / "config.toml").write_text("rounds = [")
    with pytest.warns(UserWarning, match="is damaged and done again"):
        again = compare(SUITE, out=copy, processes=1)
    for ours, theirs in zip(again.rows, comparison.rows, strict=True):
        assert ours.values["accuracy"] == theirs.values["accuracy"]
    assert (place.parent / ".damaged-seed-1" / "rounds.jsonl").read_text() == "".join(lines[:2])


def test_a_run_whose_process_is_killed_is_left_out_by_name(tmp_path, monkeypatch):
    suite = {**SUITE, "seeds": 1, "splits": ["iid"]}
    real = flamma.experiments.jobs.run_config

    def deadly(config, *given, **options):
        if config.strategy.name == "fedavg":
            os.kill(os.getpid(), signal.SIGKILL)
        return real(config, *given, **options)

    monkeypatch.setattr("flamma.experiments.jobs.run_config", deadly)
    comparison = compare(suite, out=tmp_path, processes=2)
    assert comparison.failed == {"runs/digits/iid/fedavg/seed-0": "its process was killed"}
    assert [row.strategy for row in comparison.rows] == ["flamma", "eager"]
    written = json.loads((tmp_path / "table.json").read_text())
    assert written["failed"] == comparison.failed
    monkeypatch.undo()
    assert len(compare(suite, out=tmp_path, processes=2).rows) == 3


# The share of clients better off than alone, wherever a comparison has a run of local.


def finished(strategy, accuracies, seed=0, split="iid", under=None, clients=None):
    """Return a run whose clients have these accuracies, a row for each round."""
    rows = np.array(accuracies, dtype=np.float64)
    records = [
        RoundRecord(
            number,
            (0,),
            OfferRecord(),
            Outcomes((), {}, (1,), 1),
            evaluation=Evaluation({"accuracy": 50.0}),
        )
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
    assert _main_table(view, "mnist").header[3] == "Share better off (iid)"
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


# Comparisons of many strategies, in tables grouped by family.

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


SUITE_FAMILIES = """
[overrides.late]
strategy = { name = "flamma", decay_start = 0.6 }
[overrides."digits/shards/sure"]
strategy.name = "oort"
"""


@pytest.mark.parametrize("damage", [False, True])
def test_a_variant_is_of_the_family_of_the_strategy_behind_it(damage):
    suite = SUITE_FAMILIES.replace("]", "", 1) if damage else SUITE_FAMILIES
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


# A published table can be repeated, and what differs is told.

ROOT = Path(__file__).parents[2]
TABLES = sorted(
    path for path in (ROOT / "docs/results").glob("*.json") if '"suite"' in path.read_text()
)
SUITE_PUBLISHED = {
    "name": "tiny",
    "seeds": 2,
    "datasets": ["digits"],
    "splits": ["iid"],
    "strategies": ["fedavg", "eager"],
    "run": {
        "rounds": 2,
        "per_round": 2,
        "data": {"clients": 4, "train_samples": 80},
        "model": {"name": "logistic"},
        "engine": {"time_limit": 1000.0},
    },
    "overrides": {
        "eager": {"strategy": {"name": "flamma", "decay_start": 0.1}},
        "digits/iid/eager": {"training": {"learning_rate": 0.3}},
    },
}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    out = tmp_path_factory.mktemp("published")
    compare(SUITE_PUBLISHED, out=out, processes=1)
    return out / "table.json"


def changed(path: Path, to: Path, **of_first_row) -> Path:
    """Write the table with other values in its first row."""
    table = json.loads(path.read_text())
    table["rows"][0] |= of_first_row
    to.write_text(signed(table))
    return to


def test_a_table_holds_its_suite_and_the_hash_of_every_run(published):
    table = read_published(published)
    assert suite_of(table) == read_suite(SUITE_PUBLISHED)
    for row in table.rows:
        for seed, digest in zip(row.seeds, row.weights_sha256, strict=True):
            folder = published.parent / f"runs/{row.dataset}/{row.split}/{row.strategy}/seed-{seed}"
            assert digest == Run.load(folder).params_sha256
    assert table.rows[0].weights_sha256[0][:12] in (published.parent / "table.md").read_text()
    assert table.rows[0].weights_sha256[0] in (published.parent / "table.csv").read_text()


def test_a_repeated_table_has_the_same_bits(published, tmp_path, capsys):
    code = main(["compare", "--check", str(published), "--out", str(tmp_path), "--processes", "1"])
    shown = capsys.readouterr().out
    assert code == 0
    assert shown.endswith("All 4 runs have the same bits as published.\n")
    assert shown.count("same bits  ") == 4
    part = ["--strategies", "fedavg", "--seeds", "1", "--json"]
    code = main(["compare", "--check", str(published), "--out", str(tmp_path), *part])
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (told["same"], told["left_out"], len(told["runs"])) == (True, 3, 1)


def test_what_differs_is_told_and_is_exit_code_1(published, tmp_path, capsys):
    row = read_published(published).rows[0]
    values = row.values | {"accuracy": [row.values["accuracy"][0], 12.5]}
    hashes = [row.weights_sha256[0], "0" * 64]
    path = changed(published, tmp_path / "other.json", weights_sha256=hashes, values=values)
    out = str(published.parent)  # its runs are finished, and kept
    assert main(["compare", "--check", str(path), "--out", out]) == 1
    shown = capsys.readouterr().out
    moved = row.values["accuracy"][1] - 12.5
    assert "3 of 4 runs have the same bits as published." in shown
    assert f"differs by at most {abs(moved):.2f} points" in shown
    assert main(["compare", "--check", str(path), "--out", out, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [run["verdict"] for run in told["runs"]].count("other bits") == 1
    assert told["runs"][1]["differences"] == {"accuracy": moved}


def test_torch_does_not_promise_bits(published):
    table = read_published(published)
    rows = [replace(row, weights_sha256=("1" * 64,) * 2) for row in table.rows]
    found = repetition(table, replace(table, rows=rows, trainers=("torch",)))
    assert not found.same
    assert "only lanes guarantee bits" in found.sentence
    lanes = repetition(table, replace(table, rows=rows, trainers=("lanes",)))
    assert "guarantee" not in lanes.sentence
    older = repetition(replace(table, flamma="0.0.9"), replace(table, rows=rows))
    assert "FLamma 0.0.9 made the table" in older.sentence


def test_a_run_that_failed_is_not_the_same(published):
    table = read_published(published)
    left = replace(table, rows=table.rows[1:], failed={"runs/digits/iid/fedavg/seed-1": "killed"})
    found = repetition(table, left)
    assert [run.verdict for run in found.runs].count("not run") == 1
    assert not found.same


def test_a_table_without_hashes_is_told(published):
    table = json.loads(published.read_text())
    for name in ("suite", "trainers", "flamma", "failed"):
        del table[name]
    for row in table["rows"]:
        del row["weights_sha256"]
    old = parse_table(signed(table))
    found = repetition(old, read_published(published))
    assert {run.verdict for run in found.runs} == {"no hash"}
    assert "carries no hashes of weights" in found.sentence
    assert not found.same
    with pytest.raises(InputFileError, match="name the suite, too"):
        suite_of(old)
    assert suite_of(replace(old, name="quick")) == read_suite("quick")


def test_a_table_that_cannot_be_checked_is_one_sentence(published, tmp_path, capsys):
    newer = tmp_path / "newer.json"
    newer.write_text(signed(json.loads(published.read_text()) | {"version": 3}))
    damaged = changed(published, tmp_path / "damaged.json")
    damaged.write_text(damaged.read_text().replace('"fedavg"', '"fedprox"'))
    short = changed(published, tmp_path / "short.json", weights_sha256=["0" * 64])
    for path, reason in (
        (newer, "a newer version of FLamma wrote it"),
        (damaged, "checksum"),
        (short, "damaged: weights_sha256"),
        (tmp_path / "nowhere.json", "No such file"),
        (Path(__file__), "not the table.json of a comparison"),
    ):
        assert main(["compare", "--check", str(path), "--out", str(tmp_path / "out")]) == 2
        told = capsys.readouterr().err
        assert reason in told
        assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["quick"], "leave out quick"),
        (["--rounds", "3"], "leave out rounds"),
        (["--strategies", "fedprox"], "has none of the runs"),
    ],
)
def test_another_suite_is_refused_before_anything_runs(published, tmp_path, capsys, more, reason):
    out = tmp_path / "out"
    assert main(["compare", *more, "--check", str(published), "--out", str(out)]) == 2
    assert reason in capsys.readouterr().err
    assert not out.exists()
    assert check_overlap(read_published(published), read_suite(SUITE_PUBLISHED)) is None


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_published_runs_are_those_of_the_suite_as_it_is(path):
    table = read_published(path)
    own = ROOT / "benchmarks" / f"{table.name}.toml"
    suite = read_suite(own if own.exists() else table.name)
    suite = replace(suite, seeds=max(suite.seeds, suite_of(table).seeds))
    now = {cell.folder: cell.config for cell in suite.cells()}
    published = suite_of(table).cells()
    assert published
    others = [cell.folder for cell in published if now.get(cell.folder) != cell.config]
    assert others == []


def test_the_suite_of_all_strategies_has_what_its_trials_chose():
    trials = json.loads((ROOT / "docs/results/family-steps.json").read_text())
    cells = read_suite("family").cells()
    configs = {(cell.dataset, cell.split, cell.strategy): cell.config for cell in cells}
    values: dict[str, set[float]] = {}
    for found in trials:
        if found["strategy"] in RETIRED:
            continue
        config = configs[found["dataset"], found["split"], found["strategy"]]
        assert make_config(with_settings(config.as_tables(), found["best"]["options"])) == config
        for tried in found["tried"]:
            for option, value in tried["options"].items():
                if option.startswith("strategy."):
                    values.setdefault(f"{found['strategy']}: {option}", set()).add(value)
    assert values["qffl: strategy.q"] == {0.01, 0.1, 0.5, 1.0}
    assert len(values["term: strategy.t"]) == len(values["afl: strategy.step"]) == 4
