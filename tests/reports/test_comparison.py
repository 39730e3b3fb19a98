"""The page of a comparison of thirty strategies, in a real browser: grouped by family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from browsing import until
from flamma.experiments.comparison import Comparison, Row
from flamma.experiments.statistics import AcrossSettings
from flamma.reports.comparison import (
    _draw_critical_difference,
    _label_places,
    _statistics_section,
    save_diagrams,
)
from flamma.reports.document import as_json, read_document, write_report
from flamma.reports.pictures import _REFERENCES, _draw_dataset, multiples
from flamma.reports.reading import ComparisonView, pareto, read_comparison
from flamma.reports.style import looks_of
from flamma.strategies import FAMILIES, in_family, label_of
from made_runs import made_comparison

STRATEGIES = [name for family in FAMILIES for name in in_family(family)][:28]
STRATEGIES += ["ditto", "local"]
LABELS = {name: label_of(name) for name in STRATEGIES}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    place = tmp_path_factory.mktemp("reports") / "many"
    return made_comparison(place, STRATEGIES, splits=("dirichlet",), seeds=2)


@pytest.fixture(scope="module")
def view(many):
    return read_comparison(many)


@pytest.fixture(scope="module")
def page(many, opened):
    with opened(write_report(many)) as page:
        yield page


@pytest.fixture
def shown(page):
    """The page with every family shown, before and after."""
    yield page
    for button in page.query_selector_all(".groups button[aria-pressed=false]"):
        button.click()
    page.wait_for_selector("html[data-ready=yes]")


def family_button(page, family):
    return page.locator(".groups").get_by_text(family, exact=True)


def visible_rows(page, table):
    rows = f"[data-table={table}] tbody:not([hidden]) tr:not(.group) th .text"
    return page.eval_on_selector_all(rows, "nodes => nodes.map(n => n.textContent)")


def test_the_table_has_a_heading_for_every_family(view, page):
    assert len(view.strategies) == 30
    bodies = page.eval_on_selector_all(
        "[data-table=table-mnist] tbody",
        "bodies => bodies.map(b => [...b.querySelectorAll('th .text')].map(n => n.textContent))",
    )
    assert [body[1:] for body in bodies] == [
        [LABELS[name] for name in members] for members in view.families.values()
    ]
    headings = [body[0] for body in bodies]
    assert headings[1:3] == ["FLamma: the Stackelberg game", "Fairness: fairness by weights"]
    header = page.eval_on_selector_all(
        "[data-table=table-mnist] thead th", "nodes => nodes.map(n => n.textContent)"
    )
    assert header == [
        *("Algorithm", "Accuracy", "Variance", "Worst 10%", "Share better off", "Local epochs"),
        *("MB up", "MB down", "Seconds"),
    ]
    cells = page.locator("[data-table=table-mnist] tbody tr:not(.group) >> nth=0")
    row = view.comparison.row("mnist", "dirichlet", view.strategies[0])
    assert f"{row.mean['worst_10']:.2f} ± {row.std['worst_10']:.2f}" in cells.inner_text()
    assert cells.inner_text().split("\t")[-3:] == ["0.036", "0.036", "2.4"]


def test_a_family_is_hidden_and_shown_by_keyboard_on_the_whole_page(view, shown):
    page, fair = shown, [LABELS[name] for name in view.families["fairness"]]
    names = "document.querySelector('[data-chart^=plane] .plot').data.filter(t => t.visible)"
    family_button(page, "fairness").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("html[data-ready=yes]")
    assert family_button(page, "fairness").get_attribute("aria-pressed") == "false"
    for table in ("table-mnist", "equal-work", "further-mnist"):
        left = visible_rows(page, table)
        assert left
        assert not {*fair, f"{fair[0]} (dirichlet)"} & {*left}
    assert page.locator("[data-chart$=-fairness]:visible").count() == 0
    assert page.locator("[data-chart$=-selection]:visible").count() > 3
    assert not {*fair} & {*page.evaluate(f"{names}.map(t => t.name)")}
    tails = page.text_content("[data-chart^=tails] .plot")
    assert fair[0] not in tails
    assert "FedProx" in tails
    page.keyboard.press("Space")
    page.wait_for_selector("html[data-ready=yes]")
    assert {*fair} <= {*visible_rows(page, "table-mnist")}
    assert {*fair} <= {*page.evaluate(f"{names}.map(t => t.name)")}
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "optimisation"


def test_a_picture_that_was_hidden_is_drawn_as_large_as_its_neighbours(shown):
    page = shown
    width = "k => document.querySelectorAll('[data-chart^=curve] .plot .main-svg')[k]?.clientWidth"
    page.evaluate("Page.render(JSON.parse(document.getElementById('data').textContent))")
    before = page.evaluate(width, 0)
    for family in ("reference", "reference"):
        family_button(page, family).click()
        page.wait_for_selector("html[data-ready=yes]")
    assert before
    assert page.evaluate(width, 0) == before


def test_what_is_hidden_stays_hidden_when_new_data_come(many, view, shown):
    page = shown
    family_button(page, "selection").click()
    document = as_json(read_document(many))
    other = json.loads(document) | {"sections": json.loads(document)["sections"][:2]}
    for text in (document, json.dumps(other), document):  # the same shape, and other ones
        page.evaluate("text => Page.render(JSON.parse(text))", text)
        page.wait_for_selector("html[data-ready=yes]")
        assert family_button(page, "selection").get_attribute("aria-pressed") == "false"
        left = {*visible_rows(page, "table-mnist")}
        assert not {LABELS[name] for name in view.families["selection"]} & left
        assert page.locator("[data-chart$=-selection]:visible").count() == 0


def test_all_or_none_are_shown_by_one_button(shown):
    page = shown
    family_button(page, "all / none").click()
    assert visible_rows(page, "table-mnist") == []
    family_button(page, "all / none").click()
    assert len(visible_rows(page, "table-mnist")) == 30


def test_every_family_has_its_picture_with_the_references(view, page):
    for kind in ("curve-mnist-dirichlet-accuracy", "work-mnist-dirichlet"):
        for own in multiples(view):
            drawn = page.evaluate(
                "name => document.querySelector(`[data-chart='${name}'] .plot`).data.map("
                "t => [t.name, t.line.width])",
                f"{kind}-{own.family}",
            )
            assert {name for name, _ in drawn} == {
                LABELS[name] for name in (*own.members, *own.references)
            }
            thin = {name for name, width in drawn if width < 2}
            assert thin == {LABELS[name] for name in own.references}
    assert {name for own in multiples(view) for name in own.references} == {*_REFERENCES}


def test_a_strategy_has_one_colour_everywhere_and_differs_from_others_of_its_family(view, page):
    drawn = page.evaluate(
        "[...document.querySelectorAll('[data-chart] .plot')].flatMap(p => (p.data ?? [])"
        ".map(t => [t.name, t.marker?.color ?? t.line?.color, t.line?.dash]))"
    )
    for label in LABELS.values():
        assert len({colour for name, colour, _ in drawn if name == label}) == 1, label
    looks = looks_of(view.strategies)
    assert len({*looks.values()}) == len(view.strategies)
    assert {name: colour for name, colour, _ in drawn if name in LABELS.values()} == {
        LABELS[name]: look.light for name, look in looks.items()
    }


def test_pictures_have_the_colours_of_the_page(view):
    drawn = {
        line.get_label(): line.get_color()
        for axes in _draw_dataset(view, "mnist").axes
        for line in axes.get_lines()
    }
    looks = looks_of(view.strategies)
    assert drawn == {LABELS[name]: look.light for name, look in looks.items()}


def test_the_plane_names_the_front_and_the_chosen_family(view, page):
    card = page.locator("[data-chart^=plane]")
    front = {LABELS[row.strategy] for row in pareto(view.rows("mnist", "dirichlet"))}
    named = "[...document.querySelectorAll('[data-chart^=plane] .textpoint')]"
    named += ".map(n => n.textContent)"
    assert {*page.evaluate(named)} == front
    family = {LABELS[name] for name in view.families["optimisation"]}
    card.locator(".views").get_by_text("Optimisation").click()
    until(page, f"{named}.length === {len(front | family)}")
    assert {*page.evaluate(named)} == front | family
    crosses = page.evaluate(
        "document.querySelector('[data-chart^=plane] .plot').data.filter(t => t.error_x)"
        ".map(t => t.name)"
    )
    assert {*crosses} == family
    card.locator(".views").get_by_text("Front").click()


def test_names_in_the_plane_stand_apart():
    neighbours = [
        Row("d", "s", name, (0,), {"accuracy": x, "accuracy_variance": 10.0}, {}, {})
        for name, x in (("a", 0.0), ("b", 40.0), ("c", 40.5), ("d", 41.0), ("e", 100.0))
    ]
    found = _label_places(neighbours, neighbours)
    assert len({found["b"], found["c"], found["d"]}) == 3
    assert (found["a"], found["e"]) == ("middle right", "middle left")  # where the picture ends


def test_it_can_be_read_on_a_phone(shown):
    page = shown
    page.set_viewport_size({"width": 400, "height": 800})
    until(page, "document.documentElement.scrollWidth <= 400")
    until(page, "[...document.querySelectorAll('.plot svg')].every(s => s.clientWidth <= 400)")
    scroll = page.locator("[data-table=table-mnist] .scroll")
    scroll.evaluate("node => { node.scrollLeft = 400; }")
    box = page.locator("[data-table=table-mnist] tbody tr:not(.group) th >> nth=0").bounding_box()
    assert 0 <= box["x"] < 60  # the names stay in sight
    page.set_viewport_size({"width": 1280, "height": 900})


def test_the_picture_has_a_row_for_every_family(view):
    figure = _draw_dataset(view, "mnist")
    assert len(figure.axes) == 2 * len(view.families)
    own = {line.get_label() for line in figure.axes[4].get_lines()}
    third = multiples(view)[2]
    assert own == {LABELS[name] for name in (*third.members, *third.references)}
    colours = {
        (line.get_label(), line.get_color()) for axes in figure.axes for line in axes.get_lines()
    }
    assert len(colours) == 30
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert low == 0
        assert high >= max(line.get_ydata().max() for line in axes.get_lines())


def test_twelve_strategies_are_shown_as_before(tmp_path, opened):
    path = made_comparison(tmp_path / "few", STRATEGIES[:12], splits=("iid",), seeds=2)
    with opened(write_report(path)) as page:
        assert page.locator(".groups").count() == 0
        assert page.locator("[data-table=table-mnist] tr.group").count() == 0
        assert page.locator("[data-chart^=curve]").count() == 2


def test_the_page_of_many_is_small_enough_to_send(many):
    assert write_report(many).stat().st_size < 6_000_000


# The diagram of critical differences and the charts over settings.

RANKS = {"flamma": 1.25, "fedavg": 2.0, "qffl": 3.75, "afl": 3.9}
FOUND = AcrossSettings("accuracy", (("s", "iid"),), RANKS, 0.01, 1.0, "fedavg", ())


def comparison(settings: int) -> Comparison:
    rows = []
    for place in range(settings):
        for k, name in enumerate(("fedavg", "flamma")):
            values = {"accuracy": [70.0 + k, 71.0 + k], "accuracy_variance": [9.0, 9.0 + k]}
            mean = {metric: sum(own) / 2 for metric, own in values.items()}
            rows.append(Row(f"s{place}", "iid", name, (0, 1), mean, dict(mean), values))
    return Comparison("many", rows, [])


def test_the_diagram_hangs_every_strategy_at_its_rank_and_joins_groups():
    [axes] = _draw_critical_difference(FOUND).axes
    texts = {text.get_text().strip() for text in axes.texts}
    assert {"FLamma (1.2)", "FedAvg (2.0)", "q-FFL (3.8)", "AFL (3.9)"} <= texts
    assert "accuracy: critical difference 1.00" in texts
    thick = [line for line in axes.lines if line.get_linewidth() == 3]
    assert [line.get_xdata()[0] for line in thick] == [1.25 - 0.05, 3.75 - 0.05]


def test_the_page_has_ranks_and_the_frontier_of_five_settings_or_more(tmp_path):
    view = ComparisonView(Path("x"), comparison(5), {}, [])
    [section] = _statistics_section(view)
    charts, *tables = section.items
    assert [chart.name for chart in charts.charts] == [
        "ranks-accuracy",
        "ranks-accuracy_variance",
        "frontier",
    ]
    assert charts.charts[0].views[0].traces[0]["y"] == ["FLamma"]
    assert [table.rows[0][:2] for table in tables] == [["FLamma", "1.00"], ["FedAvg", "1.00"]]
    assert not _statistics_section(ComparisonView(Path("x"), comparison(4), {}, []))


def test_diagrams_are_drawn_beside_the_tables(tmp_path):
    names = [path.name for path in save_diagrams(tmp_path, comparison(5))]
    assert names == [
        "critical-difference-accuracy.png",
        "critical-difference-accuracy_variance.png",
    ]
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)
