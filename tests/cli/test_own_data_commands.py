"""``--data FILE --target COLUMN --group COLUMN`` as a user meets it."""

from __future__ import annotations

import json

import pytest

from flamma.cli import main


@pytest.fixture
def named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{k % 7},{k % 5},{'ill' if k % 7 > 3 else 'well'},{'nsw'[k // 20]}" for k in range(60)]
    (tmp_path / "hospitals.csv").write_text("age,dose,label,hospital\n" + "\n".join(rows) + "\n")
    return ["--data", "hospitals.csv", "--target", "label", "--group", "hospital"]


def test_run_just_works_and_resumes_from_elsewhere(named, capsys, tmp_path, monkeypatch):
    assert main(["run", *named, "--rounds", "2"]) == 0
    out = tmp_path / "runs" / "flamma-hospitals-groups-seed0"
    assert "flamma on hospitals (groups), 3 clients, 3 a round" in capsys.readouterr().out
    monkeypatch.chdir("/")
    assert main(["resume", str(out)]) == 0


def test_a_configuration_names_the_file(named, tmp_path, capsys):
    (tmp_path / "own.toml").write_text(
        'rounds = 1\n[data]\nfile = "hospitals.csv"\ntarget = "label"\ngroup = "hospital"\n'
    )
    assert main(["run", "own.toml", "--out", "run"]) == 0
    assert main(["run", *named, "--rounds", "1", "--out", "flags"]) == 0
    shas = [
        json.loads((tmp_path / d / "run.json").read_text())["params_sha256"]
        for d in ("run", "flags")
    ]
    assert shas[0] == shas[1]


def test_data_show_names_clients_and_classes(named, capsys):
    assert main(["data", "show", *named]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[2] == ["client", "train", "held", "out", "ill", "well"]
    assert [row[0] for row in shown[4:]] == ["n", "s", "w"]
    assert main(["data", "show", *named, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["dataset"], record["clients"]) == ("hospitals", ["n", "s", "w"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--data", "gone.csv", "--target", "label"], "cannot read gone.csv"),
        (["run", "--data", "hospitals.csv"], "a table needs a target: name the column to predict"),
        (["run", "--data", "hospitals.csv", "--target", "lable"], "did you mean 'label'?"),
        (["run", "--data", "hospitals.csv", "--dataset", "mnist"], "name two sets of data"),
        (["data", "show"], "name a dataset, or your own file by --data"),
        (["data", "show", "digits", "--data", "hospitals.csv"], "name a dataset, or your own file"),
    ],
)
def test_mistakes_are_one_sentence(named, capsys, arguments, sentence):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_tune_takes_a_file(named, tmp_path):
    grid = ["--grid", "training.learning_rate=0.05,0.1"]
    assert main(["tune", *named, *grid, "--rounds", "1", "--out", "tuned"]) == 0
    assert main(["run", "tuned/best.toml", "--out", "best"]) == 0
