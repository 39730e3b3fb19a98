"""The generated parts of the documentation are those of the code."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re

import pytest
from PIL import Image

from documented import PAGES, ROOT
from flamma.experiments.comparison import read_published
from flamma.experiments.parts import PARTS, own_options
from flamma.metrics import METRICS, RunMetric
from flamma.strategies import STRATEGIES


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate, pictures = script("generate"), script("pictures")
GENERATED = [page for page in PAGES if "<!-- generated:" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_a_page_is_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert generate.rewritten(text) == text, "run python docs/generate.py"


@pytest.mark.parametrize("name", generate.SCHEMAS)
def test_a_schema_is_up_to_date(name):
    text = generate.SCHEMA_FILES[name].read_text(encoding="utf-8")
    assert generate.schema_text(generate.SCHEMAS[name]()) == text, "run python docs/generate.py"


def test_the_picture_of_the_front_page_is_drawn_from_its_table():
    table = pictures.TABLE.read_text(encoding="utf-8")
    drawn = pictures.PICTURE.read_text(encoding="utf-8")
    assert pictures.picture(table) == drawn, "run python docs/pictures.py"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!-- generated: front -->" in readme
    assert "](docs/results/first.svg)" in readme


def test_the_front_page_is_short():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = readme.splitlines()
    assert f"{len(list(STRATEGIES))} algorithms" in readme
    assert len(readme.split()) <= 900
    assert next(n for n, line in enumerate(lines, 1) if line.startswith("![")) <= 10
    assert next(n for n, line in enumerate(lines, 1) if line.startswith(">>> ")) <= 30
    assert readme.index("*variance* is that of") < readme.index("Variance (")
    assert readme.index("$ . .venv/bin/activate") < readme.index("$ flamma ")
    assert readme.index("'.[flower]'") < readme.index("flamma deploy init")
    prose = re.sub(r"```.*?```|<!--.*?-->|`[^`]*`|\]\([^)]*\)", " ", readme, flags=re.DOTALL)
    prose = re.sub(r"\b20\d\d\b|arXiv:[\d.]+|Apache-2.0|x86-64", " ", prose)
    figures = re.findall(r"\d[\d.,]*(?: ± [\d.]+)?", prose)
    assert len(figures) <= 25, figures


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs" / "screenshots").glob("*.png")), ids=lambda path: path.stem
)
def test_screenshots_show_the_published_table(picture):
    published = (ROOT / "docs" / "results" / "quick.json").read_bytes()
    told = Image.open(picture).text.get("table")
    assert told == hashlib.sha256(published).hexdigest(), "run python docs/screenshots.py OUT/QUICK"


def test_the_dots_of_the_picture_have_the_means_of_the_table():
    table = json.loads(pictures.TABLE.read_text(encoding="utf-8"))
    assert len(read_published(pictures.TABLE).rows) == len(table["rows"])  # whole, by its checksum
    for row in table["rows"]:
        assert len(row["seeds"]) == len(row["client_accuracies"]) == 5
        for clients, accuracy in zip(
            row["client_accuracies"], row["values"]["accuracy"], strict=True
        ):
            assert sum(clients) / len(clients) == pytest.approx(accuracy, abs=0.005)
    accuracies = re.findall(r"± \d+\.\d [|] (\d+\.\d) ±", generate.generated("first"))
    assert accuracies == [f"{row['mean']['accuracy']:.1f}" for row in table["rows"]]


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
