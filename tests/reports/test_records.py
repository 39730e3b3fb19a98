"""What a report reads and concludes, before anything is drawn."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import numpy as np
import pytest

from flamma.cli import main
from flamma.errors import MissingExtraError, RunError
from flamma.experiments.run import run
from flamma.experiments.table import MEASURES, Comparison, Row
from flamma.game import Game, solve
from flamma.reports import html_page as pages
from flamma.reports.comparing import clear_best, is_comparison, pareto, read_comparison
from flamma.reports.comparison_page import paper
from flamma.reports.document import Document, Facts
from flamma.reports.drawing import style_of
from flamma.reports.game_charts import decay, effective, games
from flamma.reports.html_page import as_json, read_document, write_report
from flamma.reports.reading import read_run
from made_runs import made_comparison, made_config, made_run


def row(strategy, accuracy, variance=(1.0, 0.1), seeds=3):
    mean = {**dict.fromkeys(MEASURES, 0.0), "accuracy": accuracy[0], "variance": variance[0]}
    std = {**dict.fromkeys(MEASURES, 0.0), "accuracy": accuracy[1], "variance": variance[1]}
    values = {measure: [mean[measure]] * seeds for measure in MEASURES}
    return Row("mnist", "iid", strategy, seeds, mean, std, values)


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([row("a", (90, 1)), row("b", (80, 2))], ("a",)),
        ([row("a", (90, 6)), row("b", (80, 5))], ("a", "b")),
        ([row("a", (90, 1)), row("b", (80, 2)), row("c", (88, 1.5))], ("a", "c")),
        ([row("a", (90, 0), seeds=1), row("b", (80, 0), seeds=1)], ()),
        ([row("a", (90, 1))], ()),
    ],
)
def test_the_best_is_marked_only_where_the_spread_allows_it(rows, best):
    assert clear_best(Comparison("made", rows, []), "mnist", "iid", "accuracy") == best


def test_the_lowest_variance_is_the_best_one():
    rows = [row("a", (90, 1), (50, 3)), row("b", (90, 1), (20, 3))]
    assert clear_best(Comparison("made", rows, []), "mnist", "iid", "variance") == ("b",)


def test_the_ceiling_is_no_best_and_keeps_nobody_else_from_being_it():
    ceiling = row("central", (99, 1), (1, 1))
    rows = [ceiling, row("a", (90, 1), (50, 3)), row("b", (80, 2), (20, 3))]
    comparison = Comparison("made", rows, [])
    assert clear_best(comparison, "mnist", "iid", "accuracy") == ("a",)
    assert clear_best(comparison, "mnist", "iid", "variance") == ("b",)
    wide = row("central", (91, 30), (21, 30))  # its spread meets everybody's
    comparison = Comparison("made", [wide, *rows[1:]], [])
    assert clear_best(comparison, "mnist", "iid", "accuracy") == ("a",)
    # With one other strategy there is nobody to be better than.
    assert clear_best(Comparison("made", rows[:2], []), "mnist", "iid", "accuracy") == ()


def test_the_pareto_front_is_what_nobody_beats_in_both():
    rows = [
        row("accurate", (90, 0), (50, 0)),
        row("fair", (70, 0), (5, 0)),
        row("between", (80, 0), (20, 0)),
        row("beaten", (79, 0), (21, 0)),
        row("equal", (80, 0), (20, 0)),
        row("central", (99, 0), (1, 0)),
    ]
    assert [r.strategy for r in pareto(rows)] == ["fair", "between", "equal", "accurate"]


def test_no_two_of_a_dozen_lines_look_alike():
    assert len({style_of(number) for number in range(24)}) == 24


def test_the_papers_table_is_kept_with_its_source():
    table = paper()
    assert table["source"].startswith("Javaherian, Turney, Chen, Tzeng")
    assert table["mnist"]["shards"]["flamma"] == {
        "accuracy": [97.62, 0.48],
        "variance": [48.51, 0.59],
    }
    for dataset in ("mnist", "fashion-mnist", "cifar10"):
        for split in ("iid", "shards"):
            rows = table[dataset][split]
            assert list(rows) == ["fedavg", "fedprox", "qffl", "incentive", "flamma"]
            lowest = min(rows, key=lambda name: rows[name]["variance"][0])
            assert lowest == "flamma"  # the paper's claim


def test_the_games_of_a_run_are_those_its_server_solved(tmp_path):
    done = run(
        out=tmp_path / "run",
        rounds=12,
        data__clients=6,
        data__train_samples=150,
        model__name="logistic",
        costs__kind="lognormal",
    )
    found = games(read_run(done.path))
    assert [game["round"] for game in found] == list(range(1, 13))
    for game in found:
        rebuilt = Game(
            game["contributions"],
            game["costs"],
            game["round"],
            game["price"],
            tuple(game["epochBounds"]),
            game["wholeEpochs"],
            tuple(game["decayBounds"]),
        )
        assert solve(rebuilt).decay_factor == pytest.approx(game["played"], abs=1e-12)


def test_the_unconstrained_optimum_is_the_closed_form(tmp_path):
    record = read_run(made_run(tmp_path / "run"))
    lines = {trace["name"]: trace for trace in decay(record).charts[0].views[0].traces}
    game = games(record)[-1]
    total = sum(game["contributions"])
    response = sum(w / c for w, c in zip(game["contributions"], game["costs"], strict=True))
    bend = 2 * game["price"] * game["round"] - response
    expected = min(1.0, total / bend) if bend > 0 else 1.0
    assert lines["unconstrained optimum"]["y"][-1] == pytest.approx(expected, rel=1e-7)


def test_effective_contributions_are_what_the_strategy_selected_by(tmp_path, monkeypatch):
    from flamma.strategies.flamma import Flamma

    seen = []
    select = Flamma.select

    def spy(self, state, available, rng):
        chosen = select(self, state, available, rng)
        seen.append({int(c): float(state.effective[c]) for c in chosen})
        return chosen

    monkeypatch.setattr(Flamma, "select", spy)
    done = run(
        out=tmp_path / "run",
        rounds=25,
        data__clients=6,
        data__train_samples=150,
        model__name="logistic",
        costs__kind="lognormal",
    )
    found = effective(read_run(done.path))
    for column, chosen in enumerate(seen):
        known = {int(c): found[c, column] for c in np.flatnonzero(~np.isnan(found[:, column]))}
        assert known == pytest.approx(chosen)


def test_json_in_a_page_cannot_end_its_element():
    hostile = "</script><!--\u2028\u2029&"
    document = Document("run", hostile, "", [], Facts([]), [], "")
    text = as_json(document)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text)["title"] == hostile == asdict(document)["title"]


def test_a_comparison_is_told_from_a_run(tmp_path):
    assert is_comparison(made_comparison(tmp_path / "made", ["fedavg"], ["iid"], seeds=1))
    assert not is_comparison(made_run(tmp_path / "run"))
    with pytest.raises(RunError, match="neither a run nor a comparison"):
        read_document(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1, "rows": [{}], "folders": []}'])
def test_a_damaged_table_is_worked_out_from_the_runs(tmp_path, text):
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], ["iid"], seeds=2)
    whole = read_comparison(path)
    (path / "table.json").write_text(text)
    record = read_comparison(path)
    assert record.problems
    by_place = {(r.split, r.strategy): r.mean for r in record.comparison.rows}
    assert by_place == {(r.split, r.strategy): r.mean for r in whole.comparison.rows}


def as_if_deployed(path):
    """Clients with names whose costs and classes the server does not know, as on real sites."""
    lines = (path / "population.csv").read_text().splitlines()
    rows = [[*line.split(",")[:3], "nan", f"site {k}"] for k, line in enumerate(lines[1:])]
    header = "client,samples,held_out,cost,name"
    text = "\n".join([header, *(",".join(row) for row in rows)]) + "\n"
    (path / "population.csv").write_text(text)
    return path


def test_where_costs_are_not_known_the_game_is_shown_without_them(tmp_path):
    document = read_document(as_if_deployed(made_run(tmp_path / "run")))
    assert list(document.notices) == []
    charts = charts_of(document)
    assert [trace["name"] for trace in charts["decay"].views[0].traces] == ["played γ"]
    assert charts["holdings"].title == "Who holds how much"
    assert charts["epochs"].views[0].traces[0]["y"][0] == "0 site 0"
    assert "explorer" not in [section.name for section in document.sections]


def test_a_table_of_an_older_version_is_read(tmp_path):
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], ["iid"], seeds=2)
    names = [
        item.name for s in read_document(path).sections for item in s.items if item.kind == "table"
    ]
    assert "equal-work" in names
    table = json.loads((path / "table.json").read_text())
    for line in table["rows"]:
        for part in ("mean", "std", "values"):
            for measure in ("equal_work_accuracy", "equal_work_variance"):
                del line[part][measure]
    (path / "table.json").write_text(json.dumps(table))
    document = read_document(path)
    assert list(document.notices) == []
    names = [item.name for s in document.sections for item in s.items if item.kind == "table"]
    assert "table-mnist" in names
    assert "equal-work" not in names


def test_what_is_not_a_number_is_not_drawn(tmp_path):
    path = made_run(tmp_path / "run", trouble=False)
    lines = (path / "rounds.jsonl").read_text().splitlines()
    record = json.loads(lines[1]) | {"accuracy": float("inf"), "price": float("nan"), "loss": None}
    lines[1] = json.dumps(record)
    (path / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    text = as_json(read_document(path))
    assert "Infinity" not in text
    assert "NaN" not in text


def test_the_command_writes_the_page_and_says_what_is_missing(tmp_path, capsys):
    path = made_run(tmp_path / "run", done=4)
    assert main(["report", str(path)]) == 0
    said = capsys.readouterr()
    assert said.out == f"Report: {path / 'report.html'}\n"
    assert "4 of 12 rounds are finished" in said.err
    out = tmp_path / "elsewhere" / "page.html"
    assert main(["report", str(path), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"report": str(out), "missing": ["4 of 12 rounds are finished."]}
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert main(["report", str(tmp_path)]) == 2


def test_without_the_extra_a_run_still_ends_well(tmp_path, capsys, monkeypatch):
    pages.plotly.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'flamma\[report\]'"):
        write_report(made_run(tmp_path / "made"))
    small = ["--rounds", "1", "--model", "logistic", "--train-samples", "100"]
    assert main(["run", *small, "--out", str(tmp_path / "run"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["finished"] is True
    assert "no report: an HTML report needs an optional part" in said.err
    assert not (tmp_path / "run" / "report.html").exists()
    pages.plotly.cache_clear()


def test_long_runs_are_thinned_but_no_mishap_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("flamma.reports.document.MOST_POINTS", 30)
    monkeypatch.setattr("flamma.reports.run_charts.SHOWN_ROUNDS", 20)
    charts = charts_of(read_document(made_run(tmp_path / "run", made_config(rounds=50))))
    accuracy = charts["accuracy"].views[0].traces[-1]
    assert len(accuracy["x"]) == 30
    assert (accuracy["x"][0], accuracy["x"][-1]) == (1, 50)
    failed = charts["mishaps"].views[0].traces[0]
    assert len(failed["x"]) == 17
    assert sum(y or 0 for y in failed["y"]) == 50 // 4
    assert "every 3 rounds" in charts["mishaps"].aid
    assert "20 of 50 rounds" in charts["epochs"].aid


def charts_of(document):
    groups = [item for section in document.sections for item in section.items]
    return {chart.name: chart for group in groups for chart in vars(group).get("charts", ())}


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    path = made_run(tmp_path / "run")
    monkeypatch.setattr("flamma.reports.reading.MOST_BYTES", 2000)
    record = read_run(path)
    assert "rounds.jsonl is larger than 0 MB and is not read" in record.problems
    assert not record.rounds


def test_many_clients_are_shown_as_a_sample_and_that_is_said(tmp_path):
    config = made_config(clients=500, per_round=50, rounds=3)
    charts = charts_of(read_document(made_run(tmp_path / "run", config)))
    assert "Shown are 200 of 500 clients" in charts["epochs"].aid
    assert len(charts["epochs"].views[0].traces[0]["y"]) == 200
