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
from itertools import accumulate

import numpy as np
import pytest

import flamma.experiments.jobs
from flamma.errors import ConfigError, DataError, FlammaError, RunError
from flamma.experiments.comparison import Comparison, Row, as_markdown, compare, shown_metrics
from flamma.experiments.run import Run
from flamma.experiments.statistics import paired_difference
from flamma.experiments.suite import narrowed, read_suite, suite_names

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
        spent = list(accumulate((r.epochs_total for r in history), initial=before))[1:]
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
        ({"sedes": 3}, "did you mean seeds"),
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
