"""From a run back to a model: its weights by name, the module, predictions, and runs from these."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from flamma.cli import main
from flamma.data.federated import from_arrays
from flamma.errors import ConfigError, DataError, FlammaError, MissingExtraError, RunError
from flamma.experiments.run import Run, resume, run
from flamma.models import weights

LABELS = ("ill", "unclear", "well")
SITES = 4


def samples(rng, count, shift):
    y = rng.integers(0, 3, count)
    return (rng.normal(size=(count, 4)) + 2 * np.eye(3, 4)[y] + shift).astype(np.float32), y


def federation(labels=LABELS):
    rng = np.random.default_rng(0)
    parts = [samples(rng, 40, site / 4) for site in range(SITES)]
    held = [samples(rng, 15, site / 4) for site in range(SITES)]
    data = from_arrays(parts, held, validation=samples(rng, 20, 0.3))
    return replace(data, about=replace(data.about, labels=labels))


DATA = federation()
OPTIONS = {"rounds": 4, "per_round": 2, "training__learning_rate": 0.2, "training__epochs": 2}


class Net(nn.Module):
    """Two layers with a batch norm between them."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Linear(shape[0], 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, classes)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x))))


def trained(place, model=Net, **more):
    return run(data=DATA, model=model, out=place, **(OPTIONS | more))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("trained") / "run", strategy="fedavg")


def test_predictions_are_what_the_run_was_scored_on(done):
    told = done.predict(DATA.test_x)
    assert set(told) <= set(LABELS)
    right = 100 * np.mean(told == np.array(LABELS)[DATA.test_y])
    assert right == pytest.approx(done.history[-1].metric("test_accuracy"))
    shares = done.predict_proba(torch.from_numpy(DATA.test_x))
    assert np.array_equal(np.array(LABELS)[shares.argmax(1)], told)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    assert done.predict(DATA.test_x[:0]).shape == (0,)
    module = done.model()
    assert not module.training
    assert isinstance(module, Net)


def test_many_samples_are_predicted_in_batches(done, monkeypatch):
    whole = done.predict_proba(DATA.test_x)
    monkeypatch.setattr(weights, "_SAMPLES_AT_ONCE", 7)
    np.testing.assert_allclose(done.predict_proba(DATA.test_x), whole, rtol=1e-5)


def test_a_saved_model_has_the_names_of_the_state_dict_and_says_what_it_is(done, tmp_path):
    place = done.save(tmp_path / "model.safetensors")
    expected = done.model().state_dict()
    with safe_open(place, "pt") as file:
        assert set(file.keys()) == set(expected)
        for name, tensor in expected.items():
            assert torch.equal(file.get_tensor(name), tensor), name
        about = file.metadata()
    assert json.loads(about["labels"]) == list(LABELS)
    assert about["flamma_run"] == json.loads((done.path / "run.json").read_text())["run"]
    done.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as arrays:
        assert np.array_equal(arrays["head.weight"], expected["head.weight"].numpy())
    with pytest.raises(ConfigError, match=r"must end in \.safetensors, \.npz or \.onnx"):
        done.save(tmp_path / "model.pt")


def test_a_loaded_run_needs_the_own_model_again_but_not_for_its_weights(done, tmp_path):
    loaded = Run.load(done.path)
    with pytest.raises(RunError, match="your own model, which is not stored"):
        loaded.model()
    assert np.array_equal(loaded.predict(DATA.test_x, model=Net), done.predict(DATA.test_x))
    one, two = loaded.save(tmp_path / "a.npz"), done.save(tmp_path / "b.npz")
    with np.load(one) as ours, np.load(two) as theirs:
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs.files)
    with pytest.raises(ConfigError, match=r"does not fit the model: .*the model has no body"):
        loaded.model(model=nn.Linear(4, 3))
    assert resume(done.path, data=DATA, model=Net).known_model is not None


def test_a_named_model_is_built_from_the_configuration(tmp_path):
    made = run(
        {"data": {"clients": 3, "train_samples": 60, "validation_samples": 0}},
        model="mlp",
        rounds=2,
        per_round=2,
        out=tmp_path / "run",
    )
    assert list(Run.load(made.path).model().state_dict()) == [
        *("1.weight", "1.bias", "3.weight", "3.bias"),
    ]
    (made.path / "model.json").unlink()
    with pytest.raises(RunError, match=r"has no model\.json, which says what its model is"):
        Run.load(made.path).model()


def test_the_kept_rounds_can_be_had_and_no_others(done):
    rounds = [
        e["round"] for e in json.loads((done.path / "manifest.json").read_text())["checkpoints"]
    ]
    assert max(rounds) == 4
    final, earlier = done.model(), done.model(round=min(rounds))
    assert torch.equal(done.model(round=4).head.weight, final.head.weight)
    assert min(rounds) == 4 or not torch.equal(earlier.head.weight, final.head.weight)
    with pytest.raises(RunError, match="no weights of round 9: it has those after round"):
        done.model(round=9)


def test_removed_checkpoints_and_damaged_cards_are_told(done, tmp_path):
    shutil.copytree(done.path, tmp_path / "run")
    loaded = Run.load(tmp_path / "run")
    (tmp_path / "run" / "fixed.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match=r"fixed\.safetensors is missing or damaged"):
        loaded.save(tmp_path / "model.npz")
    shutil.copy(done.path / "fixed.safetensors", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(RunError, match="its checkpoints were removed"):
        loaded.save(tmp_path / "model.npz")
    (tmp_path / "run" / "model.json").write_text("{}")
    with pytest.raises(RunError, match=r"model\.json is damaged"):
        loaded.save(tmp_path / "model.npz")


@pytest.mark.parametrize("x", [np.zeros((3, 5)), np.zeros(4), [["a"] * 4], np.full((1, 4), np.nan)])
def test_samples_that_do_not_fit_are_refused(done, x):
    with pytest.raises(DataError):
        done.predict(x)


@pytest.mark.parametrize("name", ["ditto", "local", "cgsv", "cffl"])
def test_the_own_model_of_a_client_is_the_one_it_was_scored_by(tmp_path, name):
    made = Run.load(trained(tmp_path / "run", strategy=name).path)
    with open(made.path / "clients.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["round"] == "4"]
    models = [made.model(model=Net, client=client) for client in range(SITES)]
    assert len({tuple(m.head.bias.tolist()) for m in models}) > 1 or name == "cgsv"
    for client, row in enumerate(rows):
        held = slice(*DATA.held_offsets[client : client + 2])
        told = made.predict(DATA.held_x[held], model=Net, client=client)
        right = 100 * np.mean(told == np.array(LABELS)[DATA.held_y[held]])
        assert right == pytest.approx(float(row["accuracy"]), rel=1e-4)
    made.save(tmp_path / "own.npz", client=1)
    with np.load(tmp_path / "own.npz") as arrays:
        assert np.array_equal(arrays["head.bias"], models[1].head.bias.detach().numpy())
    with pytest.raises(RunError, match="there is no client 4: they are 0 to 3"):
        made.model(model=Net, client=4)


def test_one_model_for_all_has_no_clients(done):
    with pytest.raises(RunError, match="fedavg has one model for all clients"):
        done.predict(DATA.test_x, client=1)


# Weights to begin with


def still(place, **more):
    """A run whose steps are too small to change a weight."""
    return trained(place, strategy="fedavg", rounds=1, training__learning_rate=1e-30, **more)


@pytest.mark.parametrize("kind", ["file", "state dict", "run", "module"])
def test_a_run_begins_with_the_weights_it_is_given(done, tmp_path, kind):
    module = done.model()
    start = {
        "file": done.save(tmp_path / "model.npz"),
        "state dict": module.state_dict(),
        "run": Run.load(done.path),
        "module": None,
    }[kind]
    made = still(tmp_path / "run", model=module if kind == "module" else Net, start=start)
    for name in ("body.weight", "head.bias"):
        assert torch.equal(made.model().state_dict()[name], module.state_dict()[name])
    card = json.loads((made.path / "model.json").read_text())
    assert len(card["start_sha256"]) == 64
    assert card["start"] == (str(start) if kind == "file" else "own")


def test_a_start_that_cannot_be_used_leaves_no_run(tmp_path):
    for start, said in (
        ({"head.weight": np.zeros((3, 6))}, "the state dict does not fit the model: it has no"),
        (tmp_path / "nowhere.npz", "cannot read"),
        (tmp_path / "model.pt", "is a pickle"),
        (nn.Linear(2, 2), "give its state_dict"),
    ):
        with pytest.raises(FlammaError, match=said):
            still(tmp_path / "run", start=start)
        assert not (tmp_path / "run" / "config.toml").exists()


class StoppedError(Exception):
    pass


def after(rounds):
    def on_round(record):
        if record.round == rounds:
            raise StoppedError

    return on_round


@pytest.mark.parametrize("given", ["file", "state dict"])
def test_a_resumed_run_begins_with_the_same_weights_or_not_at_all(done, tmp_path, given):
    place = tmp_path / ("model.npz" if given == "file" else "run/start.safetensors")
    start = done.save(place) if given == "file" else done.model().state_dict()
    options = {"start": start, "freeze": "body.*", "strategy": "fedavg"}
    whole = trained(tmp_path / "whole", **options)
    with pytest.raises(StoppedError):
        trained(tmp_path / "run", on_round=after(2), **options)
    right = place.read_bytes()
    place.write_bytes(Run.load(done.path).save(tmp_path / "other.npz", round=4).read_bytes()[:-1])
    with pytest.raises(FlammaError, match=r"neither safetensors|other weights than those of"):
        resume(tmp_path / "run", data=DATA, model=Net)
    other = {name: tensor + 1 for name, tensor in done.model().state_dict().items()}
    np.savez(tmp_path / "other.npz", **{name: t.numpy() for name, t in other.items()})
    place.write_bytes((tmp_path / "other.npz").read_bytes())
    with pytest.raises(RunError, match="began with other weights than those of"):
        resume(tmp_path / "run", data=DATA, model=Net)
    place.write_bytes(right)
    again = resume(tmp_path / "run", data=DATA, model=Net)
    assert again.params_sha256 == whole.params_sha256


def test_a_run_is_not_resumed_with_another_model(tmp_path):
    with pytest.raises(StoppedError):
        trained(tmp_path / "run", on_round=after(2))
    with pytest.raises(RunError, match="a run of another model"):
        resume(tmp_path / "run", data=DATA, model=nn.Linear(4, 3))


# Frozen parts


@pytest.mark.parametrize("name", ["fedavg", "flamma-plus", "scaffold", "ditto", "cgsv"])
def test_frozen_parts_neither_change_nor_travel(tmp_path, name):
    made = trained(tmp_path / "frozen", strategy=name, freeze=["body.*", "norm.weight"])
    begun = still(tmp_path / "begun").model()
    module = made.model()
    assert torch.equal(module.body.weight, begun.body.weight)
    assert torch.equal(module.norm.weight, begun.norm.weight)
    assert not torch.equal(module.head.weight, begun.head.weight)
    assert not torch.equal(module.norm.running_mean, begun.norm.running_mean)
    vector = 6 + 6 * 3 + 3 + 2 * 6  # the norm's bias, the head, and the norm's running moments
    assert made.history[-1].cost.bytes_up == 2 * 4 * vector
    assert not module.body.weight.requires_grad
    rows = list((made.path / "checkpoint").glob("*.rows"))
    kept = vector - 2 * 6 if name == "flamma-plus" else vector  # which keeps updates, not models
    assert all(file.stat().st_size % (4 + 4 * kept) == 0 for file in rows)


def test_a_module_that_is_partly_frozen_stays_so(tmp_path):
    module = Net((4,), 3)
    module.body.requires_grad_(False)
    made = trained(tmp_path / "run", model=module, strategy="fedavg")
    assert torch.equal(made.model().body.weight, module.body.weight)
    assert not torch.equal(made.model().head.weight, module.head.weight)


def test_a_frozen_run_is_that_of_a_server_that_puts_the_parts_back(tmp_path):
    """FedAvg with one client and frozen parts is plain SGD on the others."""
    rng = np.random.default_rng(1)
    part = samples(rng, 8, 0)
    data = from_arrays([part] * 2, [part] * 2)
    options = {"strategy": "fedavg", "rounds": 1, "per_round": 2, "training__epochs": 1}
    steps = {"training__batch_size": 8, "training__learning_rate": 0.5}
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    made = run(data=data, model=model, freeze="0.*", out=tmp_path / "run", **options, **steps)
    loss = nn.functional.cross_entropy(model(torch.from_numpy(part[0])), torch.from_numpy(part[1]))
    gradient = torch.autograd.grad(loss, model[2].weight)[0]
    expected = model[2].weight - 0.5 * gradient
    torch.testing.assert_close(made.model()[2].weight, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(made.model()[0].weight, model[0].weight)


# Layers


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells = kind(2, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.cells(x.reshape(-1, 2, 2))[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(2)
        self.attention = nn.MultiheadAttention(2, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm(x.reshape(-1, 2, 2))
        return self.head(self.attention(x, x, x)[0].flatten(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Recurrent(nn.GRU),
        lambda: Recurrent(nn.LSTM),
        Attention,
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8), nn.Linear(4, 3)),
    ],
)
def test_recurrent_and_attention_layers_train_stop_and_go_on(tmp_path, make):
    options = {"model": make, "strategy": "fedavg", "rounds": 3}
    whole = trained(tmp_path / "whole", **options)
    assert [record.outcome.failed for record in whole.history] == [{}, {}, {}]
    right = 100 * np.mean(whole.predict(DATA.test_x) == np.array(LABELS)[DATA.test_y])
    assert right == pytest.approx(whole.history[-1].metric("test_accuracy"), abs=2)
    assert right > 40  # of three classes
    with pytest.raises(StoppedError):
        trained(tmp_path / "run", on_round=after(1), **options)
    again = resume(tmp_path / "run", data=DATA, model=make)
    assert again.params_sha256 == whole.params_sha256


# ONNX, and the command line


def test_an_exported_onnx_model_says_the_same(done, tmp_path):
    import onnxruntime

    place = done.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(place))
    for count in (1, 5):
        x = DATA.test_x[:count]
        [told] = session.run(None, {"samples": x})
        with torch.no_grad():
            expected = done.model()(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(told, expected, rtol=1e-4, atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["labels"]) == list(LABELS)


def raw_patients(rng, count=90):
    """Columns of very different scales, one of them of texts."""
    year = rng.integers(1_900_000, 2_000_000, count).astype(float)
    wages = rng.normal(3e9, 4e5, count)
    return {"born": year, "ward": np.array(list("ab"))[rng.integers(2, size=count)], "wages": wages}


def as_features(columns, new):
    """Return the matrix that an exported graph takes, by the columns in its metadata alone."""
    parts = []
    for column in columns:
        values = new[column["name"]]
        parts += [values == name for name in column["categories"]] or [values]
    return np.column_stack([np.asarray(part, dtype=np.float64) for part in parts])


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("by", ["python", "command line"])
def test_an_exported_graph_takes_raw_rows_as_predict_does(tmp_path, kind, by):
    import onnxruntime

    rng = np.random.default_rng(5)
    rows = raw_patients(rng)
    outcome = (rows["wages"] - 3e9) / 4e5 + (rows["ward"] == "a")
    target = np.where(outcome > 0.5, "ill", "well") if kind == "classification" else 50 + outcome
    made = run(
        data={**rows, "outcome": target, "home": np.arange(90) % 3},
        target="outcome",
        group="home",
        task=kind,
        model="mlp",
        rounds=3,
        per_round=3,
        strategy="fedavg",
        out=tmp_path / "run",
    )
    place = tmp_path / "model.onnx"
    if by == "python":
        made.save(place)
    else:
        assert main(["export", str(tmp_path / "run"), "--out", str(place)]) == 0
    session = onnxruntime.InferenceSession(str(place))
    about = session.get_modelmeta().custom_metadata_map
    new = raw_patients(rng, 7)
    [told] = session.run(None, {"samples": as_features(json.loads(about["columns"]), new)})
    assert "encoding" not in about  # which would be done twice
    if kind == "regression":
        np.testing.assert_allclose(told.reshape(-1), made.predict(new), rtol=1e-5)
        return
    shares = np.exp(told) / np.exp(told).sum(1, keepdims=True)
    np.testing.assert_allclose(shares, made.predict_proba(new), rtol=1e-4, atol=1e-6)
    assert shares.std() > 0.01
    assert np.array(json.loads(about["labels"]))[told.argmax(1)].tolist() == list(made.predict(new))


@pytest.mark.parametrize("standardise", [None, False])
def test_an_exported_graph_scales_pictures_as_predict_does(tmp_path, standardise):
    import onnxruntime

    rng = np.random.default_rng(6)
    pixels = rng.integers(0, 256, (60, 8, 8, 3)).astype(np.uint8).transpose(0, 3, 1, 2)
    settings = {} if standardise is None else {"data__standardise": standardise}
    made = run(
        data=(pixels, np.arange(60) % 2),
        **{"clients": 3, "model": "mlp", "rounds": 1, "out": tmp_path / "run", **settings},
    )
    session = onnxruntime.InferenceSession(str(made.save(tmp_path / "model.onnx")))
    [told] = session.run(None, {"samples": pixels[:5].astype(np.float32)})
    shares = np.exp(told) / np.exp(told).sum(1, keepdims=True)
    np.testing.assert_allclose(shares, made.predict_proba(pixels[:5]), rtol=1e-4, atol=1e-6)


def test_onnx_without_its_packages_is_one_sentence(done, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"constraints.txt '\.\[onnx\]'"):
        done.save(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def table(place, rows=60):
    rng = np.random.default_rng(2)
    with open(place, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["age", "ward", "hospital", "state"])
        for row in range(rows):
            age, ward = rng.normal(50, 10), "ab"[int(rng.integers(2))]
            state = "ill" if age + 10 * (ward == "a") > 55 else "well"
            out.writerow([f"{age:.2f}", ward, "NSW"[row % 3], state])
    return place


def test_from_a_file_to_predictions_on_the_command_line(tmp_path, capsys):
    file, out = table(tmp_path / "people.csv"), tmp_path / "run"
    run(data=file, target="state", group="hospital", rounds=15, out=out, strategy="fedavg")
    assert main(["export", str(out), "--out", str(tmp_path / "m.npz"), "--json"]) == 0
    size = (tmp_path / "m.npz").stat().st_size
    assert json.loads(capsys.readouterr().out) == {"path": str(tmp_path / "m.npz"), "bytes": size}
    assert main(["predict", str(out), str(file)]) == 0
    header, *told = capsys.readouterr().out.splitlines()
    with open(file, newline="") as lines:
        true = [row["state"] for row in csv.DictReader(lines)]
    assert header == "prediction"
    assert np.mean(np.array(told) == np.array(true)) > 0.85
    assert main(["predict", str(out), str(file), "--json", "--out", str(tmp_path / "p.json")]) == 0
    assert json.loads((tmp_path / "p.json").read_text()) == told
    again = ["run", "--model", "mlp", "--start", str(tmp_path / "m.npz"), "--rounds", "1"]
    data = ["--set", f'data.file="{file}"', "--set", "data.target=state"]
    data += ["--set", "data.group=hospital", "--set", "data.validation_samples=0"]
    rest = ["--clients", "3", "--split", "groups", "--out", str(tmp_path / "again"), "--json"]
    assert main([*again, *data, *rest]) == 0
    assert str(tmp_path / "m.npz") in (tmp_path / "again" / "config.toml").read_text()
    assert main(["export", str(out), "--client", "1", "--out", str(tmp_path / "own.npz")]) == 2
    assert "one model for all clients" in capsys.readouterr().err


class Words(nn.Module):
    """An embedding, a recurrent layer and attention over token ids."""

    def __init__(self, classes):
        super().__init__()
        self.embedding = nn.Embedding(5, 8)
        self.cells = nn.GRU(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, tokens):
        assert tokens.dtype == torch.int64
        x, _ = self.cells(self.embedding(tokens))
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def test_token_ids_reach_an_embedding_as_whole_numbers(tmp_path):
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 5, (120, 6))
    y = np.where((tokens == 4).any(1), "has it", "has it not")
    options = {"rounds": 12, "per_round": 3, "training__learning_rate": 0.3, "strategy": "fedavg"}
    made = run(
        data=(tokens, y), group=np.arange(120) % 3, model=Words, out=tmp_path / "run", **options
    )
    assert made.about["trainer"] == "torch"
    assert all(not record.outcome.failed for record in made.history)
    assert np.mean(made.predict(tokens) == y) > 0.9
    card = json.loads((made.path / "model.json").read_text())
    assert card["dtype"] == "int64"
    with pytest.raises(DataError, match="whole numbers"):
        made.predict(tokens + 0.5)
