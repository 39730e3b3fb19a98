"""What makes pages readable: tables and sliders on a phone, contrast, and what numbers mean."""

from __future__ import annotations

import math

import pytest

from browsing import until
from colours import contrast
from flamma.cli import main
from flamma.experiments.folder import RunFolder
from flamma.experiments.suite import SUITE, Suite
from flamma.metrics import METRICS
from flamma.reports.comparison import comparison_document
from flamma.reports.document import Document, Facts, PageProgress, fact, write_report
from flamma.reports.reading import Pace
from flamma.reports.run import run_document
from made_runs import made_comparison, made_config, made_run

PHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def phone(tmp_path_factory, opened):
    path = tmp_path_factory.mktemp("reports") / "made"
    with opened(
        write_report(made_comparison(path, ["fedavg", "flamma"], seeds=2)), **PHONE
    ) as page:
        yield page


def test_a_wide_table_scrolls_inside_with_a_cue_and_keeps_its_first_column(phone):
    table = phone.locator("[data-table=table-mnist]")
    scroll, cue = table.locator(".scroll"), table.locator(".cue")
    assert scroll.evaluate("node => node.scrollWidth > node.clientWidth")
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    assert cue.is_visible()
    where = [
        table.locator(cell).first.bounding_box()["x"]
        for cell in ("thead th", "tbody th[scope=row]")
    ]
    scroll.evaluate("node => { node.scrollLeft = node.scrollWidth; }")
    until(phone, "!document.querySelector('[data-table=table-mnist] .sideways.after')")
    assert where == [
        table.locator(cell).first.bounding_box()["x"]
        for cell in ("thead th", "tbody th[scope=row]")
    ]
    assert not cue.is_visible()
    assert phone.locator("[data-table=table-mnist] .sideways.before").count() == 1


def test_sliders_stand_under_their_chart_on_a_phone_and_beside_it_elsewhere(phone):
    where = "name => document.querySelector(`input[name=${name}]`).closest('.card').dataset.chart"
    names = ("price", "gamma", "cost")
    assert [phone.evaluate(where, n) for n in names] == ["leader-curve", "leader-curve", "reports"]
    before = phone.input_value("input[name=price]")
    phone.locator("input[name=price]").fill("900")
    phone.set_viewport_size({"width": 1280, "height": 900})
    until(phone, "!document.querySelector('.explorer .controls').hidden")
    assert [phone.evaluate(where, n) for n in names] == [None, None, None]
    assert before != phone.input_value("input[name=price]") == "900"
    phone.set_viewport_size(PHONE["viewport"])


def test_cells_stand_out_from_empty_ones_in_both_themes(phone):
    themes = phone.evaluate("THEMES")
    for name, theme in themes.items():
        for _, colour in theme["scales"]["signed"]:
            assert contrast(colour, theme["empty"]) >= 3, (name, colour)
        for _, colour in theme["scales"]["sequential"]:
            assert contrast(colour, theme["empty"]) >= 1.85, (name, colour)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(phone, scheme):
    phone.emulate_media(color_scheme=scheme)
    phone.wait_for_selector(f"html[data-theme={scheme}][data-ready=yes]")
    colour = "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
    pairs = [("--ink", "--paper"), ("--soft", "--paper"), ("--soft", "--ground")]
    pairs += [("--accent", "--ground"), ("--warn-ink", "--warn"), ("--ink", "--mark")]
    for text, ground in pairs:
        found = [phone.evaluate(colour, name) for name in (text, ground)]
        assert contrast(*found) >= 4.5, (scheme, text, ground)
    assert contrast(*(phone.evaluate(colour, n) for n in ("--accent", "--rule"))) >= 3


@pytest.mark.parametrize(
    ("rounds", "note"),
    [
        ([10.0] * 20 + [80.7], "mean of the last 10 rounds; the last has 80.7\N{NO-BREAK SPACE}%"),
        ([40.0, 60.0], "mean of the 2 rounds; the last has 60.0\N{NO-BREAK SPACE}%"),
        (
            [None, 1.0] * 10,
            "mean of the 5 evaluated ones of the last 10 rounds; "
            "the last has 1.0\N{NO-BREAK SPACE}%",
        ),
        ([None, 7.0, None], "of the last evaluated round"),
    ],
)
def test_a_tile_says_over_which_rounds_it_averages(rounds, note):
    assert fact(METRICS["accuracy"], 58.2, rounds) == ("accuracy", "58.2 %", note)


def test_contributions_are_drawn_on_their_own_range(tmp_path):
    sections = run_document(made_run(tmp_path / "run")).sections
    charts = [
        chart
        for section in sections
        for item in section.items
        for chart in getattr(item, "charts", ())
        if chart.name == "contributions"
    ]
    traces = [trace for view in charts[0].views for trace in view.traces]
    assert len(traces) == 2
    assert not any({"zmin", "zmax"} & {*trace} for trace in traces)


def test_a_comparison_under_way_tells_how_far_it_is_and_misses_nothing(tmp_path):
    suite = Suite("made", 2, ("mnist",), ("iid",), (), ("fedavg", "flamma"), {"rounds": 12})
    for strategy, done in (("fedavg", 12), ("flamma", 3)):
        config = made_config(strategy, data={"split": "iid"})
        made_run(tmp_path / f"runs/mnist/iid/{strategy}/seed-0", config, done=done, trouble=False)
    RunFolder(tmp_path).write(SUITE, suite.as_toml())
    document = comparison_document(tmp_path)
    assert document.progress == PageProgress(15, 48, "15 of 48 rounds of all runs are finished")
    assert list(document.notices) == []
    (tmp_path / SUITE).write_text("seeds = nonsense")
    assert comparison_document(tmp_path).progress == PageProgress(
        15, 24, "15 of 24 rounds of the runs that began are finished"
    )


def test_a_comparison_writes_down_what_it_is_to_run(tmp_path):
    out = tmp_path / "out"
    small = ["--set", "rounds=1", "--set", "data.train_samples=60", "--set", "model.name=logistic"]
    chosen = ["--strategies", "fedavg", "--splits", "iid", "--seeds", "1"]
    assert main(["compare", "--out", str(out), *chosen, *small]) == 0
    assert 'strategies = ["fedavg"]' in (out / SUITE).read_text()
    assert comparison_document(out).progress is None


def test_the_pace_is_that_since_one_began_to_look(monkeypatch):
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr("flamma.reports.reading.time.monotonic", lambda: next(clock))
    pace = Pace()

    def left(done):
        progress = PageProgress(done, 50, "")
        found = pace.timed(Document("run", "", "", [], Facts([]), [], "", progress=progress))
        return found.progress.seconds_left

    assert left(20) is None
    assert math.isclose(left(25), 50.0)  # 25 more at 2 s
    assert left(10) is None  # begun anew
