"""Damaged run directories: refused, named as damaged, or read as if they were unharmed.

Every file of a run is hit by flipped bits, cuts, deletions, doubled pieces and files of another
run. What is shown or resumed afterwards is that of the unharmed run, or a sentence says what is
wrong.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import re
import shutil
import tempfile
import warnings
from pathlib import Path

from flamma.cli import main
from flamma.errors import FlammaError
from flamma.experiments.run import Run, resume, run
from flamma.reports.document import as_json, read_document
from fuzzing.oracle import repeat, time_limit

TABLES = {
    "rounds": 4,
    "per_round": 2,
    "data": {"clients": 4, "train_samples": 120, "validation_samples": 0},
    "model": {"name": "logistic"},
    "strategy": {"name": "flamma-plus", "warmup_iterations": 2},
}
RESUMED = 0.02
"""The share of inputs that are resumed, too; it takes much longer than reading."""

SIZE_ROW = re.compile(r'\["run directory","[^"]*"\],?')


class StopError(Exception):
    """Interrupts a run."""


def fuzz(seed: int, seconds: float) -> int:
    """Try damaged directories for some time and return how many."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = {
            "whole": run(TABLES, out=folder / "whole"),
            "other": run(TABLES, out=folder / "other", seed=7),
        }
        with contextlib.suppress(StopError):
            run(TABLES, out=folder / "half", on_round=_stop)
        shutil.copytree(folder / "whole", folder / "victim")
        unharmed = _seen(folder / "victim")
        shutil.rmtree(folder / "victim")
        attempt = functools.partial(_attempt, folder=folder, unharmed=unharmed)
        return repeat(seed, seconds, lambda rng: attempt(rng, runs["whole"].params_sha256))


def _stop(record: object) -> None:
    if getattr(record, "round", 0) == 2:
        raise StopError


def _attempt(rng: random.Random, sha256: str, folder: Path, unharmed: tuple[str, str]) -> None:
    resumes = rng.random() < RESUMED
    place = folder / "victim"
    shutil.copytree(folder / ("half" if resumes else "whole"), place)
    try:
        what = damage(rng, place, folder / "other")
        if resumes:
            _check_resumed(place, sha256, what)
        else:
            _check_shown(place, unharmed, what)
    finally:
        shutil.rmtree(place)


def damage(rng: random.Random, place: Path, other: Path) -> str:
    """Damage one file of a directory and return what was done."""
    files = sorted(f for f in place.rglob("*") if f.is_file() and f.name != ".lock")
    file = rng.choice(files)
    name = file.relative_to(place)
    content = bytearray(file.read_bytes())
    kind = rng.choice(["flip", "flip", "flip", "cut", "gone", "double", "zero", "swap"])
    if kind == "flip" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[rng.randrange(len(content) + 1) :]
    elif kind == "double" and content:
        start = rng.randrange(len(content))
        content[start:start] = content[start : start + rng.randint(1, 400)]
    elif kind == "zero":
        start = rng.randrange(len(content) + 1)
        content[start : start + 16] = bytes(16)
    elif kind == "swap" and (other / name).exists():
        content = bytearray((other / name).read_bytes())
    if kind == "gone":
        file.unlink()
    else:
        file.write_bytes(bytes(content))
    return f"{kind} {name}"


def _seen(place: Path) -> tuple[str, str]:
    """Return what ``flamma show --json`` and the report make of a directory."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["show", str(place), "--json"])
    assert "Traceback" not in err.getvalue()
    assert code in (0, 2), code
    shown = out.getvalue() if code == 0 else "refused"
    if code == 0 and json.loads(shown)["problems"]:
        shown = "named"
    try:
        document = read_document(place)
        # The size of the directory may change with its files.
        page = "named" if document.notices else SIZE_ROW.sub("", as_json(document))
    except FlammaError:
        page = "refused"
    return shown, page


def _check_shown(place: Path, unharmed: tuple[str, str], what: str) -> None:
    with time_limit(), warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = _seen(place)
    for ours, theirs, where in zip(seen, unharmed, ("show", "report"), strict=True):
        assert ours in ("refused", "named", theirs), f"{what}: {where} differs without a word"


def _check_resumed(place: Path, sha256: str, what: str) -> None:
    with time_limit(60), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            done: Run = resume(place)
        except FlammaError:
            return
    assert done.params_sha256 == sha256, f"{what}: resumed to other weights"
