"""Every script in examples/ runs from nothing, and does what it says."""

from __future__ import annotations

import re
import subprocess
import sys

import flamma
from documented import ROOT
from flamma.contributions import CONTRIBUTIONS


def test_own_federation_runs_three_strategies_on_own_data(tmp_path):
    script = ROOT / "examples" / "own_federation.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    accuracies = dict(re.findall(r"^(\S+): accuracy ([\d.]+)%", done.stdout, flags=re.MULTILINE))
    assert list(accuracies) == ["fedavg", "tilted", "flamma"]
    assert all(float(accuracy) > 70 for accuracy in accuracies.values())  # chance is 33
    run = flamma.Run.load(tmp_path / "flamma")
    assert run.finished
    assert run.config.data.dataset == "own"
    assert run.summary()["follower_gap"] < 1e-9
    assert len(script.read_text(encoding="utf-8").splitlines()) < 80


def test_the_laboratory_compares_every_measure_with_exact_shapley_values():
    script = ROOT / "examples" / "shapley_laboratory" / "laboratory.py"
    words = [sys.executable, str(script), "--clients", "3", "--rounds", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    values, header, *rows = done.stdout.splitlines()
    assert sum(float(value) > 0 for value in values.split()[-3:]) == 3
    earned = {name: [float(v) for v in row] for name, *row in map(str.split, rows)}
    assert set(earned) >= {*CONTRIBUTIONS}
    free_rider = header.split().index("free-rider") - 1
    assert earned["leave-one-out"][free_rider] < 0.1 < 1 < earned["distance"][free_rider]
