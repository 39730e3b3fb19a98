"""A million clients from end to end: run, kill, resume, report; seconds, memory and sizes.

Logistic regression on a dozen samples of 20 features a client, 1,000 clients a round. The run is
killed in the middle and resumed as a user would do it, with `flamma resume`. Seconds besides
training are those from the end of one round to the end of the next, without training: selecting,
the game, aggregating, evaluating, recording and writing checkpoints. Memory is that of all
processes together, twice: the sum of each one's own peak (`VmHWM`, which counts shared pages once
in every process), and the largest proportional set size of all at one moment.

    python benchmarks/million_clients.py [--clients 1000000] [--strategy fedavg]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import psutil

from flamma.experiments.folder import ROUNDS
from flamma.experiments.run import Run

LOOK_SECONDS = 0.1
"""Seconds between two looks at the memory of the processes."""

FLAMMA = (sys.executable, "-m", "flamma")


class MemoryWatch:
    """Follows a process and its children: the peak of each, and of all of them together."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.peaks: dict[int, float] = {}
        self.together = 0.0
        self._root = psutil.Process(process.pid)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while self._root.is_running() and self._root.status() != psutil.STATUS_ZOMBIE:
            with contextlib.suppress(psutil.Error):
                family = [self._root, *self._root.children(recursive=True)]
                now = 0.0
                for process in family:
                    with contextlib.suppress(OSError, psutil.Error):
                        own = Path(f"/proc/{process.pid}")
                        self.peaks[process.pid] = _kilobytes(own / "status", "VmHWM") / 1e6
                        now += _kilobytes(own / "smaps_rollup", "Pss") / 1e6
                self.together = max(self.together, now)
            time.sleep(LOOK_SECONDS)

    @property
    def summed(self) -> float:
        """The sum of the processes' own peaks, in GB."""
        return sum(self.peaks.values())


def _kilobytes(path: Path, key: str) -> float:
    lines = [x for x in path.read_text().splitlines() if x.startswith(f"{key}:")]
    if not lines:
        raise OSError(f"{path} has no {key}: the process has ended")
    return float(lines[0].split()[1])


def flamma(folder: Path, *words: str, kill_after: int | None = None) -> tuple[list[float], str]:
    """Run a command; return when each round was finished, and what was printed.

    With ``kill_after`` it is killed, with all its processes, once so many rounds are recorded.
    """
    with subprocess.Popen(
        [*FLAMMA, *words], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        WATCHES.append(MemoryWatch(process))
        ends: list[float] = []
        while process.poll() is None:
            with contextlib.suppress(OSError):
                done = (folder / ROUNDS).read_bytes().count(b"\n")
                del ends[done:]  # a resumed run does rounds after its last checkpoint again
                ends += [time.perf_counter()] * (done - len(ends))
            if kill_after is not None and len(ends) >= kill_after:
                os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.01)
        printed = process.communicate()[0]
    return ends, printed


WATCHES: list[MemoryWatch] = []


def settings(options: argparse.Namespace) -> list[str]:
    chosen = {
        "model.name": "logistic",
        "data.dataset": "synthetic",
        "data.split": options.split,
        "data.clients": options.clients,
        "data.train_samples": options.samples * options.clients,
        "data.validation_samples": 0,
        "rounds": options.rounds,
        "per_round": options.per_round,
        "training.epochs": 2,
        "engine.processes": options.processes,
        "evaluation.every": options.evaluate_every,
        "strategy.name": options.strategy,
    }
    if options.strategy.startswith("flamma"):
        chosen["strategy.warmup_iterations"] = 0
    if options.evaluate_clients is not None:
        chosen["evaluation.clients"] = options.evaluate_clients
    return [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]


def size_of(folder: Path) -> dict[str, float]:
    """Return the MB of everything in a run directory."""
    found: dict[str, float] = {}
    for file in folder.rglob("*"):
        if file.is_file():
            part = file.relative_to(folder).parts[0]
            found[part] = found.get(part, 0.0) + file.stat().st_size / 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--per-round", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--samples", type=int, default=12, help="training samples of a client")
    parser.add_argument("--split", default="iid")
    parser.add_argument("--strategy", default="flamma")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--evaluate-every", type=int, default=1)
    parser.add_argument("--evaluate-clients", type=int)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run directory there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary) / "run"
        measure(options, folder)


def measure(options: argparse.Namespace, folder: Path) -> None:
    started = time.perf_counter()
    words = ["run", "--out", str(folder), *settings(options)]
    before, _ = flamma(folder, *words, kill_after=options.rounds // 2)
    if not before:
        raise SystemExit("the run ended before its first round")
    resumed = time.perf_counter()
    after, printed = flamma(folder, "resume", str(folder), "--json")
    ended = time.perf_counter()
    run = Run.load(folder)
    done = json.loads(printed.partition("\nReport")[0])
    new = [end for end in after if end > after[0]]  # the others were there before
    last = [b - a for a, b in pairwise(new)]
    rounds = run.history[-len(last) :]
    own = [whole - r.cost.seconds_train for whole, r in zip(last, rounds, strict=True)]
    begun = time.perf_counter()
    subprocess.run([*FLAMMA, "report", str(folder)], check=True, capture_output=True)
    report_seconds = time.perf_counter() - begun
    sizes = size_of(folder)
    told = {
        "rounds": len(run.history),
        f"clients evaluated, every {options.evaluate_every} rounds": done["sample"]
        or options.clients,
        "first round, from the start, s": before[0] - started,
        "resume to its first new round, s": new[0] - resumed,
        "resume to the end, with a report, s": ended - resumed,
        "report alone, s": report_seconds,
        "training, median of rounds, s": statistics.median(r.cost.seconds_train for r in rounds),
        "besides training, median of rounds, s": statistics.median(own),
        "besides training, largest, s": max(own),
        "sum of the processes' peaks, GB": max(watch.summed for watch in WATCHES),
        "all processes at one moment, GB": max(watch.together for watch in WATCHES),
        "run directory without report, MB": sum(sizes.values()) - sizes["report.html"],
        "report, MB": sizes["report.html"],
    }
    print(f"{options.clients} clients, {options.per_round} a round, {options.strategy}")
    for name, value in told.items():
        print(f"{name:40} {value:.3f}" if isinstance(value, float) else f"{name:40} {value}")
    for part, size in sorted(sizes.items()):
        print(f"  {part:38} {size:.3f}")


if __name__ == "__main__":
    main()
