"""Another package adds a strategy, a split, a contribution measure, a cost kind and a metric.

Each is one file and one entry point, its options are keys of the configuration, and the metric
appears wherever ours do. This is what CONTRIBUTING.md promises.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "gadget/__init__.py": "",
    "gadget/strategy.py": '''
from dataclasses import dataclass, replace
from typing import ClassVar

from flamma.strategies.fedavg import FedAvg


@dataclass(frozen=True)
class Hasty(FedAvg):
    """FedAvg whose clients do fewer epochs.

    Parameters
    ----------
    hurry : int
        How many epochs every client leaves out.
    """

    name: ClassVar[str] = "hasty"
    label: ClassVar[str] = "Hasty"
    summary: ClassVar[str] = "FedAvg in a hurry"

    hurry: int = 1

    def terms(self, client, round):
        return replace(super().terms(client, round), epochs=self.plan.epochs - self.hurry)
''',
    "gadget/split.py": '''
import numpy as np


def stripes(pool, *, width: int = 1):
    """Deal the samples in stripes.

    Parameters
    ----------
    width : int
        How many neighbouring samples go to one client.
    """
    return (np.arange(pool.labels.size) // width) % pool.clients
''',
    "gadget/measure.py": '''
def flat(update, *, level: float = 0.5):
    """Say the same of every client.

    Parameters
    ----------
    level : float
        What is said.
    """
    return level
''',
    "gadget/cost.py": '''
import numpy as np


def ladder(clients, *, step: float = 0.01):
    """Make every client dearer than the one before.

    Parameters
    ----------
    step : float
        By how much.
    """
    return 0.05 + step * np.arange(clients.count)
''',
    "gadget/metric.py": """
import numpy as np

from flamma.metrics import ScoreMetric



def median(scores):
    known = scores.accuracy[~np.isnan(scores.accuracy)]
    return float(np.median(known)) if known.size else float("nan")


middle = ScoreMetric(label="median accuracy", unit="%", better="higher", score=median)
""",
    "gadget-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: gadget\nVersion: 1.0\n",
    "gadget-1.0.dist-info/entry_points.txt": """[flamma.strategies]
hasty = gadget.strategy:Hasty
[flamma.splits]
stripes = gadget.split:stripes
[flamma.contributions]
flat = gadget.measure:flat
[flamma.costs]
ladder = gadget.cost:ladder
[flamma.metrics]
median_accuracy = gadget.metric:middle
""",
    "suite.toml": """name = "gadget"
seeds = 2
splits = ["stripes"]
strategies = ["hasty", "flamma"]

[run]
rounds = 3
per_round = 2
data = { clients = 4, train_samples = 150, validation_samples = 0, width = 3 }
model = "logistic"
costs = { kind = "ladder", step = 0.02 }

[overrides.hasty.strategy]
hurry = 2

[overrides.flamma.strategy]
contribution = { name = "flat", level = 0.75 }
""",
    "test_contracts.py": """
from flamma.testing import (
    ContributionContract, CostContract, MetricContract, SplitContract, StrategyContract
)


class TestHasty(StrategyContract):
    name = "hasty"

    def make(self, plan=None):
        # Whoever plans one epoch cannot leave out one.
        strategy = super().make(*([] if plan is None else [plan]))
        return type(strategy)(strategy.plan, hurry=0)


class TestStripes(SplitContract):
    name, options = "stripes", {"width": 2}


class TestFlat(ContributionContract):
    name = "flat"


class TestLadder(CostContract):
    name = "ladder"


class TestMedian(MetricContract):
    name = "median_accuracy"
""",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gadget")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def python(package: Path, *words: str) -> str:
    """Run Python where the package is installed, and return what it prints."""
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *words],
        cwd=package,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compared(package):
    python(package, "-m", "flamma", "compare", "suite.toml", "--out", "out", "--processes", "1")
    return package / "out"


def test_everything_is_listed_with_its_options(package):
    listed = json.loads(python(package, "-m", "flamma", "list", "--options", "--json"))
    assert listed["strategies"]["hasty"]["options"]["hurry"] == {
        "type": "a whole number",
        "default": "1",
        "help": "How many epochs every client leaves out.",
    }
    assert listed["splits"]["stripes"]["options"].keys() == {"width"}
    assert listed["contribution measures"]["flat"]["options"]["level"]["default"] == "0.5"
    assert listed["costs"]["ladder"]["options"]["step"]["help"] == "By how much."
    assert listed["metrics"]["median_accuracy"]["about"] == "median accuracy"


def test_the_options_are_in_force(compared):
    from flamma.experiments.config import read_config
    from flamma.records import RoundRecord

    runs = compared / "runs" / "digits" / "stripes"
    tables = read_config(runs / "hasty" / "seed-0" / "config.toml")
    assert tables["data"]["width"] == 3
    assert tables["costs"] == {"kind": "ladder", "step": 0.02}
    assert tables["strategy"]["hurry"] == 2
    hasty = (runs / "hasty" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    assert RoundRecord.from_json(hasty[0]).outcome.local_epochs == (3, 3)
    played = (runs / "flamma" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    record = RoundRecord.from_json(played[-1])
    assert record.offer.contributions == (0.75, 0.75)
    assert record.game.measure == "flat"
    costs = [float(c) for c in record.game.costs]
    assert costs == pytest.approx([0.05 + 0.02 * client for client in record.selected])


def test_the_metric_is_in_record_table_csv_page_and_show(compared, package):
    run = compared / "runs" / "digits" / "stripes" / "hasty" / "seed-1"
    record = json.loads((run / "rounds.jsonl").read_text().splitlines()[0])
    assert 0 <= record["evaluation"]["metrics"]["median_accuracy"] <= 100
    assert "Median accuracy (stripes)" in (compared / "table.md").read_text()
    with open(compared / "table.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert 0 <= float(row["median_accuracy_mean"]) <= 100
    assert "median accuracy" in (compared / "report.html").read_text().lower()
    assert "median accuracy, %" in python(package, "-m", "flamma", "show", str(run))
    python(package, "-m", "flamma", "report", str(run))
    assert "median accuracy" in (run / "report.html").read_text().lower()


def test_the_label_is_in_the_table(compared):
    assert "| Hasty |" in (compared / "table.md").read_text()


def test_its_parts_keep_the_shipped_contracts(package):
    told = python(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_contracts.py")
    assert " passed" in told
