"""Kills a run at every write and every sync, resumes it, and compares it with an unharmed one.

A shim counts the operations by which a run reaches the disk: writes of open files, rows written in
place, syncs, renames and removals, of the training and of the thread that writes checkpoints beside
it; there is a checkpoint after every round. For each of them a process is forked that ends, without
any clean-up, just before or just after it; half of a write may have reached the file by then.
Another process resumes the run, and its weights and records must be those of the run that was left
alone.

    python tests/experiments/crash_points.py [--every N] [--rounds N] [--keeps]
"""

from __future__ import annotations

import argparse
import builtins
import os
import shutil
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flamma.experiments import checkpoint
from flamma.experiments.run import Run, resume, run
from flamma.simulation.executor import stay_on_one_thread

CRASHED = 137
TABLES = {
    "per_round": 2,
    "data": {"clients": 4, "train_samples": 120, "validation_samples": 0},
    "model": {"name": "logistic"},
    "strategy": {"name": "flamma-plus", "warmup_iterations": 2},
}
KEEPS = {"name": "controlled"}
"""A strategy whose clients keep something, in the place of the one above."""


class Shim:
    """Counts what reaches the disk, and ends the process at one of these moments."""

    def __init__(self, crash_at: int | None) -> None:
        self.count = 0
        self.crash_at = crash_at
        self._lock = threading.Lock()

    def moment(self) -> None:
        """Count one moment; it may be the last."""
        with self._lock:
            if self.count == self.crash_at:
                os._exit(CRASHED)
            self.count += 1

    def install(self) -> None:
        """Put the shim between this process and the disk."""
        for name in ("replace", "fsync", "unlink"):
            setattr(os, name, self._around(getattr(os, name)))
        real_pwrite = os.pwrite

        def halved(descriptor: int, content: bytes, place: int) -> int:
            self.moment()
            half = len(content) // 2
            real_pwrite(descriptor, content[:half], place)
            self.moment()
            return half + real_pwrite(descriptor, content[half:], place + half)

        os.pwrite = halved  # type: ignore[assignment]
        real_open, real_fdopen = builtins.open, os.fdopen
        builtins.open = lambda *a, **k: self._counted(real_open(*a, **k), a, k)  # type: ignore[assignment]
        os.fdopen = lambda *a, **k: self._counted(real_fdopen(*a, **k), a, k)  # type: ignore[assignment]

    def _around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.moment()
            found = real(*arguments, **options)
            self.moment()
            return found

        return counted

    def _counted(self, file: Any, arguments: Any, options: Any) -> Any:
        mode = options.get("mode", arguments[1] if len(arguments) > 1 else "r")
        return CountedFile(file, self) if isinstance(mode, str) and mode[0] in "wax" else file


class CountedFile:
    """A file whose writes may be cut off half-way."""

    def __init__(self, file: Any, shim: Shim) -> None:
        self._file, self._shim = file, shim

    def write(self, content: Any) -> int:
        """Write in two halves, with a moment between them."""
        self._shim.moment()
        half = len(content) // 2
        self._file.write(content[:half])
        self._file.flush()
        self._shim.moment()
        self._file.write(content[half:])
        return len(content)

    def writelines(self, lines: Any) -> None:
        """Write line by line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> CountedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def forked(job: Callable[[], object]) -> int:
    """Do a job in a process of its own and return its exit code."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            stay_on_one_thread()
            warnings.simplefilter("error")
            code = job()
            os._exit(code if isinstance(code, int) else 0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def crashing(place: Path, crash_at: int | None, rounds: int) -> int:
    """Run until the given moment; return the exit code. Without one, tell how many there are."""

    def job() -> None:
        checkpoint.SHARE_OF_TIME = 1e9
        shim = Shim(crash_at)
        shim.install()
        run(TABLES, out=place, rounds=rounds)
        if crash_at is None:
            Path(f"{place}.moments").write_bytes(str(shim.count).encode())

    return forked(job)


def fingerprint(place: Path) -> list[Any]:
    """Return what two runs must have in common."""
    done = Run.load(place)
    assert done.finished
    assert not done.problems, done.problems
    plain = [
        replace(
            r, warmup=None, cost=replace(r.cost, seconds=0, seconds_train=0, seconds_evaluate=0)
        )
        for r in done.history
    ]
    names = ("clients.csv", "ledger.csv")  # without a game there is no ledger
    tables = [(place / name).read_bytes() for name in names if (place / name).exists()]
    return [done.params_sha256, plain, *tables]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="try every so many moments")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keeps", action="store_true", help="clients that keep something")
    options = parser.parse_args()
    if options.keeps:
        sys.path.append(str(Path(__file__).parents[1]))
        import vector_strategies

        vector_strategies.register()
        TABLES["strategy"] = KEEPS
    folder = Path(tempfile.mkdtemp(prefix="flamma-crash-"))
    try:
        stay_on_one_thread()
        run(TABLES, out=folder / "first", rounds=1)  # forked processes need not import what it did
        assert crashing(folder / "whole", None, options.rounds) == 0
        moments = int((folder / "whole.moments").read_text())
        whole = fingerprint(folder / "whole")
        tried = 0
        for moment in range(0, moments, options.every):
            place = folder / f"crash-{moment}"
            assert crashing(place, moment, options.rounds) == CRASHED, f"moment {moment}"
            begun = (place / "config.toml").exists()

            def go_on(place: Path = place, begun: bool = begun) -> int:
                warnings.simplefilter("default")
                resume(place) if begun else run(TABLES, out=place, rounds=options.rounds)
                left = [f.name for f in place.rglob("*") if f.name.endswith(".flamma-tmp")]
                return 3 if left else int(fingerprint(place) != whole)

            code = forked(go_on)
            assert code == 0, f"after a crash at moment {moment}: {code}"
            shutil.rmtree(place)
            tried += 1
        print(f"{tried} crashes at {moments} moments, every run ended the same")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
