"""Results as people look at them: a line, a table in a notebook, a frame, a picture, a report."""

from __future__ import annotations

import gc
import io
import os
import re
import sys

import pytest

import flamma
from flamma.cli import main
from flamma.errors import MissingExtraError, RunError
from flamma.experiments.comparison import Comparison, Row, averaged_rounds, parse_table
from flamma.experiments.progress_bar import ProgressBar, in_notebook, wants_bar
from flamma.experiments.result import ScratchFolder, _html_table, sparkline

SMALL = {"rounds": 3, "model": "logistic", "data__train_samples": 300, "clients": 4}
MOST_HTML = 4000


@pytest.fixture(scope="module")
def run():
    return flamma.run(strategy="fedavg", **SMALL)


@pytest.fixture(scope="module")
def comparison():
    return flamma.compare(strategies=["fedavg", "flamma"], splits=["iid"], seeds=2, **SMALL)


@pytest.fixture(scope="module")
def audited():
    return flamma.audit(
        strategy="flamma",
        seeds=1,
        deviations=["free-ride"],
        clients=[0, 1],
        processes=1,
        **{k: v for k, v in SMALL.items() if k != "clients"},
    )


def test_a_run_is_one_line_and_a_small_table(run):
    assert repr(run) == ("<Run FedAvg on digits (shards), 4 clients, 3 of 3 rounds, not kept>")
    shown = run._repr_html_()
    assert len(shown) < MOST_HTML
    assert shown.count("<svg") == 2  # accuracy and variance
    last = run.history[-1].metric("accuracy")
    assert f"<td>{last:.2f}</td>" in shown


def test_a_run_is_a_frame_of_rounds(run):
    frame = run.frame()
    assert frame["round"].tolist() == [1, 2, 3]
    assert frame["accuracy"].tolist() == [record.metric("accuracy") for record in run.history]
    assert frame["selected"].tolist() == [3, 3, 3]


def test_a_comparison_prints_the_table_of_the_command(comparison, capsys):
    assert str(comparison) == repr(comparison)
    lines = str(comparison).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[1].split() == [
        "Algorithm",
        "Accuracy",
        "(iid)",
        "Variance",
        "(iid)",
        "Local",
        "epochs",
    ]
    assert [line.split()[0] for line in lines[3:5]] == ["FedAvg", "FLamma"]
    main(["show", str(comparison.path)])
    assert capsys.readouterr().out == f"{comparison}\n"


def test_a_comparison_is_a_table_and_frames(comparison):
    shown = comparison._repr_html_()
    assert len(shown) < MOST_HTML
    assert shown.count("<svg") == 2
    assert "FLamma" in shown
    frame = comparison.frame()
    assert frame["seed"].tolist() == [0, 1, 0, 1]
    assert frame["accuracy"].tolist() == [v for r in comparison.rows for v in r.values["accuracy"]]
    assert len(comparison.history) == 2 * 2 * 3
    assert {row["strategy"] for row in comparison.history} == {"fedavg", "flamma"}


@pytest.mark.parametrize(
    ("rounds", "every", "text", "title"),
    [
        (3, 1, "the last 3 evaluated rounds", "mean of last 3"),
        (1, 1, "the last evaluated round", "mean of last 1"),
        (12, 1, "the last 10 rounds", "mean of last 10"),
        (12, 4, "the last 3 evaluated rounds", "mean of last 3 evaluated"),
    ],
)
def test_means_say_over_how_many_rounds_they_are(tmp_path, rounds, every, text, title, capsys):
    small = SMALL | {"rounds": rounds, "evaluation__every": every, "data__train_samples": 200}
    found = flamma.compare(
        strategies=["fedavg"], splits=["iid"], seeds=1, out=tmp_path, processes=1, **small
    )
    [run] = found.runs["digits", "iid", "fedavg"].values()
    accuracies = [value for value in run.of_rounds("accuracy")[-10:] if value is not None]
    assert found.rows[0].rounds_averaged == (len(accuracies),)
    assert f"Mean over {text}; accuracy in %" in " ".join(str(found).split())
    assert f"Mean over {text}; accuracy in %" in (tmp_path / "table.md").read_text("utf-8")
    assert parse_table((tmp_path / "table.json").read_text("utf-8")).rows == found.rows
    page = found.report().read_text("utf-8")
    assert f"both are means over {text}" in page
    assert title in run._repr_html_()
    main(["show", str(run.path)])
    assert f"final  {title}\n" in capsys.readouterr().out
    assert run.summary().as_json()["rounds_averaged"] == len(accuracies)


def test_rows_of_other_numbers_of_rounds_are_named():
    def row(dataset, strategy, *averaged):
        seeds = tuple(range(len(averaged)))
        return Row(dataset, "iid", strategy, seeds, {}, {}, {}, rounds_averaged=averaged)

    ten = [row("digits", name, 10, 10) for name in ("fedavg", "flamma", "qffl")]
    assert averaged_rounds(ten) == "the last 10 rounds"
    assert averaged_rounds([*ten, row("digits", "fedbuff", 4, 6)]) == (
        "the last 10 rounds (FedBuff on digits (iid): the last 4 to 6 evaluated rounds)"
    )
    assert averaged_rounds([*ten, row("mnist", "fedavg", 5), row("mnist", "flamma", 5)]) == (
        "the last 10 rounds (mnist: the last 5 evaluated rounds)"
    )
    assert averaged_rounds([row("digits", "fedavg")]) == "the evaluated ones of the last 10 rounds"


def test_an_audit_is_a_sentence_and_a_table(audited):
    assert audited.cases[0].sentence in repr(audited)
    shown = audited._repr_html_()
    assert "free-ride" in shown
    assert len(shown) < MOST_HTML
    assert audited.frame()["client"].tolist() == [0, 1]


def test_what_is_shown_is_escaped_and_cut():
    shown = _html_table("a<b", ["x"], [["<script>"], *[["y"]] * 50])
    assert "<script>" not in shown
    assert "and 11 more" in shown


def test_a_sparkline_goes_up_with_its_values():
    points = re.search('points="([^"]+)"', sparkline([1.0, None, 2.0, 4.0]))[1].split()
    heights = [float(point.split(",")[1]) for point in points]
    assert heights == [22.0, pytest.approx(22 - 20 / 3, abs=0.05), 2.0]
    assert len(sparkline([float(k % 7) for k in range(10_000)])) < 2000
    assert "nan" not in sparkline([3.0, 3.0])


def test_pictures_are_the_report_s_own(run, comparison, audited):
    [accuracy, _] = run.plot().axes
    drawn = accuracy.lines[0].get_ydata().tolist()
    assert drawn == [record.metric("accuracy") for record in run.history]
    assert len(comparison.plot().axes[0].lines) == 2
    [gains] = audited.plot().axes
    assert [text.get_text() for text in gains.get_yticklabels()] == ["free-ride"]


def test_a_report_of_a_result_that_is_not_kept_is_written_here(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run.report().resolve() == tmp_path / "report.html"
    assert run.report("mine.html").exists()
    kept = flamma.run(out=tmp_path / "kept", **SMALL)
    assert kept.report() == tmp_path / "kept" / "report.html"


def test_a_table_without_a_directory_has_no_report():
    table = Comparison("made", [], [])
    with pytest.raises(RunError, match="out="):
        table.report()
    assert table.runs == {}


def test_a_frame_without_pandas_is_one_sentence(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"constraints.txt '\.\[pandas\]'"):
        run.frame()


def test_a_directory_that_is_not_kept_goes_with_the_last_that_refers_to_it():
    comparison = flamma.compare(strategies=["fedavg"], splits=["iid"], seeds=1, **SMALL)
    path = comparison.path
    [by_seed] = comparison.runs.values()
    run = by_seed[0]
    del comparison, by_seed
    gc.collect()
    assert path.exists()  # a run of it is still there
    del run
    gc.collect()
    assert not path.exists()


def test_a_forked_process_leaves_the_directory_of_its_parent():
    scratch = ScratchFolder()
    child = os.fork()
    if not child:
        scratch._finalizer()
        os._exit(0)
    os.waitpid(child, 0)
    assert scratch.path.exists()
    scratch._finalizer()
    assert not scratch.path.exists()


def test_a_bar_tells_how_much_is_done(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(True, 4, "rounds") as bar:
        bar.update(1)
        bar.update(4, "accuracy 50.0%")
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("[######..................] 1/4 rounds")
    assert lines[1].startswith("[########################] 4/4 rounds  accuracy 50.0%")


def test_a_bar_is_shown_in_terminals_and_on_demand(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert not wants_bar(None)
    assert wants_bar(True)
    stream.isatty = lambda: True
    assert wants_bar(None)
    assert not wants_bar(False)
    flamma.run(progress=False, **SMALL)
    assert not stream.getvalue()


def test_a_notebook_is_known_by_its_shell(monkeypatch):
    class ZMQInteractiveShell:
        pass

    class IPython:
        get_ipython = ZMQInteractiveShell

    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", IPython)
    assert in_notebook()
