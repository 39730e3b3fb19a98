"""Files of a directory that are devices, pipes or absurdly large: one sentence, little memory.

All cases of a directory are run in one process of its own, whose memory is limited.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flamma
from flamma.cli import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm, RLIMIT_AS")

SPARSE_BYTES = 3 << 30
MEMORY_BYTES = 3 << 29
"""What a command may take beyond what its process has when everything is imported."""

HANG_SECONDS = 120


def make_endless(path):
    path.symlink_to("/dev/zero")


def make_sparse(path):
    with path.open("wb") as file:
        file.truncate(SPARSE_BYTES)


ODD = {"endless": make_endless, "sparse": make_sparse, "pipe": os.mkfifo}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, a finished run with an audit, an interrupted one, and a comparison."""
    folder = tmp_path_factory.mktemp("odd")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 2)).round(3)
    lines = [f"{a},{b},{int(a > b)},{k % 4}" for k, (a, b) in enumerate(rows.tolist())]
    (folder / "table.csv").write_text("\n".join(["a,b,label,site", *lines, ""]))
    small = {
        "data": folder / "table.csv",
        "target": "label",
        "group": "site",
        "per_round": 2,
        "model": "logistic",
        "progress": False,
    }

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    first = flamma.run(**small, rounds=2, strategy="flamma-plus", out=folder / "finished")
    flamma.audit(
        folder / "finished",
        clients=[0],
        deviations=["drop"],
        processes=1,
        progress=False,
        out=folder / "audited",
    )
    with pytest.raises(KeyboardInterrupt):
        flamma.run(
            **small,
            rounds=3,
            strategy="flamma-plus",
            start=first,
            freeze="*bias",
            callbacks=[flamma.EarlyStopping(), flamma.BestCheckpoint()],
            on_round=stop,
            out=folder / "begun",
        )
    flamma.compare(
        strategies=["fedavg"],
        splits=["iid"],
        seeds=1,
        rounds=1,
        clients=2,
        per_round=1,
        model="logistic",
        processes=1,
        progress=False,
        out=folder / "compared",
    )
    return folder


COMMANDS = {
    "begun": ["show", "report", "export", "ledger", "predict", "watch", "resume"],
    "finished": ["audit"],
    "compared": ["show", "report"],
    "audited": ["show", "report"],
}
AUDITED = (
    "config.toml",
    "run.json",
    "rounds.jsonl",
    "clients.csv",
    "population.csv",
    "manifest.json",
)
"""What an audit reads; with anything else odd it would go on."""


@pytest.mark.parametrize("place", COMMANDS)
def test_odd_files_end_every_command_in_one_sentence(folder, tmp_path, place):
    done = subprocess.run(
        [sys.executable, __file__, str(folder), place, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert int(done.stdout.split()[-1]) >= 12, "too few cases"


def words_of(command, run, folder, scratch):
    return {
        "show": ["show", run],
        "report": ["report", run, "--out", scratch / "page.html"],
        "export": ["export", run, "--out", scratch / "weights.npz"],
        "ledger": ["ledger", run],
        "predict": ["predict", run, folder / "table.csv"],
        "resume": ["resume", run, "-q"],
        "audit": ["audit", run, "--clients", "0", "--deviations", "drop", "--processes", "1", "-q"],
    }[command]


def call(command, run, folder, scratch):
    """Run a command in this process; return its exit code and what it said."""
    if command == "watch":
        from flamma.experiments.folder import Follower
        from flamma.reports.live import _DirectoryWatch

        Follower(run).new()
        _DirectoryWatch(run).poll()
        return 0, ""
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        words = words_of(command, run, folder, scratch)
        code = main([str(word) for word in words])
    return code, said.getvalue()


def run_cases(folder, place, scratch):
    """Put odd files in the place of each file in turn, and run every command on that."""
    source = folder / place
    files = sorted(file for file in source.rglob("*") if file.is_file() and file.name != ".lock")
    names = [str(file.relative_to(source)) for file in files]
    if place == "finished":
        names = [name for name in names if name in AUDITED]
    if place == "audited":  # its runs are like any other
        names = [name for name in names if "/" not in name]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for command in COMMANDS[place]:  # imports what it needs, and works
        run = scratch / "whole"
        shutil.copytree(source, run)
        assert call(command, run, folder, scratch)[0] == 0, command
        shutil.rmtree(run)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    cases = [(c, name, kind) for c in COMMANDS[place] for name in names for kind in ODD]
    for command, name, kind in cases:
        run = scratch / "run"
        shutil.copytree(source, run)
        (run / name).unlink()
        ODD[kind](run / name)
        signal.alarm(HANG_SECONDS)
        code, said = call(command, run, folder, scratch)
        signal.alarm(0)
        case = f"{command}, {name} {kind}: {code} {said}"
        assert code in (0, 2), case
        assert "memory" not in said, case
        assert code == 0 or said.rstrip("\n").count("\n") == 0, case
        shutil.rmtree(run)
    print(len(cases))


if __name__ == "__main__":
    run_cases(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
