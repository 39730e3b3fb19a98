"""``flamma audit``: what it prints, as text and as JSON, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flamma.cli import main

SMALL = [
    *("--rounds", "3", "--per-round", "2", "--model", "logistic", "--seeds", "1"),
    *("--train-samples", "80", "--set", "data.clients=4", "--set", "data.validation_samples=20"),
    *("--clients", "cheapest,3", "--deviations", "free-ride,claim-most", "--processes", "1"),
]


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    out = tmp_path_factory.mktemp("audit") / "out"
    assert main(["audit", *SMALL, "--out", str(out)]) == 0
    return out


def test_json_is_the_file_and_says_it_all(audited, capsys):
    assert main(["audit", *SMALL, "--out", str(audited), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((audited / "audit.json").read_text())
    assert {"version", "name", "flamma", "cases", "failed", "checksum"} == told.keys()
    [case] = told["cases"]
    assert {"strategy", "epsilon", "epsilon_mean", "epsilon_std", "sentence"} < case.keys()
    assert case["epsilon"] == max(f["relative_gain"] or 0.0 for f in case["findings"])
    assert {(f["subject"], f["deviation"]) for f in case["findings"]} == {
        (subject, deviation)
        for subject in ("cheapest", "3")
        for deviation in ("free-ride", "claim-most")
    }
    for finding in case["findings"]:
        assert finding["gain"] == finding["utility"] - finding["honest_utility"]


def test_text_has_a_line_per_deviation_and_the_sentence(audited, capsys):
    assert main(["audit", *SMALL, "--out", str(audited)]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[3:5]] == ["free-ride", "claim-most"]
    [case] = json.loads((audited / "audit.json").read_text())["cases"]
    assert case["sentence"] in shown
    assert str(audited / "audit.csv") in shown
    assert f"Report: {audited / 'report.html'}" in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--deviations", "cost-bets"], "did you mean cost-best"),
        (["--clients", "10"], "there is no client '10'"),
        (["--engine", "flower"], "use the local engine"),
        (["nowhere"], "unknown run, configuration or suite"),
        (["nowhere.toml"], "cannot read nowhere.toml"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--strategies", "fairness"], "only a suite has several strategies"),
        (["quick", "--strategies", "fairnes"], "did you mean the family fairness"),
        (["--set", "data.clients=1", "--per-round", "1"], "sybil needs 2 clients"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["audit", *arguments]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown
    assert shown.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_another_configuration_in_the_same_directory_is_refused(audited, capsys):
    assert main(["audit", *SMALL, "--rounds", "2", "--out", str(audited)]) == 2
    assert "choose another directory" in capsys.readouterr().err


def test_show_prints_what_the_audit_did(audited, capsys):
    assert main(["audit", *SMALL, "--out", str(audited)]) == 0
    printed = capsys.readouterr().out
    assert main(["show", str(audited)]) == 0
    shown = capsys.readouterr().out
    assert printed.startswith(shown)
    assert "claim-most" in shown
    assert main(["show", str(audited), "--json"]) == 0
    assert capsys.readouterr().out == (audited / "audit.json").read_text()


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from flamma.cli import main\n"
        "try: main(['audit', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'torch', 'matplotlib', 'flwr'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
