"""What sites must agree on, and the model that they get: real files, and Flower's own bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from safetensors.numpy import load

from engines.flower.loopback import LoopGrid, identify
from flamma.data.sites import read_declared
from flamma.deploy.hosts import ServerHost
from flamma.deploy.runs import _agreed_file
from flamma.engines.flower import server_app
from flamma.engines.flower.final_messages import _FILE_RECORD, _read_final, pack_final
from flamma.engines.flower.final_model import (
    _FINAL_ABOUT,
    _FINAL_FILE,
    _FINAL_MODELS,
    _RUNS_AT_SITE,
    FinalModel,
    fetch_final_model,
    keep_final_model,
)
from flamma.engines.flower.messages import MessageError, Order
from flamma.engines.flower.server_app import serve
from flamma.engines.flower.site_agreement import Agreement, read_agreement, reported_labels
from flamma.errors import DeployError, RunError
from flamma.experiments.config import make_config
from flamma.experiments.folder import RunFolder
from flamma.experiments.run import Run
from flamma.experiments.trained import trained_weights
from flamma.models.weights import packed

NAMES = ("a", "b", "c")
RUN = {
    "rounds": 1,
    "per_round": 3,
    "data": {"dataset": "own", "clients": 3},
    "model": {"name": "logistic"},
    "strategy": {"name": "fedavg"},
    "engine": {"name": "flower", "wait": 2},
}


@pytest.fixture
def places(tmp_path):
    """The folders of three sites with arrays whose classes have names."""
    found = {}
    for number, name in enumerate(NAMES):
        folder = tmp_path / name
        folder.mkdir()
        rng = np.random.default_rng(number)
        np.savez(folder / "own.npz", x=rng.normal(size=(20, 3)), y=np.arange(20) % 2)
        found[name] = folder / "site.toml"
        written(found[name])
    return found


def written(path, classes=("ill", "well")):
    names = json.dumps(classes)
    path.write_text(
        f'name = "{path.parent.name}"\ncost = 0.1\n[data]\nnpz = "own.npz"\nclass_names = {names}\n'
    )


def grid(places, **options):
    return LoopGrid(
        {90 - 11 * k: {"site": str(path)} for k, path in enumerate(places.values())},
        names={90 - 11 * k: name for k, name in enumerate(places)},
        **options,
    )


def served(out, grid, **options):
    serve(grid, make_config(RUN), RunFolder(out), names=NAMES, **options)
    return Run.load(out)


def test_every_site_gets_the_file_that_the_server_exports(tmp_path, places):
    run = served(tmp_path / "run", grid(places))
    run.save(tmp_path / "server.safetensors")
    content = (tmp_path / "server.safetensors").read_bytes()
    for place in places.values():
        out = tmp_path / "got.safetensors"
        final = fetch_final_model(place.parent / "state", out)
        assert out.read_bytes() == content
        assert final.sha256 == hashlib.sha256(content).hexdigest()
        assert final.params_sha256 == run.params_sha256
        assert (final.run, final.round) == (RunFolder(run.path).run_id, 1)
    assert run.about["model_not_delivered"] == {}
    assert load(content).keys() == trained_weights(run).keys()
    assert json.loads((run.path / "model.json").read_text())["labels"] == ["ill", "well"]


def test_who_does_not_get_the_model_is_recorded_and_the_run_is_over_all_the_same(tmp_path, places):
    (places["b"].parent / "state").write_text("no folder can be here")

    def interfere(node, content):
        return None if node == 68 and "flamma.received" in content else content

    sent = grid(places, interfere=interfere)
    run = served(tmp_path / "run", sent)
    assert run.finished
    assert run.about["model_not_delivered"]["c"] == "no answer"
    assert "cannot write" in run.about["model_not_delivered"]["b"]
    assert run.about["model_not_delivered"].keys() == {"b", "c"}


def test_a_site_with_other_classes_is_refused_by_name(tmp_path, places, monkeypatch):
    monkeypatch.setattr(server_app, "_GATHER_SECONDS", 0.0)
    written(places["c"], ["well", "ill"])
    expected = (
        r"did not come: c; c: its classes are 'well', 'ill', but those of a 'ill', 'well': give "
        r"all sites the same class_names"
    )
    with pytest.raises(RunError, match=expected):
        served(tmp_path / "run", grid(places))


def test_the_deployment_decides_if_it_names_the_classes(tmp_path, places, monkeypatch):
    monkeypatch.setattr(server_app, "_GATHER_SECONDS", 0.0)
    written(places["a"], ["well", "ill"])
    agreed = Agreement(("ill", "well"), "this federation")
    with pytest.raises(RunError, match=r"did not come: a; a: its classes .* those of this fed"):
        served(tmp_path / "run", grid(places), agreed=agreed)


def test_a_site_without_names_agrees_with_any(tmp_path, places):
    written(places["b"], [])
    assert served(tmp_path / "run", grid(places)).finished


def test_other_columns_are_refused_whatever_the_classes_are():
    profile = type("Told", (), {"name": "b", "labels": (), "columns_sha256": "1" * 64})()
    assert Agreement().joined_by(profile).columns_of == "b"
    with pytest.raises(MessageError, match="other columns than that of a"):
        Agreement(columns_sha256="2" * 64, columns_of="a").joined_by(profile)


def test_many_names_travel_as_their_checksum():
    many = tuple(f"class {k}" for k in range(1001))
    assert reported_labels(many[:1000]) == many[:1000]
    [told] = reported_labels(many)
    assert told.startswith("1001 classes with names of SHA-256")
    assert reported_labels(many[::-1]) != (told,)
    assert len(reported_labels(("x" * 201, "y"))[0]) < 200


def test_what_a_server_declares_is_read_back_and_damage_is_noticed(tmp_path):
    server = ServerHost(tmp_path, "127.0.0.1", 1, 2, ("a",), class_names=("x", "y"))
    path = _agreed_file(server)
    found = read_agreement(path)
    assert (found.labels, found.columns_sha256) == (("x", "y"), "")
    text = Path(path).read_text()
    Path(path).write_text(text.replace('"x"', '"z"'))
    with pytest.raises(RunError, match="is damaged"):
        read_agreement(path)
    assert _agreed_file(replace(server, class_names=())) == ""
    assert read_agreement("") is None


def test_declared_columns_are_those_of_the_file_beside_the_server(tmp_path):
    (tmp_path / "columns.toml").write_text(
        'target = "t"\nclasses = [0, 1]\n[[columns]]\nname = "age"\n'
    )
    server = ServerHost(tmp_path, "127.0.0.1", 1, 2, ("a",), columns="columns.toml")
    found = read_agreement(_agreed_file(server))
    assert found.labels == ("0", "1")
    assert found.columns_sha256 == read_declared(tmp_path / "columns.toml").sha256


def delivery(content=None, **changes):
    identify()
    content = packed({"w": np.ones(3, dtype=np.float32)}) if content is None else content
    digest = hashlib.sha256(content).hexdigest()
    final = replace(FinalModel("ab", 1, digest, digest), **changes)
    return pack_final(Order("", run="ab", round=1), final, content)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (lambda: delivery(sha256="0" * 64), "not what its checksum says"),
        (lambda: delivery(sha256="../../x"), "no SHA-256"),
        (lambda: delivery(run="../x"), "the model of no run"),
        (lambda: delivery(round=0), "the model of no run"),
        (lambda: delivery(round=True), "round is a bool"),
        (lambda: delivery(b"not weights"), "no safetensors file"),
        (lambda: delivery(b"\xff" * 16), "no safetensors file"),
    ],
)
def test_a_message_that_brings_no_model_is_refused(message, reason):
    with pytest.raises(MessageError, match=reason):
        _read_final(message())


def test_a_message_without_its_file_is_refused():
    message = delivery()
    message[_FILE_RECORD] = ArrayRecord({"other": Array("uint8", (1,), "raw", b"1")})
    with pytest.raises(MessageError, match="no file of weights"):
        _read_final(message)


def kept(state, instance, content=b"model", run="ab"):
    digest = hashlib.sha256(content).hexdigest()
    keep_final_model(state, instance, FinalModel(run, 3, digest, "f" * 64), content)


def test_the_last_model_or_that_of_a_run_is_fetched(tmp_path):
    for number in range(_RUNS_AT_SITE + 2):
        kept(tmp_path, f"{number:x}", f"model {number}".encode(), run=f"{number}a")
    assert fetch_final_model(tmp_path, tmp_path / "out").run == f"{_RUNS_AT_SITE + 1}a"
    assert fetch_final_model(tmp_path, tmp_path / "out", "3a").round == 3
    assert (tmp_path / "out").read_bytes() == b"model 3"
    assert len(list((tmp_path / _FINAL_MODELS).iterdir())) == _RUNS_AT_SITE
    with pytest.raises(DeployError, match="no model of the run 0a"):
        fetch_final_model(tmp_path, tmp_path / "out", "0a")


def test_a_model_that_is_damaged_or_not_there_is_not_copied(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(DeployError, match="no model yet"):
        fetch_final_model(tmp_path, out)
    kept(tmp_path, "ab")
    (tmp_path / _FINAL_MODELS / "ab" / _FINAL_FILE).write_bytes(b"modem")
    with pytest.raises(DeployError, match="is not what the server sent"):
        fetch_final_model(tmp_path, out)
    (tmp_path / _FINAL_MODELS / "ab" / _FINAL_ABOUT).write_text("{}")
    with pytest.raises(DeployError, match=r"about\.json is damaged"):
        fetch_final_model(tmp_path, out)
    assert not out.exists()
