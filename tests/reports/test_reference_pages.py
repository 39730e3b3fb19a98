"""The pages of metrics and of the run directory tell everything that the code has."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from documented import ROOT
from flamma.game import Certificate
from flamma.metrics import METRICS
from flamma.records import (
    CostRecord,
    Evaluation,
    GameRecord,
    OfferRecord,
    Outcomes,
    RoundRecord,
)

PAGE = ROOT / "docs" / "reference" / "metrics.md"


@pytest.mark.parametrize("name", list(METRICS))
def test_every_metric_has_a_definition_beside_its_row_in_the_generated_table(name):
    text = PAGE.read_text(encoding="utf-8")
    rest = re.sub(r"<!-- generated: metrics -->.*?<!-- end -->", "", text, flags=re.DOTALL)
    first_cells = re.findall(r"^\| (.+?) \|", rest, flags=re.MULTILINE)
    assert any(f"`{name}`" in cell for cell in first_cells)


PARTS = (RoundRecord, OfferRecord, Outcomes, GameRecord, CostRecord, Evaluation, Certificate)


@pytest.mark.parametrize("kind", PARTS)
def test_every_part_of_a_record_is_told(kind):
    page = (ROOT / "docs" / "reference" / "run-directory.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
    assert {field.name for field in fields(kind)} <= told
