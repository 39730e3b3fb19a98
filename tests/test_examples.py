"""Every script in examples/ runs from nothing, and does what it says."""

from __future__ import annotations

import re
import subprocess
import sys

import flamma
from documented import ROOT


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
