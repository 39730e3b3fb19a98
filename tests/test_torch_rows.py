"""What PyTorch trains scores as it did, within half a percentage point, on every machine."""

import json

import pytest

from torch_rows import FILE, ROWS

KEPT = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_row_has_a_score():
    assert KEPT.keys() == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_a_row_scores_as_it_did(name, tmp_path):
    assert ROWS[name](tmp_path / "run")["score"] == pytest.approx(KEPT[name], abs=0.5)
