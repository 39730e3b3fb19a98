"""Wherever accuracies of clients' own models are shown, that is said; and what surveys took."""

from __future__ import annotations

import csv
import json

import pytest

import vector_strategies
from flamma.cli import main
from flamma.cli.console import round_line
from flamma.experiments.comparison import as_markdown, compared, parse_table, write_tables
from flamma.experiments.run import Run, run
from flamma.experiments.suite import Cell
from flamma.reports.comparison import comparison_document
from flamma.reports.document import read_document

NAMES = ("own-downloads", "surveying")


@pytest.fixture(scope="module")
def registered():
    with vector_strategies.registered():
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory, registered):
    place = tmp_path_factory.mktemp("own")
    tables = {
        "rounds": 2,
        "per_round": 2,
        "data": {"clients": 5, "train_samples": 100, "validation_samples": 0},
        "model": {"name": "logistic"},
    }
    done = {}
    for name in NAMES:
        config = {**tables, "strategy": {"name": name}}
        folder = Cell("digits", "shards", name, 0, {}).folder
        done[name] = run(config, out=place / folder)
    return place, done


@pytest.mark.parametrize("name", NAMES)
def test_show_says_it(runs, capsys, name):
    done = runs[1][name]
    main(["show", str(done.path)])
    shown = capsys.readouterr().out
    own = name == "own-downloads"
    assert ("of the clients' own models, not of the global one" in shown) == own
    sent = 2 * 4 * 7850 * 4  # in two rounds, to four clients
    assert ("before selections: 8, for which 251 kB of weights were sent" in shown) != own
    main(["show", str(done.path), "--json"])
    told = json.loads(capsys.readouterr().out)
    found = [told[key] for key in ("personal", "surveyed", "bytes_surveys")]
    assert found == ([True, 0, 0] if own else [False, 8, sent])
    line = round_line(done.history[-1], 2)
    assert line.endswith("own models" if own else "4 surveyed")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_run_says_it(runs, name):
    page = read_document(runs[1][name].path)
    own = name == "own-downloads"
    parts = {section.name: section for section in page.sections}
    lead = parts["quality"].lead
    assert lead.startswith("Each client's own model" if own else "The global model")
    notes = {label: note for label, _, note in page.facts.facts}
    assert ("of clients' own models" in notes["accuracy"]) == own
    assert "own" not in notes["local epochs"]
    facts = {label: (value, note) for label, value, note in parts["participation"].items[0].facts}
    assert ("losses asked for" in facts) != own
    if not own:
        value, note = facts["losses asked for"]
        assert value == "8"
        assert note.startswith("before selections; 251 kB")


def test_a_comparison_says_it(runs):
    place, done = runs
    cells = [Cell("digits", "shards", name, 0, done[name].config) for name in NAMES]
    comparison = compared("own", [(cell, Run.load(done[cell.strategy].path)) for cell in cells])
    write_tables(comparison, place)
    said = "Accuracies of OwnDownloads are of the clients' own models."
    assert said in as_markdown(comparison)
    assert "Accuracies of Surveying" not in as_markdown(comparison)
    page = comparison_document(place)
    assert "some of clients' own models" in page.subtitle
    tables = {
        item.name: item for part in page.sections for item in part.items if "table" in item.kind
    }
    assert said in tables["table-digits"].notes
    rows = csv.DictReader((place / "table.csv").read_text().splitlines())
    assert [row["own_models"] for row in rows] == ["yes", ""]
    again = parse_table((place / "table.json").read_text())
    assert [row.personal for row in again.rows] == [True, False]
