"""A published table can be repeated, and what differs is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flamma.cli import main
from flamma.errors import InputFileError
from flamma.experiments.comparison import (
    check_overlap,
    compare,
    parse_table,
    read_published,
    repetition,
    suite_of,
)
from flamma.experiments.config import make_config, with_settings
from flamma.experiments.folder import signed
from flamma.experiments.run import Run
from flamma.experiments.suite import read_suite
from flamma.strategies import RETIRED

ROOT = Path(__file__).parents[2]
TABLES = sorted(
    path for path in (ROOT / "docs/results").glob("*.json") if '"suite"' in path.read_text()
)

SUITE = {
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
    compare(SUITE, out=out, processes=1)
    return out / "table.json"


def changed(path: Path, to: Path, **of_first_row) -> Path:
    """Write the table with other values in its first row."""
    table = json.loads(path.read_text())
    table["rows"][0] |= of_first_row
    to.write_text(signed(table))
    return to


def test_a_table_holds_its_suite_and_the_hash_of_every_run(published):
    table = read_published(published)
    assert suite_of(table) == read_suite(SUITE)
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
    assert check_overlap(read_published(published), read_suite(SUITE)) is None


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
