"""Without optional packages: one sentence with the command that installs them, and every message.

The packages are hidden in other processes, by a finder that does not find them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import metadata

import pytest

from flamma.errors import MissingExtraError
from flamma.extras import PURPOSES, _packages_of, extra_of, missing_packages, require
from flamma.registry import Registry

HIDE = """
import contextlib, io, json, sys
from flamma.extras import _MODULES, PURPOSES, _packages_of

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{module}.") for module in self.modules):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

Hidden.modules = [_MODULES.get(p, p) for extra in PURPOSES for p in _packages_of(extra)]
sys.meta_path.insert(0, Hidden())
"""

COMMANDS = """
from flamma.cli import main

done = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    done.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""

MISTAKES = {
    "nope=1": "unknown argument nope=",
    "stratgy='fedavg'": "did you mean strategy=",
    "per_round=12": "per_round",
    "strategy='fedavgg'": "did you mean fedavg",
    "training__learning_rat=1": "did you mean learning_rate",
    "data=([[1.0, float('nan')]] * 20, [0, 1] * 10)": "not finite",
    "engine__name='flower'": "'.[flower]'",
    "engine__name='deployment', engine__server='x'": "'.[flower]'",
    "strategy='fedavg', privacy__clip=1.0, privacy__noise_multiplier=1.0": "'.[privacy]'",
}


def run_hidden(script, *arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-c", HIDE + script, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_commands_say_what_to_install_and_leave_nothing(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    small = ["run", "--strategy", "fedavg", "--rounds", "1", "--model", "logistic"]
    asked = {
        "flower": [["run", "--engine", "flower"], ["deploy", "init", "fed", "--sites", "3"]],
        "tune": [["tune", "--trials", "1"]],
        "parquet": [["run", "--data", "x.parquet", "--target", "y"]],
        "privacy": [[*small, "--set", "privacy.clip=1", "--set", "privacy.noise_multiplier=1"]],
        "report": [["game", "explore", "--contributions", ".5,1", "--costs", ".1,.2"]],
        "mlflow": [[*small, "--track", "mlflow"]],
        "wandb": [[*small, "--track", "wandb"]],
        "tensorboard": [[*small, "--track", "tensorboard"]],
    }
    commands = [(extra, words) for extra, lines in asked.items() for words in lines]
    told, _ = run_hidden(COMMANDS, json.dumps([words for _, words in commands]), cwd=tmp_path)
    for (extra, words), (code, out, err) in zip(commands, told, strict=True):
        assert (code, out) == (2, ""), words
        assert f"pip install -c constraints.txt '.[{extra}]'" in err, words
        assert [line for line in err.splitlines() if not line.startswith("flamma: ")] == [], words
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


def test_messages_and_lists_need_no_extra(tmp_path):
    asked = [
        ["run", "--set", "nope.x=1"],
        ["run", "--set", "engine.wait_=1"],
        ["run", "--strategy", "fedavgg"],
        ["list", "--options"],
        ["list", "trackers", "--json"],
        ["doctor", "--json"],
    ]
    (unknown, key, strategy, listed, trackers, doctor), _ = run_hidden(
        COMMANDS, json.dumps(asked), cwd=tmp_path
    )
    assert unknown[0] == key[0] == strategy[0] == 2
    assert "unknown key 'nope'" in unknown[2]
    assert "'wait_'" in key[2]
    assert "did you mean fedavg" in strategy[2]
    for text in (listed[1], trackers[1]):
        assert "(needs the extra wandb: pip install -c constraints.txt '.[wandb]')" in text
    assert "(needs the extra flower: pip install -c constraints.txt '.[flower]')" in listed[1]
    assert "wait = 3600" in listed[1]
    extras = json.loads(doctor[1])["extras"]
    assert next(iter(json.loads(doctor[1]))) == "extras"
    assert set(extras) == set(PURPOSES)
    assert not any(extra["complete"] for extra in extras.values())
    assert extras["flower"]["install"] == "pip install -c constraints.txt '.[flower]'"
    assert {"flwr", "cryptography", "ray"} <= set(extras["flower"]["missing"])


def test_a_mistake_in_python_is_its_own_message(tmp_path):
    script = """
import flamma

done = {}
for words in json.loads(sys.argv[1]):
    try:
        eval(f"flamma.run({words}, rounds=1, out='run')")
    except flamma.FlammaError as error:
        done[words] = str(error)
print(json.dumps(done))
"""
    told, _ = run_hidden(script, json.dumps(list(MISTAKES)), cwd=tmp_path)
    for words, expected in MISTAKES.items():
        assert expected in told.get(words, ""), words
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", ["nope=1", "strategy__nope=1", "strategy='fedavgg'"])
def test_a_message_imports_nothing_heavy_and_warns_of_nothing(words):
    script = f"""
import sys, flamma
try:
    flamma.run({words})
except flamma.FlammaError:
    print(*sorted({{"flwr", "ray", "torch", "scipy", "pandas", "click"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", script], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("\n", "")


def test_every_extra_of_a_user_has_a_purpose_and_its_packages_are_found():
    assert set(PURPOSES) == set(metadata("flamma-fl").get_all("Provides-Extra")) - {"dev", "docs"}
    assert [extra for extra in PURPOSES if missing_packages(extra)] == []
    assert _packages_of("tune") == ["optuna"]
    assert _packages_of("tune", "not-installed") == []


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        *(("flwr.app", "flower"), ("ray", "flower"), ("google.protobuf.message", "flower")),
        *(("google", "flower"), ("mlflow.tracking", "mlflow"), ("google.cloud", "")),
        *(("numpy", ""), ("flamma.nowhere", ""), ("flwrr", "")),
    ],
)
def test_a_module_belongs_to_the_extra_that_brings_it(module, extra):
    assert extra_of(module) == extra


def test_a_package_of_no_extra_is_named():
    with pytest.raises(MissingExtraError, match="it needs the package nowhere_at_all, which"):
        require("it", "json", "nowhere_at_all")


def test_an_entry_without_its_package_says_what_to_install_and_a_bug_stays_one(
    tmp_path, monkeypatch
):
    (tmp_path / "needs_optuna.py").write_text("import optuna\ndef make(*, width: int = 1): ...\n")
    (tmp_path / "with_a_bug.py").write_text("import flamma.nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    things = Registry("thing", "flamma.things", {"fine": pow, "tuned": "needs_optuna:make"})
    with pytest.raises(MissingExtraError, match=r"the thing tuned .*constraints.txt '\.\[tune\]'"):
        things["tuned"]
    assert "width" not in things.option_owners()
    assert things.option_owners()["mod"] == ["fine"]
    broken = Registry("thing", "flamma.things", {"broken": "with_a_bug:make"})
    with pytest.raises(ModuleNotFoundError, match=r"flamma\.nowhere"):
        broken["broken"]
