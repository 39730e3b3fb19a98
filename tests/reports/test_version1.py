"""A run directory of version 0.1, whose records have no version, still opens everywhere.

``version1`` is a real one: 12 rounds of flamma on digits, without its checkpoints.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flamma.cli import main
from flamma.experiments.run import Run
from flamma.reports.document import read_document, write_report

VERSION_1 = Path(__file__).parent / "version1"


@pytest.fixture
def old_run(tmp_path):
    return Path(shutil.copytree(VERSION_1, tmp_path / "old"))


def flat_records():
    return [json.loads(line) for line in (VERSION_1 / "rounds.jsonl").read_text().splitlines()]


def test_it_is_loaded_with_all_that_its_records_tell():
    run = Run.load(VERSION_1)
    assert run.finished
    assert run.params_sha256.startswith("f38f76ce")
    for record, flat in zip(run.history, flat_records(), strict=True):
        assert "version" not in flat
        assert record.metric("accuracy_variance") == flat["accuracy_variance"]
        assert record.game.price == flat["price"]
        assert record.game.costs is None
        assert record.certificate.leader_regret == flat["leader_regret"]
        assert list(record.client_utilities) == flat["client_utilities"]
    assert run.history[0].warmup.epochs == flat_records()[0]["warmup"]["epochs"]


def test_flamma_show_tells_its_metrics(capsys):
    assert main(["show", str(VERSION_1), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    flat = flat_records()
    assert told["accuracy"] == flat[-1]["accuracy"]
    last = [record["accuracy_variance"] for record in flat[-10:]]
    assert told["last_10_accuracy_variance"] == pytest.approx(sum(last) / 10)


def test_its_report_shows_all_but_what_it_did_not_record(old_run):
    document = read_document(old_run)
    assert list(document.notices) == []
    assert "explorer" not in [section.name for section in document.sections]
    groups = [item for section in document.sections for item in section.items]
    charts = {chart.name: chart for group in groups for chart in vars(group).get("charts", ())}
    assert [trace["name"] for trace in charts["decay"].views[0].traces] == ["played γ"]
    assert [view.label for view in charts["contributions"].views] == ["measured"]
    prices = charts["price"].views[0].traces[0]["y"]
    assert prices == pytest.approx([record["price"] for record in flat_records()], rel=1e-7)


def test_its_page_is_drawn(old_run, opened):
    with opened(write_report(old_run)) as page:
        names = page.eval_on_selector_all("[data-chart]", "all => all.map(c => c.dataset.chart)")
        drawn = page.eval_on_selector_all(
            "[data-chart] .plot", "all => all.map(p => p.data.length)"
        )
    assert {"accuracy", "decay", "price", "contributions", "certificate", "epochs"} <= set(names)
    assert min(drawn) > 0
