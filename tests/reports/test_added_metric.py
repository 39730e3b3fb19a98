"""A metric that somebody adds appears on both pages and in the pictures, without a change there."""

from __future__ import annotations

import numpy as np
import pytest

from flamma.metrics import METRICS, RoundMetric, ScoreMetric
from flamma.reports.document import read_document, write_report
from flamma.reports.pictures import _draw_dataset, save_curves
from flamma.reports.reading import read_comparison, read_run
from made_runs import made_comparison, made_run


@pytest.fixture
def median():
    """A metric of scores, shown everywhere by default."""
    METRICS.add(
        "median_accuracy",
        ScoreMetric(
            label="median accuracy",
            unit="%",
            better="higher",
            score=lambda scores: float(np.median(scores.accuracy)),
        ),
    )
    yield "median_accuracy"
    METRICS.discard("median_accuracy")


def items(document, kind):
    found = [item for section in document.sections for item in section.items]
    return [item for item in found if item.kind == kind]


def chart_named(document, name):
    charts = [chart for group in items(document, "charts") for chart in group.charts]
    return next(chart for chart in charts if chart.name == name)


def test_it_is_a_fact_and_a_curve_of_the_run_page(tmp_path, median):
    path = made_run(tmp_path / "run")
    run, document = read_run(path), read_document(path)
    facts = {label: value for label, value, _ in document.facts.facts}
    assert facts["median accuracy"] == f"{run.of_run(median):.1f} %"
    chart = chart_named(document, median)
    assert chart.title == "Median accuracy"
    assert "Higher is better." in chart.aid
    [trace] = chart.views[0].traces
    assert trace["y"] == pytest.approx([r.metric(median) for r in run.rounds], rel=1e-7)


def test_it_is_a_column_and_a_curve_of_the_comparison_page(tmp_path, median, opened):
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], seeds=2)
    document = read_document(path)
    table = next(item for item in items(document, "table") if item.name == "table-mnist")
    assert table.header[3] == "Median accuracy (iid)"
    rows = read_comparison(path).comparison
    told = [line[3].value for line in table.rows]
    assert told == [rows.row("mnist", "iid", s).mean[median] for s in ("fedavg", "flamma")]
    assert "highest median accuracy: mnist, iid" in [label for label, _, _ in document.facts.facts]
    chart = chart_named(document, f"curve-mnist-iid-{median}")
    assert {"FedAvg", "FLamma"} <= {trace["name"] for trace in chart.views[0].traces}
    work = chart_named(document, "work-mnist-iid")
    assert "median accuracy by epochs" in [view.label for view in work.views]
    with opened(write_report(path)) as page:
        plot = f"[data-chart='curve-mnist-iid-{median}'] .plot .scatterlayer .trace"
        assert page.locator(plot).count() > 0
        assert "Median accuracy (shards)" in page.inner_text("[data-table=table-mnist] thead")


def test_it_is_a_row_of_the_picture(tmp_path, median):
    path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], seeds=2)
    view = read_comparison(path)
    figure = _draw_dataset(view, "mnist")
    labels = [axes.get_ylabel() for axes in figure.axes[::2]]
    assert labels == ["accuracy, %", "variance, %²", "median accuracy, %"]
    [picture] = save_curves(path, view.comparison)
    assert picture.stat().st_size > 1000


def test_one_that_is_not_shown_as_a_curve_or_in_tables_is_a_further_column(tmp_path):
    METRICS.add(
        "slowest",
        RoundMetric(
            label="slowest round",
            unit="s",
            better="lower",
            shown=("page",),
            read=lambda record: record.cost.seconds,
            over_rounds="max",
        ),
    )
    try:
        path = made_comparison(tmp_path / "made", ["fedavg", "flamma"], ["iid"], seeds=2)
        document = read_document(path)
    finally:
        METRICS.discard("slowest")
    tables = {table.name: table for table in items(document, "table")}
    assert "Slowest round (iid)" not in tables["table-mnist"].header
    column = tables["further-mnist"].header.index("Slowest round, s")
    assert [line[column].value for line in tables["further-mnist"].rows] == [0.2, 0.2]


def test_one_that_fails_is_left_out_and_named(tmp_path):
    def broken(record):
        raise ZeroDivisionError("no clients")

    path = made_run(tmp_path / "run")
    METRICS.add("broken", RoundMetric(label="broken", read=broken, over_rounds="max"))
    try:
        document = read_document(path)
    finally:
        METRICS.discard("broken")
    assert list(document.notices) == ["The metric broken failed (no clients) and is left out."]
    assert "broken" not in [label for label, _, _ in document.facts.facts]
    assert chart_named(document, "accuracy").views[0].traces
