"""``flamma-memory`` and ``flamma-adaptive`` are retired; their old runs and published rows stay.

``fixtures/retired-strategies.tar.gz`` was written by commit 5770684 (version 0.2): a finished run
of flamma-memory, a run of flamma-adaptive that was interrupted after round 2 of 4, and a comparison
of flamma-memory with FedAvg.
"""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import flamma
from flamma.cli import main
from flamma.data.datasets import load_dataset
from flamma.errors import ConfigError
from flamma.experiments.comparison import as_markdown, read_published, suite_of
from flamma.strategies import RETIRED, STRATEGIES, label_of

FIXTURE = Path(__file__).parent / "fixtures" / "retired-strategies.tar.gz"
PUBLISHED = Path(__file__).parents[1] / "docs" / "results"


@pytest.fixture
def old(tmp_path, monkeypatch):
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path / "retired")
    return tmp_path / "retired"


@pytest.mark.parametrize(("name", "rounds"), [("memory", 4), ("adaptive", 2)])
def test_an_old_run_shows_and_reports(old, name, rounds, capsys):
    run = flamma.Run.load(name)
    assert [record.round for record in run.history] == list(range(1, rounds + 1))
    assert main(["show", name]) == 0
    assert f"FLamma-{name} (retired)" in capsys.readouterr().out
    assert main(["report", name]) == 0
    assert f"FLamma-{name} (retired)" in (old / name / "report.html").read_text(encoding="utf-8")
    assert main(["ledger", name, "--json"]) == 0


def test_an_old_run_predicts_and_exports(old, capsys):
    run, digits = flamma.Run.load("memory"), load_dataset("digits")
    accuracy = 100 * np.mean(run.predict(digits.train_x) == digits.train_y)
    assert accuracy == pytest.approx(run.history[-1].evaluation.metrics["accuracy"], abs=15)
    assert main(["export", "memory", "--out", "model.safetensors"]) == 0
    assert load_file("model.safetensors").keys() == run.model().state_dict().keys()


def test_resuming_one_is_refused_in_a_sentence(old, capsys):
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert main(["resume", "adaptive"]) == 2
    [told] = capsys.readouterr().err.splitlines()
    assert "flamma-adaptive" in told
    assert "retired: use commit 5770684, or mifa or flamma-plus" in told
    assert all(path.read_bytes() == content for path, content in before.items())


def test_an_old_comparison_shows_and_reports(old, capsys):
    assert main(["show", "comparison"]) == 0
    assert "FLamma-memory (retired)" in capsys.readouterr().out
    assert main(["report", "comparison"]) == 0
    assert (old / "comparison" / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize("table", ["family", "laptop", "ablation"])
def test_published_tables_show_their_rows_as_retired_and_the_rest_can_be_repeated(table):
    published = read_published(PUBLISHED / f"{table}.json")
    rows = {row.strategy for row in published.rows}
    assert "(retired)" in as_markdown(published)
    assert rows & RETIRED.keys()
    assert {cell.strategy for cell in suite_of(published).cells()} == rows - RETIRED.keys()


@pytest.mark.parametrize("name", RETIRED)
def test_naming_one_names_what_to_use_instead(name, tmp_path, monkeypatch, capsys):
    assert name not in STRATEGIES
    assert label_of(name).endswith(" (retired)")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(f'strategy = "{name}"\n')
    for words in (
        ["run", "--strategy", name],
        ["run", "mine.toml"],
        ["compare", "--strategies", f"fedavg,{name}"],
        ["audit", "--strategy", name],
        ["tune", "--strategy", name],
    ):
        assert main(words) == 2
        [told] = capsys.readouterr().err.splitlines()
        assert f"{name!r} was retired: use mifa" in told
        assert "flamma-plus" in told
    with pytest.raises(ConfigError, match=r"was retired: use mifa.*or flamma-plus"):
        flamma.run(strategy=name)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
