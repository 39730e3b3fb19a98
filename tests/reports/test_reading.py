"""What a report reads and concludes, before anything is drawn."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict

import numpy as np
import pytest

from flamma.cli import main
from flamma.errors import MissingExtraError, RunError
from flamma.experiments.comparison import Row
from flamma.experiments.folder import RunFolder, SiteStates, signed
from flamma.experiments.ledger import ledger_writer
from flamma.experiments.run import run
from flamma.game import Game, solve
from flamma.reports import document as pages
from flamma.reports.comparison import _paper_table
from flamma.reports.document import Document, Facts, as_json, read_document, write_report
from flamma.reports.pictures import curves
from flamma.reports.reading import is_comparison, pareto, read_comparison, read_run
from flamma.reports.run_charts import _games, decay
from made_runs import (
    made_comparison,
    made_config,
    made_run,
    rewrite_rounds,
    with_changes,
    write_checksums,
)


def row(strategy, accuracy, variance, seeds=(0, 1, 2)):
    mean = {"accuracy": accuracy, "accuracy_variance": variance}
    values = {name: [value] * len(seeds) for name, value in mean.items()}
    return Row("mnist", "iid", strategy, tuple(seeds), mean, dict.fromkeys(mean, 0.0), values)


def tables_of(document):
    items = [item for section in document.sections for item in section.items]
    return {item.name: item for item in items if item.kind == "table"}


def marks_of(document, table="table-mnist"):
    """The mark of the first column of numbers, by strategy."""
    return {line[0]: line[1].mark for line in tables_of(document)[table].rows}


def with_accuracies(path, accuracies):
    """A comparison whose table has these accuracies of every strategy by seed."""
    made_comparison(path, list(accuracies), ["iid"], seeds=1)
    table = json.loads((path / "table.json").read_text())
    for line in table["rows"]:
        by_seed = accuracies[line["strategy"]]
        line["seeds"] = list(by_seed)
        line["weights_sha256"] = line["weights_sha256"] * len(by_seed)
        for name in line["values"]:
            line["values"][name] = line["values"][name] * len(by_seed)
        line["values"]["accuracy"] = list(by_seed.values())
        line["mean"]["accuracy"] = float(np.mean(list(by_seed.values())))
    (path / "table.json").write_text(signed(table))
    return read_document(path)


def test_the_best_is_decided_by_differences_paired_over_seeds(tmp_path):
    # The seeds differ by 20 points and the strategies by 5 on every seed: only pairs show it.
    document = with_accuracies(
        tmp_path / "clear",
        {"fedavg": {0: 50.0, 1: 70.0, 2: 90.0}, "qffl": {2: 95.1, 1: 75.0, 0: 54.9}},
    )
    assert marks_of(document) == {"FedAvg": "", "q-FFL": "best"}
    assert document.facts.facts[0][:2] == ("highest accuracy: mnist, iid", "q-FFL")
    assert "paired over seeds" in document.facts.facts[0][2]
    assert "paired over seeds, 95%" in tables_of(document)["table-mnist"].notes[0]
    document = with_accuracies(
        tmp_path / "open",
        {"fedavg": {0: 50.0, 1: 70.0, 2: 90.0}, "qffl": {0: 75.0, 1: 55.0, 2: 95.0}},
    )
    assert marks_of(document) == {"FedAvg": "tied", "q-FFL": "tied"}
    assert (
        "Underlined: the best and all that are not significantly different"
        in tables_of(document)["table-mnist"].notes[0]
    )
    assert document.facts.facts[0][1] == "q-FFL or FedAvg"


def test_with_a_single_seed_nothing_is_marked_and_the_page_says_so(tmp_path):
    document = with_accuracies(tmp_path / "one", {"fedavg": {0: 50.0}, "qffl": {0: 90.0}})
    assert set(marks_of(document).values()) == {""}
    assert list(document.facts.facts) == []
    assert "nothing is marked" in tables_of(document)["table-mnist"].notes[0]


def test_an_unfinished_comparison_pairs_runs_by_the_seeds_of_their_folders(tmp_path):
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], ["iid"], seeds=4)
    (path / "table.json").unlink()
    runs = path / "runs/mnist/iid"
    shutil.rmtree(runs / "fedavg/seed-0")
    shutil.rmtree(runs / "flamma/seed-1")
    (runs / "flamma/seed-3").rename(runs / "flamma/seed-x")
    view = read_comparison(path)
    assert {r.strategy: r.seeds for r in view.comparison.rows} == {
        "fedavg": (1, 2, 3),
        "flamma": (0, 2),
    }
    assert "mnist iid flamma seed-x is not named by a seed and is not read" in view.problems


def test_the_pareto_front_is_what_no_other_strategy_beats_in_both():
    rows = [
        row("accurate", 90, 50),
        row("fair", 70, 5),
        row("between", 80, 20),
        row("beaten", 79, 21),
        row("equal", 80, 20),
        row("central", 99, 1),
    ]
    assert [r.strategy for r in pareto(rows)] == ["fair", "between", "equal", "accurate"]


def test_the_papers_table_is_kept_with_its_source():
    table = _paper_table()
    assert table["source"].startswith("Javaherian, Turney, Chen, Tzeng")
    assert table["mnist"]["shards"]["flamma"] == {
        "accuracy": [97.62, 0.48],
        "accuracy_variance": [48.51, 0.59],
    }
    for dataset in ("mnist", "fashion-mnist", "cifar10"):
        for split in ("iid", "shards"):
            rows = table[dataset][split]
            assert list(rows) == ["fedavg", "fedprox", "qffl", "incentive", "flamma"]
            lowest = min(rows, key=lambda name: rows[name]["accuracy_variance"][0])
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
    found = _games(read_run(done.path))
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
    game = _games(record)[-1]
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
    told = charts_of(read_document(done.path))["contributions"]
    found = np.array(told.views[0].traces[0]["z"], dtype=float)
    assert told.views[0].label == "effective"
    assert "(measure: distance)" in told.aid
    for column, chosen in enumerate(seen):
        known = {int(c): found[c, column] for c in np.flatnonzero(~np.isnan(found[:, column]))}
        assert known == pytest.approx(chosen, rel=1e-7)


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
def test_a_damaged_table_is_computed_from_the_runs(tmp_path, text):
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], ["iid"], seeds=2)
    whole = read_comparison(path)
    (path / "table.json").write_text(text)
    record = read_comparison(path)
    assert record.problems
    by_place = {(r.split, r.strategy): r.mean for r in record.comparison.rows}
    assert by_place == {(r.split, r.strategy): r.mean for r in whole.comparison.rows}


@pytest.mark.parametrize(
    "wrong", [None, "x", [], {}, [None], 10**400, 1e308, -1, True, 2**40, "\ud800", "\x1b[2J"]
)
def test_wrong_types_in_a_table_never_fail_the_page(tmp_path, wrong):
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], ["iid"], seeds=2)
    text = (path / "table.json").read_text()
    row = json.loads(text)["rows"][0]
    places = [("rows",), ("name",), ("folders",), ("rows", 0), ("rows", 0, "values", "accuracy", 1)]
    places += [("rows", 0, key) for key in row]
    places += [("rows", 0, part, "accuracy") for part in ("mean", "std", "values")]
    for *way, last in places:
        table = json.loads(text)
        inner = table
        for key in way:
            inner = inner[key]
        inner[last] = wrong
        (path / "table.json").write_text(json.dumps(table))
        assert as_json(read_document(path)).encode()


def as_if_deployed(path):
    """Clients with names whose costs and classes the server does not know, as on real sites."""
    lines = (path / "population.csv").read_text().splitlines()
    rows = [[*line.split(",")[:3], "nan", f"site {k}"] for k, line in enumerate(lines[1:])]
    header = "client,samples,held_out,cost,name"
    text = "\n".join([header, *(",".join(row) for row in rows)]) + "\n"
    (path / "population.csv").write_text(text)
    (path / "ledger.csv").unlink()  # it has the names of the clients
    folder, config = RunFolder(path), made_config()
    folder.open_at(config.rounds, ledger_writer(config.ledger, folder.run_id, text))
    folder.close()
    write_checksums(path)
    return path


def test_where_true_costs_are_not_known_the_game_is_that_of_the_server(tmp_path):
    document = read_document(as_if_deployed(made_run(tmp_path / "run")))
    assert list(document.notices) == []
    charts = charts_of(document)
    names = [trace["name"] for trace in charts["decay"].views[0].traces]
    assert names == ["played γ", "unconstrained optimum", "lower bound"]
    assert charts["local-data"].title == "Training samples of every client"
    assert charts["epochs"].views[0].traces[0]["y"][0] == "0 site 0"
    assert "explorer" in [section.name for section in document.sections]


def test_a_game_that_cannot_be_one_is_left_out_and_named(tmp_path):
    path = made_run(tmp_path / "run")

    def change(table):
        if table["round"] == 3:
            table["game"]["costs"][1] = -1.0
        return table

    rewrite_rounds(path, change)
    run = read_run(path)
    assert [game["round"] for game in _games(run)] == [1, 2, *range(4, 13)]
    assert any(text.startswith("the game of round 3 is damaged") for text in run.problems)
    assert len(run.problems) == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"selected": [0, 1, 10**12]},
        {"outcome": {"local_epochs": [1, 1, -4]}},
        {"cost": {"bytes_up": 10**400}},
        {"outcome": {"epochs_total": -1}},
    ],
)
def test_a_round_whose_numbers_cannot_be_drawn_is_left_out_and_named(tmp_path, damage):
    path = made_run(tmp_path / "run")

    def change(table):
        return with_changes(table, damage) if table["round"] == 5 else table

    rewrite_rounds(path, change)
    document = read_document(path)
    assert "Rounds.jsonl" in document.notices[0]
    assert "5" in document.notices[0]
    drawn = charts_of(document)["accuracy"].views[0].traces[-1]["x"]
    assert drawn == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12]


def test_a_table_without_newer_metrics_is_read(tmp_path):
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], ["iid"], seeds=2)
    assert "equal-work" in tables_of(read_document(path))
    table = json.loads((path / "table.json").read_text())
    for line in table["rows"]:
        for part in ("mean", "std", "values"):
            for name in ("equal_work_accuracy", "equal_work_accuracy_variance", "worst_10"):
                del line[part][name]
            line[part]["of_a_package_that_is_gone"] = line[part]["accuracy"]
    (path / "table.json").write_text(signed(table))
    document = read_document(path)
    assert list(document.notices) == []
    assert "table-mnist" in tables_of(document)
    assert "equal-work" not in tables_of(document)


def test_a_comparison_without_any_score_is_shown_without_it(tmp_path):
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], ["iid"], seeds=2)
    for folder in path.glob("runs/*/*/*/*"):
        rewrite_rounds(folder, lambda table: table | {"evaluation": None})
    (path / "table.json").unlink()
    document = read_document(path)
    assert [line[1] for line in tables_of(document)["table-mnist"].rows] == ["-", "-"]
    assert not any(name.startswith(("curve", "plane", "tails")) for name in charts_of(document))


def test_what_is_not_a_number_is_not_drawn(tmp_path):
    path = made_run(tmp_path / "run", trouble=False)

    def forget(table):
        metrics = table["evaluation"]["metrics"] | {"accuracy": None}
        return table | {
            "evaluation": {"metrics": metrics, "unscored": {}},
            "game": {**table["game"], "price": None},
        }

    rewrite_rounds(path, forget)
    document = read_document(path)
    assert "Infinity" not in as_json(document)
    assert "NaN" not in as_json(document)
    assert "accuracy" not in [label for label, _, _ in document.facts.facts]
    assert set(charts_of(document)["price"].views[0].traces[0]["y"]) == {None}


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
    with pytest.raises(MissingExtraError, match=r"constraints.txt '\.\[report\]'"):
        write_report(made_run(tmp_path / "made"))
    small = ["--rounds", "1", "--model", "logistic", "--train-samples", "100"]
    assert main(["run", *small, "--out", str(tmp_path / "run"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["finished"] is True
    assert "no report: an HTML report needs the extra report" in said.err
    assert not (tmp_path / "run" / "report.html").exists()
    pages.plotly.cache_clear()


def test_long_runs_are_thinned_but_no_failure_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("flamma.reports.document.MAX_POINTS", 30)
    monkeypatch.setattr("flamma.reports.run_charts._SHOWN_ROUNDS", 20)
    charts = charts_of(read_document(made_run(tmp_path / "run", made_config(rounds=50))))
    accuracy = charts["accuracy"].views[0].traces[-1]
    assert len(accuracy["x"]) == 30
    assert (accuracy["x"][0], accuracy["x"][-1]) == (1, 50)
    failed = charts["failures"].views[0].traces[0]
    assert len(failed["x"]) == 17
    assert sum(y or 0 for y in failed["y"]) == 50 // 4
    assert "every 3 rounds" in charts["failures"].aid
    assert "20 of 50 rounds" in charts["epochs"].aid


def charts_of(document):
    groups = [item for section in document.sections for item in section.items]
    return {chart.name: chart for group in groups for chart in vars(group).get("charts", ())}


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    path = made_run(tmp_path / "run")
    monkeypatch.setattr("flamma.reports.reading.MAX_FILE_BYTES", 2000)
    record = read_run(path)
    assert "rounds.jsonl is larger than 0 MB and is not read" in record.problems
    assert not record.rounds


def test_many_clients_are_shown_as_a_sample_and_that_is_said(tmp_path):
    config = made_config(clients=500, per_round=50, rounds=3)
    charts = charts_of(read_document(made_run(tmp_path / "run", config)))
    assert "Shown are 200 of 500 clients" in charts["epochs"].aid
    assert len(charts["epochs"].views[0].traces[0]["y"]) == 200


def test_the_page_of_a_run_that_waits_for_sites_says_so(tmp_path):
    path = made_run(tmp_path / "run", done=4)
    SiteStates(5, 3, 2, {"site1": "not <connected>", "site2": "not connected"}, 1e9).write(path)
    said = read_document(path).progress.text
    assert said.startswith("4 of 12 rounds are finished; round 5 waits: 1 of 3 sites is connected")
    SiteStates(5, 3, 2, {"site1": "not connected"}).write(path)
    assert read_document(path).progress.text == "4 of 12 rounds are finished"
    (path / "sites.json").write_text("[]")
    assert read_document(path).progress.text == "4 of 12 rounds are finished"


@pytest.mark.parametrize("lost", ["first", "middle", "last"])
def test_a_comparison_with_a_damaged_run_is_drawn_from_what_is_whole(tmp_path, lost):
    made_comparison(tmp_path, ["fedavg", "flamma"], ["iid"], seeds=2)
    folders = sorted(tmp_path.glob("runs/*/*/fedavg/seed-*"))
    for shift, folder in enumerate(folders):  # each has lost another round
        lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        place = {"first": 0, "middle": 5, "last": len(lines) - 2}[lost] + shift
        lines[place] = lines[place][:40] + "\n"
        (folder / "rounds.jsonl").write_text("".join(lines))
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--out", str(page)]) == 0
    document = read_document(tmp_path)
    for seed in (0, 1):
        assert any(f"iid fedavg seed-{seed}: rounds.jsonl, line" in n for n in document.notices)
    assert page.stat().st_size > 10_000
    [curve] = [
        found
        for found in curves(read_comparison(tmp_path), "mnist", "iid", "accuracy")
        if found.strategy == "fedavg"
    ]
    records = [{r.round: r for r in read_run(folder).rounds} for folder in folders]
    assert curve.rounds == sorted(records[0].keys() & records[1].keys())
    assert len(curve.rounds) == len(records[0]) - 1
    for own, values in zip(records, curve.values.tolist(), strict=True):
        assert values == [own[number].metric("accuracy") for number in curve.rounds]
