"""Every benchmark starts, knows the options it is documented with, and the cheap ones run."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys

import pytest

from documented import PAGES, ROOT

HOME = ROOT / "benchmarks"
RESULTS = ROOT / "docs" / "results"
COMMAND = re.compile(r"\bpython\s+benchmarks/([\w/]+\.py)((?:\\\s*\n|[^`\n#]|\n(?=\s+\[?--))*)")

SMALLEST = {
    "attacks.py": "--limit 1 --seeds 1 --processes 1 --table attacks.json",
    "convergence.py": "--rounds 2 --seeds 1",
    "draw_grid.py": "",
    "game_scaling.py": "--most 2",
    "grid_frontier.py": f"{RESULTS}/grid-held-back.json --out frontier.png",
    "grid_tables.py": f"{RESULTS}/grid-development.json",
    "growth.py": "--most 2 --trainers lanes --processes 1",
    "join_tables.py": f"quick {RESULTS}/quick.json --out joined.json",
    "lanes_vs_torch.py": "--model logistic --clients 2 --samples 32 --repeats 1",
    "many_clients.py": "--clients 50 --per-round 5 --rounds 2 --processes 1",
    "peers/prepare.py": """workload '{"clients": 3, "samples": 20, "per_round": 2}'""",
    "price_of_honesty.py": "--games 1",
    "small_clients.py": "--clients 20 --rounds 3",
    "study.py": f"{RESULTS}/laptop.json",
}
"""Benchmarks that take seconds at the smallest size."""

LONGER = {
    "accelerator.py": "--device cpu --models lenet5 --clients 2 --samples 32 --repeats 1",
    "memory_rows.py": "--clients 100 --per-round 5 --samples 8 --rounds 8 --processes 1",
    "million_clients.py": "--clients 40 --per-round 4 --rounds 4 --processes 1",
    "mkl.py": "--models logistic --turns 1",
    "resnet.py": "--widths 0.1 --norms group --stem-strides 2 --samples 8 --repeats 1",
    "suite_steps.py": "quick --strategies fedavg --steps 0.1 --rounds 1 --processes 1",
}


def documented() -> dict[str, set[str]]:
    """Return the scripts that pages and scripts name as commands, with the options they give."""
    found: dict[str, set[str]] = {}
    for path in [*PAGES, *sorted(HOME.rglob("*.py")), *sorted(HOME.glob("*.toml"))]:
        for name, rest in COMMAND.findall(path.read_text(encoding="utf-8")):
            found.setdefault(name, set()).update(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest))
    return found


DOCUMENTED = documented()


def test_benchmarks_are_found_in_the_documentation():
    assert len(DOCUMENTED) > 30
    assert "--peers-python" in DOCUMENTED["peers/run.py"]
    assert SMALLEST.keys() | LONGER.keys() <= DOCUMENTED.keys()


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_a_benchmark_starts_and_has_the_options_it_is_documented_with(name, monkeypatch, capsys):
    script = HOME / name
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    if "argparse" not in script.read_text(encoding="utf-8"):
        assert not DOCUMENTED[name]
        runpy.run_path(str(script), run_name="benchmark")
        return
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert {o for o in DOCUMENTED[name] if not re.search(rf"{o}\b(?!-)", printed)} == set()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(pytest.param(*one, id=one[0]) for one in SMALLEST.items()),
        *(pytest.param(*one, id=one[0], marks=pytest.mark.slow) for one in LONGER.items()),
    ],
)
def test_a_benchmark_runs_at_its_smallest_size(name, words, tmp_path):
    done = subprocess.run(
        [sys.executable, str(HOME / name), *shlex.split(words)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
