"""``flamma run``, ``resume``, ``show`` and ``compare`` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flamma.cli import main
from flamma.experiments.callbacks import StopRun
from flamma.experiments.run import run
from flamma.strategies import in_family

SMALL = [
    *("--dataset", "digits", "--clients", "5", "--per-round", "2", "--rounds", "3"),
    *("--model", "logistic", "--train-samples", "150", "--set", "data.validation_samples=50"),
]


def call(capsys, *arguments):
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


def test_run_shows_progress_and_a_summary(capsys, tmp_path):
    out = tmp_path / "run"
    code, shown, progress = call(capsys, "run", *SMALL, "--strategy", "flamma", "--out", out)
    assert code == 0
    lines = progress.splitlines()
    assert lines[0] == f"run directory {out}"
    assert len(lines) == 4
    assert lines[1].startswith("round 1/3  γ ")
    assert "accuracy" in lines[3]
    assert "variance" in lines[3]
    assert "left" in lines[3]
    assert "final  mean of last 3\n" in shown
    assert "follower gap 0" in shown
    assert "params_sha256" in shown
    code, again, _ = call(capsys, "show", out, "--json")
    record = json.loads(again)
    assert code == 0
    assert record["finished"] is True
    assert record["params_sha256"] in shown
    assert record["rounds"] == 3
    assert {"last_10_accuracy", "accuracy_variance", "epochs_total", "certificate"} <= record.keys()


def test_rounds_are_tracked_by_name(capsys, tmp_path):
    out = tmp_path / "run"
    code, _, _ = call(capsys, "run", *SMALL, "--out", out, "--track", "tensorboard")
    assert code == 0
    assert len(list((out / "tensorboard").glob("events.*"))) == 1
    code, _, told = call(capsys, "run", *SMALL, "--track", "tensorbaord")
    assert code == 2
    assert "unknown tracker 'tensorbaord': did you mean tensorboard?" in told


def test_a_stopped_run_says_so_and_how_to_go_on(capsys, tmp_path):
    def stop(record):
        raise StopRun("enough")

    out = tmp_path / "run"
    run({"rounds": 3, "data": {"train_samples": 150}, "model": "logistic"}, out=out, on_round=stop)
    for command in ("show", "resume"):
        code, shown, _ = call(capsys, command, out)
        assert code == 0
        assert "1 of 3 rounds" in shown
        assert "stopped after round 1 by _RoundFunction: enough" in shown
        assert f"flamma resume {out} --past-stop goes on" in shown
        assert "not finished" not in shown
    told = json.loads(call(capsys, "show", out, "--json")[1])
    assert told["stopped"] == {"round": 1, "reason": "enough", "by": "_RoundFunction"}
    assert told["finished"] is True
    code, shown, _ = call(capsys, "resume", out, "--past-stop", "--json")
    assert code == 0
    assert json.loads(shown)["stopped"] is None
    assert json.loads(shown)["rounds"] == 3


def test_a_file_and_settings_over_it(capsys, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('rounds = 2\nper_round = 2\n[strategy]\nname = "fedprox"\n')
    out = tmp_path / "run"
    code, _, _ = call(
        capsys, "run", file, *SMALL, "--rounds", 1, "--set", "strategy.mu=0.5", "--out", out
    )
    assert code == 0
    config = (out / "config.toml").read_text()
    assert "rounds = 1" in config
    assert "mu = 0.5" in config


def test_resume_of_a_finished_run_shows_it(capsys, tmp_path):
    call(capsys, "run", *SMALL, "--strategy", "fedavg", "--out", tmp_path / "run")
    code, shown, _ = call(capsys, "resume", tmp_path / "run")
    assert code == 0
    assert "3 of 3 rounds" in shown


def test_without_out_a_new_directory_is_made(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("fedavg-digits-iid-seed7", "fedavg-digits-iid-seed7-2"):
        code, shown, _ = call(
            capsys, "run", *SMALL, "--strategy", "fedavg", "--split", "iid", "--seed", 7
        )
        assert code == 0
        assert f"run directory runs/{name}\n" in shown
        assert (tmp_path / "runs" / name / "config.toml").exists()


BAD = {
    "unknown strategy": (["--strategy", "flama"], "did you mean flamma?"),
    "unknown dataset": (["--dataset", "minst"], "did you mean mnist?"),
    "unknown split": (["--split", "shard"], "did you mean shards?"),
    "unknown model": (["--model", "lenet"], "did you mean lenet5?"),
    "unknown key": (["--set", "strategy.decay_strat=1"], "did you mean strategy.decay_start?"),
    "unknown table": (["--set", "stratgy.mu=1"], "did you mean strategy?"),
    "no value": (["--set", "rounds"], "TABLE.KEY=VALUE"),
    "wrong type": (["--set", "rounds=many"], "--rounds must be a whole number"),
    "too many a round": (["--per-round", "9"], "only 5 clients"),
    "no rounds": (["--rounds", "0"], "at least 1"),
    "engine": (["--engine", "flowr"], "did you mean flower?"),
    "missing file": (["nowhere.toml"], "cannot read nowhere.toml"),
    "split impossible": (["--clients", "5000"], "samples"),
    "costs": (["--set", "costs.kind=dear"], "unknown kind of costs"),
    "costs file": (["--set", "costs.kind=csv", "--set", "costs.file=no.csv"], "cannot read no.csv"),
    "model too small": (["--dataset", "synthetic", "--model", "lenet5"], "lenet5"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_2(capsys, tmp_path, case):
    extra, expected = BAD[case]
    place = tmp_path / "run"
    code, _, err = call(capsys, "run", *SMALL, *extra, "--out", place)
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1


def test_a_missing_dataset_says_how_to_get_it(capsys, tmp_path):
    code, _, err = call(
        capsys, "run", *SMALL, "--dataset", "mnist", "--data-dir", tmp_path, "--out", tmp_path / "r"
    )
    assert code == 2
    assert "flamma data fetch mnist" in err
    assert len(err.strip().splitlines()) == 1


def test_what_cannot_run_leaves_nothing_behind(capsys, tmp_path):
    place = tmp_path / "run"
    code, _, _ = call(
        capsys, "run", *SMALL, "--dataset", "synthetic", "--model", "lenet5", "--out", place
    )
    assert code == 2
    code, _, _ = call(capsys, "run", *SMALL, "--out", place)
    assert code == 0


def test_incentive_needs_a_validation_set(capsys, tmp_path):
    code, _, err = call(
        capsys,
        "run",
        *SMALL,
        "--strategy",
        "incentive",
        "--set",
        "data.validation_samples=0",
        "--out",
        tmp_path / "run",
    )
    assert code == 2
    assert "data.validation_samples" in err


def test_an_unwritable_place(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = call(capsys, "run", *SMALL, "--out", tmp_path / "file" / "run")
    assert code == 2
    assert "cannot write" in err


def test_show_of_nothing(capsys, tmp_path):
    code, _, err = call(capsys, "show", tmp_path / "nowhere")
    assert code == 2
    assert "holds no run" in err


def test_compare_prints_the_table_and_draws(capsys, tmp_path):
    out = tmp_path / "comparison"
    arguments = [
        *("compare", "--out", out, "--seeds", 1, "--strategies", "fedavg,flamma"),
        *("--datasets", "digits,synthetic", "--splits", "shards", *SMALL),
    ]
    code, shown, progress = call(capsys, *arguments)
    assert code == 0
    assert progress.startswith("0 of 4 runs, 0% of the rounds  (starting)")
    assert "4 of 4 runs, 100% of the rounds" in progress
    assert "\nsynthetic\n" in shown
    assert "FedAvg" in shown
    assert "FLamma" in shown
    assert "±" not in shown  # there is one seed
    assert "With a single seed no difference can be tested" in " ".join(shown.split())
    assert (out / "curves-digits.png").read_bytes().startswith(b"\x89PNG")
    code, again, _ = call(capsys, *arguments, "--json")
    assert code == 0
    assert json.loads(again) == json.loads((out / "table.json").read_text())
    code, table, _ = call(capsys, "show", out)
    assert code == 0
    assert shown.startswith(table)
    assert table.count("FedAvg") == 2
    code, told, _ = call(capsys, "show", out, "--json")
    assert (code, told) == (0, again)
    (out / "table.json").unlink()
    code, _, told = call(capsys, "show", out)
    assert code == 2
    assert "has no table yet: the flamma compare that was begun there goes on" in told


def test_quiet_says_only_the_result_and_verbose_everything(capsys, tmp_path):
    code, shown, progress = call(capsys, "run", "-q", *SMALL, "--out", tmp_path / "quiet")
    assert (code, progress) == (0, "")
    assert "params_sha256" in shown
    assert "Report:" not in shown
    assert (tmp_path / "quiet" / "report.html").exists()
    code, shown, progress = call(capsys, "-v", "show", tmp_path / "nowhere")
    assert (code, shown) == (2, "")
    assert "Traceback" in progress
    assert progress.splitlines()[-1].startswith("flamma: ")
    assert "holds no run" in progress


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "mps", "nonsense"])
def test_a_device_that_is_not_there_is_one_short_sentence(device, capsys, tmp_path, monkeypatch):
    def no_device(*_, **__):
        raise RuntimeError("of the insides\nof torch")

    monkeypatch.setattr("torch.zeros", no_device)
    code, _, err = call(capsys, "run", *SMALL, "--device", device, "--out", tmp_path / "run")
    assert code == 2
    assert err.startswith(f"flamma: --device '{device}' cannot be used here (")
    assert err.endswith("); use auto or cpu.\n")
    assert "insides" not in err
    assert not (tmp_path / "run" / "config.toml").exists()


def test_compare_shows_its_suite(capsys):
    code, shown, _ = call(capsys, "compare", "--show-suite")
    assert code == 0
    assert 'name = "quick"' in shown


def test_compare_takes_families(capsys, tmp_path):
    out = tmp_path / "fair"
    code, shown, _ = call(
        capsys, "compare", "--out", str(out), "--strategies", "qffl, reference", "--splits", "iid",
        "--seeds", "1", "--rounds", "1", "--train-samples", "100", "--model", "logistic", "--json",
    )  # fmt: skip
    assert code == 0
    found = {row["strategy"] for row in json.loads(shown)["rows"]}
    assert found == {"qffl", *in_family("reference")}
    code, _, told = call(capsys, "compare", "--out", str(out), "--strategies", "fairnes")
    assert code == 2
    assert "did you mean the family fairness?" in told


def test_a_run_imports_no_more_than_it_needs(tmp_path):
    """Each of these takes as long to import as a short run takes."""
    unneeded = "('sklearn', 'scipy', 'pandas', 'matplotlib', 'torch._dynamo')"
    program = (
        "import sys; from flamma.cli import main; code = main(sys.argv[1:])\n"
        f"sys.exit(code or [name for name in {unneeded} if name in sys.modules] or None)"
    )
    words = ["run", *SMALL, "--model", "lenet5", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
