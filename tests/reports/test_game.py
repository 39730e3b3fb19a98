"""The explorer of a file of clients, in a real browser: its sliders move its charts."""

from __future__ import annotations

import pytest

from browsing import until
from flamma.cli import main
from flamma.game import Game, solve

COSTS = {"hospital": (0.9, 0.05), "clinic": (0.8, 0.1), "practice": (0.6, 0.2)}


@pytest.fixture
def explorer(tmp_path, opened):
    file, page = tmp_path / "clients.csv", tmp_path / "explorer.html"
    rows = [f"{name},{worth},{cost}" for name, (worth, cost) in COSTS.items()]
    file.write_text("\n".join(["name,contribution,cost", *rows]) + "\n")
    words = ["game", "explore", "--clients", str(file), "--round", "20", "--out", str(page)]
    assert main([*words, "--no-open"]) == 0
    with opened(page) as shown:
        yield shown


def drawn(page):
    """Return all numbers of all charts of the explorer."""
    return page.evaluate(
        "[...document.querySelectorAll('[data-explorer] .plot')]"
        ".map(plot => (plot.data ?? []).map(trace => [...(trace.y ?? [])]))"
    )


def test_sliders_move_the_charts_of_a_file(explorer):
    page = explorer

    def value(name):
        return float(page.get_attribute(f"[data-explorer] [data-name={name}]", "data-value"))

    def slide(name, to):
        page.locator(f"[data-explorer] input[name={name}]").evaluate(
            "(node, to) => { node.value = to; node.dispatchEvent(new Event('input')); }", to
        )

    until(page, "document.querySelector('[data-explorer] .plot')?.data?.length > 0")
    worths, costs = zip(*COSTS.values(), strict=True)
    ours = solve(Game(worths, costs, round=20))
    assert value("equilibrium") == pytest.approx(ours.decay_factor, abs=1e-9)
    assert value("server") == pytest.approx(ours.server_utility, abs=1e-9)
    names = page.locator("[data-explorer] select[name=client] option").all_inner_texts()
    assert [name for name in COSTS if any(name in text for text in names)] == list(COSTS)
    before = drawn(page)
    slide("round", 3)
    ours = solve(Game(worths, costs, round=3))
    assert value("equilibrium") == pytest.approx(ours.decay_factor, abs=1e-9)
    page.wait_for_timeout(300)
    after = drawn(page)
    assert after != before
    slide("price", 200)
    page.wait_for_timeout(300)
    assert drawn(page) != after
