"""What a newcomer has: an installed FLamma, without the checkout and without most of the extras.

``PYTHON tests/installed.py [EXTRA ...]`` with the Python of an environment into which FLamma
was installed with exactly these extras; ``make installed`` makes two such environments. The
compiled lanes, a published table, a report, helps, lists, mistakes on the command line and in
Python, the message of each missing extra and the blocks of the README are run as a user would, in
folders elsewhere. Only the standard library is needed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import metadata
from pathlib import Path

from documented import ROOT, matches, python_examples, session

DISTRIBUTION = "flamma-fl"
LONGEST_SECONDS = 600
SMALL = ["--model", "logistic", "--rounds", "2", "--train-samples", "300", "--strategy", "fedavg"]
PUBLISHED = ROOT / "docs" / "results" / "quick.json"
GAME = ["--contributions", "0.9,0.8", "--costs", "0.1,0.2"]

MODULES = {
    "flower": ["flwr", "ray", "cryptography", "httpx", "uvicorn"],
    "mlflow": ["mlflow"],
    "onnx": ["onnx", "onnxscript"],
    "pandas": ["pandas"],
    "parquet": ["pyarrow"],
    "privacy": ["opacus"],
    "report": ["matplotlib", "plotly"],
    "tensorboard": ["tensorboard"],
    "tune": ["optuna"],
    "wandb": ["wandb"],
}
"""What each extra brings, and what must not be there without it."""

COMMANDS_OF_EXTRAS = {
    "flower": [
        ["run", *SMALL, "--engine", "flower"],
        ["run", *SMALL, "--engine", "deployment", "--set", "engine.server=fed"],
        ["compare", "--set", "engine.name=flower"],
        ["deploy", "init", "fed", "--sites", "3"],
        ["deploy", "up", "fed"],
        ["deploy", "run", "fed", "--rounds", "1"],
        ["deploy", "status", "fed"],
        ["deploy", "add-site", "fed", "west"],
        ["deploy", "rotate", "fed", "site0"],
    ],
    "mlflow": [["run", *SMALL, "--track", "mlflow"]],
    "onnx": [["export", "DONE", "--out", "model.onnx"]],
    "pandas": [],
    "parquet": [["run", "--data", "data.parquet", "--target", "y"]],
    "privacy": [
        ["run", *SMALL, "--set", "privacy.clip=1"],
        ["compare", "--strategies", "fedavg", "--set", "privacy.clip=1"],
        ["audit", "--strategy", "fedavg", "--set", "privacy.clip=1"],
    ],
    "report": [
        ["report", "DONE"],
        ["watch", "DONE"],
        ["game", "explore", *GAME],
        ["game", "solve", *GAME, "--plot", "solve.png"],
        ["data", "show", "digits", "--plot", "digits.svg"],
    ],
    "tensorboard": [["run", *SMALL, "--track", "tensorboard"]],
    "tune": [["tune", "--trials", "1"]],
    "wandb": [["run", *SMALL, "--track", "wandb"]],
}
"""Commands that need an extra. ``DONE`` is a finished run."""

EXPRESSIONS_OF_EXTRAS = {
    "flower": ["run(engine__name='flower')", "flamma.flower.FlammaStrategy(per_round=2)"],
    "mlflow": ["TRACKERS['mlflow']()"],
    "onnx": ["done.save('model.onnx')"],
    "pandas": ["done.frame()"],
    "parquet": ["run(data='data.parquet', target='y')"],
    "privacy": ["run(strategy='fedavg', privacy__clip=1.0)"],
    "report": ["done.plot()", "done.report()"],
    "tensorboard": ["TRACKERS['tensorboard']()"],
    "tune": ["flamma.tune(trials=1, **small)"],
    "wandb": ["TRACKERS['wandb']()"],
}

COMMAND_MISTAKES: list[tuple[list[str], str]] = [
    (["rnu"], "unknown command 'rnu'"),
    (["run", "--roundz", "2"], "--roundz"),
    (["run", "--rounds", "many"], "--rounds"),
    (["run", "--rounds", "0"], "rounds"),
    (["run", "--set", "nope.x=1"], "nope"),
    (["run", "--set", "trainig.epochs=2"], "training"),
    (["run", "--set", "training.learning_rat=1"], "learning_rate"),
    (["run", "--set", "strategy.steepnes=1"], "steepness"),
    (["run", "--set", "engine.wiat=1"], "wait"),
    (["run", "--set", "rounds"], "rounds"),
    (["run", "--strategy", "fedavgg"], "fedavg"),
    (["run", "--model", "lenet"], "lenet5"),
    (["run", "--split", "shard"], "shards"),
    (["run", "--engine", "flwr"], "flower"),
    (["run", "--clients", "3", "--per-round", "9"], "--per-round"),
    (["run", "--data", "nowhere.csv", "--target", "y"], "nowhere.csv"),
    (["run", "--data", "table.csv", "--target", "lable"], "label"),
    (["run", "--track", "mlfow"], "mlflow"),
    (["compare", "--strategies", "fedavg,fedproxx"], "fedprox"),
    (["compare", "nosuchsuite"], "nosuchsuite"),
    (["show", "nowhere"], "nowhere"),
    (["resume", "nowhere"], "nowhere"),
    (["export", "nowhere", "--out", "model.npz"], "nowhere"),
    (["predict", "nowhere", "table.csv"], "nowhere"),
    (["list", "stratgies"], "strategies"),
    (["game", "solve", "--contributions", "0.9,2", "--costs", "0.1,0.2"], "contributions"),
    (["data", "show", "mnits"], "mnist"),
    (["audit", "--deviations", "lie"], "lie"),
]
"""Command lines, and what the sentence about them must name."""

EXPRESSION_MISTAKES: list[tuple[str, str]] = [
    ("run(per_round=12)", "per_round"),
    ("run(nope=1)", "nope"),
    ("run(stratgy='fedavg')", "strategy"),
    ("run(strategy='fedavgg')", "fedavg"),
    ("run(strategy__steepnes=1)", "steepness"),
    ("run(training__learning_rat=1)", "learning_rate"),
    ("run(learning_rate=-1)", "learning_rate"),
    ("run(rounds=0)", "rounds"),
    ("run(rounds='many')", "rounds"),
    ("run(model='lenet')", "lenet5"),
    ("run(split='shard')", "shards"),
    ("run(engine__name='flwr')", "flower"),
    ("run(engine__wiat=1)", "wait"),
    ("run(dataset='mnits')", "mnist"),
    ("run(data='nowhere.csv', target='y')", "nowhere.csv"),
    ("run(data='table.csv', target='lable')", "label"),
    ("run(data=([[1.0, float('nan')]] * 40, [0, 1] * 20), clients=2)", "finite"),
    ("run(data=([[1.0, 2.0]] * 40, [0, 1] * 19), clients=2)", ""),
    ("flamma.compare(strategies=['fedavg', 'fedproxx'])", "fedprox"),
    ("flamma.compare(suite='nosuchsuite')", "nosuchsuite"),
    ("flamma.Run.load('nowhere')", "nowhere"),
    ("flamma.resume('nowhere')", "nowhere"),
    ("flamma.audit('nowhere')", "nowhere"),
    ("done.save('model.h5')", "h5"),
    ("done.predict([[1.0, 2.0]])", ""),
    (
        "flamma.FederatedClassifier(strategy='fedavgg').fit([[0.0], [1.0]] * 20, [0, 1] * 20)",
        "did you mean fedavg",
    ),
    ("Game(contributions=[0.9], costs=[0.1, 0.2], round=1)", ""),
]
"""Expressions, and what the sentence about them must name."""

PYTHON = """
import json, sys
import flamma, flamma.flower
from flamma.experiments.trackers import TRACKERS
from flamma.game import Game

small = dict(strategy="fedavg", model="logistic", rounds=2, data__train_samples=300)
def run(**given):
    return flamma.run(**{"rounds": 1, **given}, out="made")
done = flamma.Run.load(sys.argv[1])
told = []
for expression in json.loads(sys.argv[2]):
    try:
        eval(expression)
        told.append(["", ""])
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        told.append([kinds, str(error)])
json.dump(told, open(sys.argv[3], "w"))
"""

USE = """
import flamma
small = dict(model="logistic", rounds=2, data__train_samples=300)
done = flamma.run(strategy="flamma", **small)
print(repr(done)), done._repr_html_(), done.history, done.summary
table = flamma.compare(strategies=["fedavg", "flamma"], splits=["iid"], seeds=1, **small)
print(repr(table)), table._repr_html_()
flamma.FederatedClassifier(rounds=2, clients=2).fit([[0.0, 1.0], [1.0, 0.0]] * 40, [0, 1] * 40)
"""

LISTS = """
import json, sys
from flamma.cli import main
for kind in json.loads(sys.argv[1]):
    for form in [], ["--json"], ["--options"], ["--options", "--json"]:
        assert main(["list", kind, *form]) == 0, (kind, form)
"""


class Checks:
    """Counts what passed, and says at once what did not."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def check(self, name: str, wrong: str) -> None:
        """Count a check; ``wrong`` is empty if it passed."""
        if wrong:
            self.failed += 1
            print(f"FAILED {name}\n       {wrong}", flush=True)
        else:
            self.passed += 1


def started(program: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder."""
    return subprocess.run(
        program,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )


def flamma(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return started([str(Path(sys.executable).parent / "flamma"), *words], folder)


def python(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return started([sys.executable, "-c", code, *arguments], folder)


def ends_well(done: subprocess.CompletedProcess[str]) -> str:
    """Return what is wrong with a program that should succeed without a warning."""
    if done.returncode or "Traceback" in done.stderr or "Warning" in done.stderr:
        return f"exit code {done.returncode}: {last_line(done.stderr)}"
    return ""


def is_one_sentence(done: subprocess.CompletedProcess[str], named: str, made: list[str]) -> str:
    """Return what is wrong with the refusal of a mistake, which must leave nothing behind."""
    lines = done.stderr.splitlines()
    if done.returncode != 2:
        return f"exit code {done.returncode}: {last_line(done.stderr)}"
    if len(lines) != 1 or not lines[0].startswith("flamma"):
        return f"not one sentence: {last_line(done.stderr)}"
    if named not in lines[0]:
        return f"does not name {named}: {lines[0]}"
    return f"leaves {', '.join(made)}" if made else ""


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1][:300]


def all_commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[list[str]]:
    """Yield the words of every command and sub-command."""
    yield list(words)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from all_commands(inner, (*words, name))


def new_folder(home: Path) -> Path:
    """Return a folder with a table and a file that only pretends to be parquet."""
    folder = Path(tempfile.mkdtemp(dir=home))
    rows = [f"{row % 7},{row % 3},{row % 2}" for row in range(60)]
    (folder / "table.csv").write_text("\n".join(["age,dose,label", *rows, ""]), encoding="utf-8")
    (folder / "data.parquet").write_bytes(b"PAR1")
    return folder


def check_commands(
    checks: Checks, about: str, asked: list[tuple[list[str], str]], home: Path
) -> None:
    """Check that every command is refused in one sentence that names something."""

    def refused(line: tuple[list[str], str]) -> str:
        words, named = line
        folder = new_folder(home)
        before = set(folder.rglob("*"))
        done = flamma([str(home / "done") if word == "DONE" else word for word in words], folder)
        made = [str(path.relative_to(folder)) for path in set(folder.rglob("*")) - before]
        return is_one_sentence(done, named, made)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (words, _), wrong in zip(asked, pool.map(refused, asked), strict=True):
            checks.check(f"{about}: flamma {' '.join(words)}", wrong)


def check_expressions(
    checks: Checks, about: str, asked: list[tuple[str, str]], kind: str, home: Path
) -> None:
    """Check that every expression raises an error of a kind, whose sentence names something."""
    answers = home / "answers.json"
    answers.unlink(missing_ok=True)
    expressions = json.dumps([expression for expression, _ in asked])
    done = python(PYTHON, new_folder(home), str(home / "done"), expressions, str(answers))
    checks.check(f"{about}, in Python", ends_well(done))
    told = json.loads(answers.read_text()) if answers.exists() else [[[], ""]] * len(asked)
    for (expression, named), (kinds, message) in zip(asked, told, strict=True):
        wrong = ""
        if kind not in kinds:
            wrong = f"{(kinds or ['no error'])[0]}: {message}"
        elif named not in message or "\n" in message or not message.endswith("."):
            wrong = f"not one sentence that names {named}: {message}"
        checks.check(f"{about}: {expression}", wrong)


def check_helps_and_lists(checks: Checks, extras: list[str], home: Path) -> None:
    """Check the help of every command, every list, and what doctor says of the extras."""
    from flamma.cli.parser import command_line

    asked = [[*words, "--help"] for words in all_commands(command_line())]
    listed = json.loads(flamma(["list", "--json"], home).stdout or "{}")
    checks.check("flamma list --json", "" if listed else "no JSON")
    asked += [["list"], ["list", "--options"], ["list", "--options", "--json"]]
    asked += [["--version"], ["doctor"], ["data", "list"]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for words, done in zip(asked, pool.map(lambda w: flamma(w, home), asked), strict=True):
            checks.check(f"flamma {' '.join(words)}", ends_well(done))
    done = python(LISTS, home, json.dumps(list(listed)))
    checks.check("flamma list, every kind", ends_well(done) or ("" if done.stdout else "nothing"))
    needed = {"flower": ("engines", "flower"), "wandb": ("trackers", "wandb")}
    for extra, (kind, name) in needed.items():
        line = listed.get(kind, {}).get(name, "")
        said = f"pip install -c constraints.txt '.[{extra}]'" in line
        checks.check(f"flamma list {kind}: {name}", "" if said != (extra in extras) else line)
    told = json.loads(flamma(["doctor", "--json"], home).stdout or "{}").get("extras", {})
    complete = {extra for extra, facts in told.items() if facts["complete"]}
    checks.check("flamma doctor: extras", "" if told and complete == set(extras) else str(told))


def check_lanes_and_report(checks: Checks, extras: list[str], home: Path) -> None:
    """Check that lanes are compiled, train the published bits, and that a report is written."""
    lanes = flamma(["run", *SMALL, "--trainer", "lanes", "--out", "lanes"], home)
    checks.check("lanes are compiled", ends_well(lanes))
    again = ["compare", "--check", str(PUBLISHED), "--strategies", "flamma", "--splits", "shards"]
    done = flamma([*again, "--out", "again"], home)
    checks.check("flamma compare --check", ends_well(done) and f"{ends_well(done)}{done.stdout}")
    if "report" in extras:
        checks.check("a report", ends_well(flamma(["report", "done"], home)))
        page = home / "done" / "report.html"
        size = page.stat().st_size if page.exists() else 0
        checks.check("a report has its scripts", "" if size > 100_000 else f"{size} bytes")


def check_readme(checks: Checks, extras: list[str], home: Path) -> None:
    """Check the README's examples in Python and, with the extra that it installs, its commands."""
    page = ROOT / "README.md"
    examples = home / "examples.md"
    examples.write_text(python_examples(page, extras), encoding="utf-8")
    program = [sys.executable, "-m", "doctest", "-o", "NORMALIZE_WHITESPACE", "-o", "FAIL_FAST"]
    done = started([*program, str(examples)], home)
    checks.check("README.md, Python", done.stdout if done.returncode else "")
    if "report" not in extras:
        return
    with session(page, new_folder(home), extras) as steps:
        for step, printed, code in steps:
            fine = step.holds(printed, code) or (
                code == 0 and matches(step.printed, printed, figures=True)
            )
            wrong = "" if fine and "Traceback" not in printed else f"exit code {code}: {printed}"
            checks.check(f"README.md: $ {step.line}", wrong)


def main(extras: list[str]) -> int:
    """Run all checks; return 1 if one failed."""
    began = time.monotonic()
    os.environ.pop("PYTHONPATH", None)
    checks = Checks()
    place = importlib.util.find_spec("flamma")
    inside = place is not None and Path(str(place.origin)).is_relative_to(sys.prefix)
    checks.check("FLamma is installed in this environment", "" if inside else str(place))
    every = set(metadata(DISTRIBUTION).get_all("Provides-Extra") or ()) - {"dev", "docs"}
    checks.check("every extra is known here", "" if every == set(MODULES) else str(every))
    for extra, modules in MODULES.items():
        there = [module for module in modules if importlib.util.find_spec(module)]
        wrong = "" if there == (modules if extra in extras else []) else f"there is {there}"
        checks.check(f"the packages of {extra}", wrong)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        checks.check("a run", ends_well(flamma(["run", *SMALL, "--out", "done"], home)))
        checks.check("runs from Python", ends_well(python(USE, new_folder(home))))
        check_lanes_and_report(checks, extras, home)
        check_helps_and_lists(checks, extras, home)
        check_commands(checks, "a mistake", COMMAND_MISTAKES, home)
        check_expressions(checks, "a mistake", EXPRESSION_MISTAKES, "FlammaError", home)
        missing = [extra for extra in MODULES if extra not in extras]
        commands = [
            (w, f"pip install -c constraints.txt '.[{e}]'")
            for e in missing
            for w in COMMANDS_OF_EXTRAS[e]
        ]
        check_commands(checks, "a missing extra", commands, home)
        uses = [
            (x, f"pip install -c constraints.txt '.[{e}]'")
            for e in missing
            for x in EXPRESSIONS_OF_EXTRAS[e]
        ]
        check_expressions(checks, "a missing extra", uses, "MissingExtraError", home)
        check_readme(checks, extras, home)
    seconds = time.monotonic() - began
    print(f"FLamma with {', '.join(extras) or 'no extra'}, in {seconds:.0f} seconds:")
    print(f"{checks.passed} passed, {checks.failed} failed")
    return int(checks.failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
