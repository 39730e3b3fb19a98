"""The ledger in a run's report: totals, fines, flags, the budget; a changed one is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import made_runs
from flamma.experiments.accounts import accounts_of, run_ledger
from flamma.experiments.run import Run
from flamma.reports.document import read_document, write_report
from flamma.reports.reading import read_run
from flamma.reports.run import _ledger_section
from made_runs import made_config, made_run


@pytest.fixture
def fined(tmp_path, monkeypatch):
    """A run in which one client is caught in every third round."""
    plain = made_runs.made_record

    def caught(config, number, *rest):
        record, rows = plain(config, number, *rest)
        if number % 3 == 0:
            client = record.selected[-1]
            why = "<b>moved</b> less than 3 epochs do"
            outcome = replace(record.outcome, fines={client: 2.5}, flags={client: why})
            record = replace(record, outcome=outcome)
        return record, rows

    monkeypatch.setattr(made_runs, "made_record", caught)
    config = made_config(ledger={"currency": "EUR", "factor": 2.0, "budget": 2000.0})
    return made_run(tmp_path / "fined", config)


def section_of(path):
    [section] = [part for part in read_document(path).sections if part.name == "ledger"]
    return section


def test_the_section_has_totals_budget_fines_and_the_last_hash(fined):
    done = Run.load(fined)
    accounts = accounts_of(run_ledger(done), done.history, 36)
    facts, charts, reasons = section_of(fined).items
    told = {label: value for label, value, _ in facts.facts}
    assert told["paid"] == f"{accounts.net:.4g}"
    assert (told["fines"], told["flags"], told["budget"]) == ("20", "4", "2000")
    assert told["left"] == f"{2000 - accounts.net:.4g}"
    assert accounts.last_hash in section_of(fined).lead
    clients, rounds = charts.charts
    paid, fines = clients.views[0].traces
    by_client = {own.client: own for own in accounts.clients}
    assert paid["y"] == pytest.approx([by_client[c].net for c in range(8)])
    assert sum(value or 0 for value in fines["y"]) == pytest.approx(20)
    total, budget = rounds.views[0].traces
    assert total["y"][-1] == pytest.approx(accounts.net)
    assert set(budget["y"]) == {2000}
    assert ["flagged: <b>moved</b> less than 3 epochs do", "4"] in reasons.rows


def test_in_the_browser_it_is_drawn_and_text_stays_text(fined, opened):
    with opened(write_report(fined)) as page:
        for name in ("payments", "paid-total"):
            card = page.locator(f"[data-chart='{name}']")
            marks = ".barlayer .point path, .scatterlayer .trace path"
            assert card.locator(marks).count() > 0
        said = page.inner_text("#ledger")
        assert run_ledger(Run.load(fined)).last_hash in said
        assert "<b>moved</b>" in said
        assert "EUR" in said


def test_very_many_clients_are_one_curve(tmp_path):
    path = made_run(tmp_path / "run", made_config(clients=2500, per_round=40, rounds=6))
    chart = section_of(path).items[1].charts[0]
    [trace] = chart.views[0].traces
    done = Run.load(path)
    best = max(own.net for own in accounts_of(run_ledger(done), done.history, 240).clients)
    assert trace["y"][-1] == pytest.approx(best)
    assert trace["y"][0] == 0
    assert "All 2,500 clients" in chart.aid


def test_a_changed_ledger_is_named_and_not_shown(fined):
    text = (fined / "ledger.csv").read_text()
    (fined / "ledger.csv").write_text(text.replace(",2.5,", ",0.5,").replace(",5.0,", ",1.0,"))
    document = read_document(fined)
    assert not [part for part in document.sections if part.name == "ledger"]
    [said] = [text for text in document.notices if "ledger.csv" in text]
    assert "is not as it was written" in said
    assert np.char.isnumeric(said.split("line ")[1].split(",")[0])


@pytest.mark.parametrize("strategy", ["fedavg", "flamma"])
def test_a_run_without_a_ledger_has_no_section_and_no_complaint(strategy, tmp_path):
    path = made_run(tmp_path / "run", made_config(strategy))
    (path / "ledger.csv").unlink(missing_ok=True)
    run = read_run(path)
    before = list(run.problems)
    assert _ledger_section(run) == []
    assert run.problems == before


def test_a_lost_configuration_is_told_once(fined):
    (fined / "config.toml").unlink()
    assert not [text for text in read_document(fined).notices if "ledger" in text]


def test_an_exceeded_budget_is_said(tmp_path):
    path = made_run(tmp_path / "run", made_config(ledger={"budget": 1.0}))
    facts, charts, *_ = section_of(path).items
    left = next(value for label, value, _ in facts.facts if label == "left")
    assert left.startswith("-")
    assert "exceed the budget" in charts.charts[1].aid
