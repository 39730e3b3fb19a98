"""Directories of version 0.1 are refused in one sentence that names the commit that reads them.

``fixtures/version-0.1`` is a real one: 12 rounds of flamma on digits, without its checkpoints.
"""

import json
import shutil
from pathlib import Path

import pytest

import flamma
from flamma.cli import main
from flamma.errors import InputFileError, RunError
from flamma.experiments.comparison import read_published

FIXTURE = Path(__file__).parent / "fixtures" / "version-0.1"


@pytest.fixture
def old(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FIXTURE, "old")
    shutil.copytree(FIXTURE, "comparison/runs/digits/shards/flamma/seed-0")
    return Path("old")


@pytest.mark.parametrize(
    "words",
    [
        ["show", "old"],
        ["report", "old"],
        ["resume", "old"],
        ["export", "old", "--out", "model.safetensors"],
        ["ledger", "old"],
        ["report", "comparison"],
    ],
    ids=" ".join,
)
def test_every_command_refuses_one_in_one_sentence(old, words, capsys):
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert main(words) == 2
    [told] = capsys.readouterr().err.splitlines()
    assert told.endswith("is of version 0.1 of FLamma: commit 5770684 reads it.")
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_python_refuses_one(old):
    for refused in (flamma.Run.load, flamma.resume):
        with pytest.raises(
            RunError, match=r"^old is of version 0\.1 .* commit 5770684 reads it\.$"
        ):
            refused(old)


def test_a_table_of_version_0_1_is_refused(tmp_path):
    row = {"dataset": "digits", "split": "iid", "strategy": "fedavg", "seeds": 3, "values": {}}
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"name": "quick", "rows": [row], "folders": []}))
    with pytest.raises(InputFileError, match=r"version 0\.1 wrote it, and commit 5770684 reads it"):
        read_published(table)
