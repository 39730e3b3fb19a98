"""The generated parts of the documentation are those of the code."""

from __future__ import annotations

import importlib.util

import pytest

from documented import PAGES, ROOT
from flamma.experiments.parts import PARTS, own_options
from flamma.metrics import METRICS, RunMetric

SPEC = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)
GENERATED = [page for page in PAGES if "<!-- generated:" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_a_page_is_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert generate.rewritten(text) == text, "run python docs/generate.py"


def test_an_added_metric_changes_its_page():
    METRICS.add("new_metric", RunMetric(label="new", measure=lambda records, clients: 0.0))
    try:
        assert "`new_metric`" in generate.generated("metrics")
    finally:
        METRICS.discard("new_metric")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_option_of_ours_is_explained_and_on_the_configuration_page(part):
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    for name, entry in part.entries():
        if part.chosen_by and not getattr(entry, "__module__", "flamma").startswith("flamma"):
            continue
        for option in own_options(entry).values():
            assert option.help, f"{part.name} {name}: {option.name} has no help in the docstring"
            assert f"| `{option.name}` |" in page or f"`{option.name}`" in page
