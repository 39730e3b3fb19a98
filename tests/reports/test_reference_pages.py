"""The pages of metrics and of the run directory tell everything that the code has."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from documented import ROOT
from documented_metrics import BLOCK, PAGE, metrics_table, own_metrics, page_with
from flamma.game import Certificate
from flamma.metrics import METRICS, RunMetric
from flamma.records import Evaluation, RoundGame, RoundRecord


def test_the_table_of_metrics_is_that_of_the_code():
    assert PAGE.read_text(encoding="utf-8") == page_with(metrics_table()), (
        "run `python tests/documented_metrics.py`"
    )


@pytest.mark.parametrize("name", own_metrics())
def test_every_metric_has_a_definition(name):
    rest = BLOCK.sub("", PAGE.read_text(encoding="utf-8"))
    first_cells = re.findall(r"^\| (.+?) \|", rest, flags=re.MULTILINE)
    assert any(f"`{name}`" in cell for cell in first_cells)


def test_an_added_metric_changes_the_page():
    METRICS.add("new_metric", RunMetric(label="new", measure=lambda records, clients: 0.0))
    try:
        assert "`new_metric`" in page_with(metrics_table())
    finally:
        METRICS.discard("new_metric")


@pytest.mark.parametrize("kind", [RoundRecord, Evaluation, RoundGame, Certificate])
def test_every_part_of_a_record_is_told(kind):
    page = (ROOT / "docs" / "reference" / "run-directory.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
    assert {field.name for field in fields(kind)} <= told
