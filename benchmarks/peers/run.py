"""FLamma side by side with plain PyTorch and other federated-learning frameworks.

    python -m venv PEERS && PEERS/bin/pip install torch==2.13.0
    PEERS/bin/pip install -r benchmarks/requirements.txt
    python benchmarks/peers/run.py --peers-python PEERS/bin/python [--repeats 3]

All train the same workload (FedAvg, LeNet-5 unless --model says ``logistic``, noise of MNIST's
shape; see ``workload.Settings``) from the same weights, with the same clients in each round and
the same batches, and judge nothing on the way. Every contender runs in processes of its own, in
turn, as often as --repeats says. A first run of one round warms the files up, has its memory
looked at ten times a second, and gives the weights that are compared with those of the plain
PyTorch loop.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from workload import Settings

HERE = Path(__file__).parent
CONTENDERS = {
    "flamma_run": "FLamma, flamma.run, 2 processes",
    "torch_serial": "PyTorch loop, 1 process, 1 thread",
    "torch_pool": "PyTorch, pool of 2 processes",
    "flower_ray": "Flower simulation, Ray, 2 actors",
    "pfl_two": "pfl-research, 2 workers",
    "fedlab_serial": "FedLab standalone, 1 process, 2 threads",
    "fluke_serial": "fluke, 1 process, 2 threads",
    "flgo_threads": "FLGo, pool of 2 threads",
}
OURS, PLAIN = "flamma_run", "torch_serial"
PACKAGES = ("torch", "numpy", "flwr", "ray", "pfl", "fedlab", "fluke-fl", "flgo")
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # its workers would give way to whatever else runs
    "WANDB_MODE": "disabled",
}
OFTEN, SELDOM = 0.1, 1.0
"""Seconds between two looks at the memory: in the first run, and in those that are timed."""


def family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def memory(processes: list[psutil.Process]) -> int:
    """Return the bytes that processes hold together; shared pages count once (PSS)."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def pause(child: subprocess.Popen, seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


def end(processes: list[psutil.Process]) -> None:
    """End what a contender has left behind."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=10)


def run(python: str, name: str, folder: Path, rounds: int, limit: float, every: float) -> dict:
    """Run a contender once; return its times, peak memory and weights."""
    with tempfile.TemporaryDirectory(prefix="peers-") as out:
        command = [python, str(HERE / f"{name}.py"), str(folder), out, str(rounds)]
        seen: dict[int, psutil.Process] = {}
        peak, most = 0, 0
        with (Path(out) / "log").open("w") as log:
            start = time.monotonic()
            env = os.environ | QUIET | {"FLWR_HOME": str(Path(out) / "flwr")}
            child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
            parent = psutil.Process(child.pid)
            try:
                while child.poll() is None and time.monotonic() - start < limit:
                    now = family(parent)
                    seen |= {process.pid: process for process in now}
                    peak, most = max(peak, memory(now)), max(most, len(now))
                    pause(child, every)
            finally:
                end([process for process in seen.values() if process.is_running()])
            child.wait()
        if child.returncode or not (Path(out) / "times.json").exists():
            tail = (Path(out) / "log").read_text(errors="replace")[-1500:]
            raise RuntimeError(f"{name} ended with {child.returncode}:\n{tail}")
        times = json.loads((Path(out) / "times.json").read_text())
        assert len(times) == rounds
        return {
            "seconds_to_first_round": times[0] - start,
            "seconds_per_round": np.diff(times).tolist(),
            "peak_bytes": peak,
            "processes": most,
            "weights": np.load(Path(out) / "weights.npy"),
        }


def versions(python: str) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json, sys\nfound = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    output = subprocess.check_output([python, "-c", code, "flamma-fl", *PACKAGES], text=True)
    return json.loads(output)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {os.cpu_count()} cores" if names else platform.processor()


def summary(runs: list[dict], first: dict) -> dict:
    """Return medians over the runs, or over all their rounds but the first; the most memory."""
    rounds = [seconds for one in runs for seconds in one["seconds_per_round"]]
    return {
        "seconds_per_round": statistics.median(rounds),
        "fastest_round": min(rounds),
        "slowest_round": max(rounds),
        "seconds_to_first_round": statistics.median(r["seconds_to_first_round"] for r in runs),
        "peak_megabytes": max(r["peak_bytes"] for r in (first, *runs)) / 1e6,
        "processes": max(r["processes"] for r in runs),
    }


def table(results: dict[str, dict]) -> str:
    """Return the results as a table in Markdown, with ratios to FLamma."""
    ours = results.get(OURS)
    lines = [
        "| | s a round (range) | of FLamma | s to the first round | of FLamma | peak MB "
        "| of FLamma | weights differ by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        keys = ("seconds_per_round", "seconds_to_first_round", "peak_megabytes")
        ratios = [f"{row[key] / ours[key]:.2f}" if ours else "" for key in keys]
        spread = f"{row['fastest_round']:.2f} to {row['slowest_round']:.2f}"
        away = f"{row['difference']:.1e}" if "difference" in row else ""
        lines.append(
            f"| {CONTENDERS[name]} | {row['seconds_per_round']:.2f} ({spread}) | {ratios[0]} "
            f"| {row['seconds_to_first_round']:.1f} | {ratios[1]} "
            f"| {row['peak_megabytes']:.0f} | {ratios[2]} | {away} |"
        )
    return "\n".join(lines)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--flamma-python", default=sys.executable)
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--limit", type=float, default=300, help="seconds that one run may take")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    for field in dataclasses.fields(Settings):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    return parser.parse_args()


def main() -> None:
    chosen = options()
    settings = Settings(
        **{field.name: getattr(chosen, field.name) for field in dataclasses.fields(Settings)}
    )
    python = dict.fromkeys(CONTENDERS, chosen.peers_python) | {OURS: chosen.flamma_python}
    failures: dict[str, str] = {}
    first: dict[str, dict] = {}
    runs: dict[str, list[dict]] = {name: [] for name in chosen.only}
    with tempfile.TemporaryDirectory(prefix="peers-workload-") as place:
        folder = Path(place)
        subprocess.check_call(
            [
                chosen.flamma_python,
                str(HERE / "prepare.py"),
                place,
                json.dumps(dataclasses.asdict(settings)),
            ]
        )
        for turn in range(chosen.repeats + 1):
            for name in chosen.only:
                if name in failures:
                    continue
                rounds, every = (settings.rounds, SELDOM) if turn else (1, OFTEN)
                try:
                    done = run(python[name], name, folder, rounds, chosen.limit, every)
                except RuntimeError as error:
                    failures[name] = str(error)
                    print(error, file=sys.stderr, flush=True)
                    continue
                if turn:
                    runs[name].append(done)
                    seconds = statistics.median(done["seconds_per_round"])
                    print(f"run {turn} {name}: {seconds:.2f} s a round", flush=True)
                else:
                    first[name] = done
            if turn:
                write(chosen, settings, runs, first, failures)
    print(table(write(chosen, settings, runs, first, failures)["results"]))


def write(chosen, settings, runs, first, failures) -> dict:
    """Write all that is known so far, so that an interrupted comparison keeps it."""
    results = {name: summary(own, first[name]) for name, own in runs.items() if own}
    for name in results:
        if PLAIN in first:
            away = np.abs(first[name]["weights"] - first[PLAIN]["weights"])
            results[name]["difference"] = float(away.max())
    said = {
        "settings": dataclasses.asdict(settings),
        "repeats": chosen.repeats,
        "machine": processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "psutil": importlib.metadata.version("psutil"),
        "versions": {
            "flamma": versions(chosen.flamma_python),
            "peers": versions(chosen.peers_python),
        },
        "results": results,
        "runs": {
            name: [{k: v for k, v in one.items() if k != "weights"} for one in own]
            for name, own in runs.items()
        },
        "failures": failures,
    }
    chosen.out.write_text(json.dumps(said, indent=1) + "\n")
    return said


if __name__ == "__main__":
    main()
