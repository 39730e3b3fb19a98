"""The time of a round on a deployed federation of three sites with tiny work.

    python benchmarks/deploy_round.py                   both, 5 rounds each
    python benchmarks/deploy_round.py --only flamma

``flower`` is Flower 1.41 as it comes: SuperLink and SuperNodes with their defaults behind TLS and
keys, its own FedAvg, a ClientApp in torch; a message for training and one for evaluation.
``flamma`` is ``flamma deploy`` with the same data, model and local epochs, all on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from flamma.deploy.control import Control
from flamma.deploy.hosts import ServerHost, read_hosts
from flamma.deploy.init import free_ports
from flamma.deploy.templates import flower_config
from flamma.engines.flower.environment import OFFLINE_ENVIRONMENT
from flamma.experiments.folder import RunFolder

SCRIPTS = Path(sysconfig.get_path("scripts"))
APP = Path(__file__).parent / "deploy"
TIMEOUT_SECONDS = 600.0


def flamma(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "flamma", *map(str, words)], text=True, capture_output=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def with_flamma(folder: Path, rounds: int) -> None:
    flamma("deploy", "up", folder)
    try:
        out = folder / "run"
        began = time.monotonic()
        flamma(
            *("deploy", "run", folder, "--strategy", "fedavg", "--rounds", rounds + 1),
            *("--model", "logistic", "--epochs", 1, "--out", out),
        )
        took = time.monotonic() - began
    finally:
        flamma("deploy", "down", folder)
    records = RunFolder(out).rounds()
    each = [record.cost.seconds for record in records[1:-1]]
    show("flamma", "train and evaluate, one message", each)
    show("flamma", "evaluate alone (the last round)", [records[-1].cost.seconds_evaluate])
    print(f"{'flamma':8} the whole run of {len(records)} rounds with starting: {took:.1f} s")


def with_flower(folder: Path, rounds: int) -> None:
    hosts = read_hosts(folder)
    with flower_processes(hosts) as environment:
        out = folder / "phases.jsonl"
        sites = f'out="{out}" rounds={rounds + 1}'
        subprocess.run(
            [str(SCRIPTS / "flwr"), "run", str(APP), "--run-config", sites],
            env=environment,
            check=True,
            capture_output=True,
        )
        until = time.monotonic() + TIMEOUT_SECONDS
        phases: list[dict[str, float]] = []
        while len(phases) < 2 * (rounds + 1) and time.monotonic() < until:
            time.sleep(1)
            if out.exists():
                phases = [json.loads(line) for line in out.read_text().splitlines()]
    for kind in ("train", "evaluate"):
        show("flower", kind, [p["seconds"] for p in phases if p["kind"] == kind][1:])


@contextlib.contextmanager
def flower_processes(hosts: list) -> Iterator[dict[str, str]]:
    """Start SuperLink and SuperNodes with Flower's defaults, but with TLS and keys, and offline."""
    server: ServerHost = hosts[0]
    server.flower_home.mkdir(parents=True)
    server.state.mkdir()
    config = flower_config(str(server.authority), server.control_port)
    (server.flower_home / "config.toml").write_text(config)
    environment = {
        **os.environ,
        **OFFLINE_ENVIRONMENT,
        "FLWR_HOME": str(server.flower_home),
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
    }
    own = f"127.0.0.1:{server.control_port}"
    superlink = [
        *("flower-superlink", "--host", "127.0.0.1", "--port", str(server.control_port)),
        *("--ssl-certfile", str(server.folder / "server.pem")),
        *("--ssl-keyfile", str(server.folder / "server.key")),
        *("--ssl-ca-certfile", str(server.authority), "--enable-supernode-auth"),
        *("--disable-runtime-dependency-installation",),
    ]
    commands = [superlink]
    for site, port in zip(hosts[1:], free_ports(len(hosts) - 1), strict=True):
        commands.append(
            [
                *("flower-supernode", "--superlink", own),
                *("--root-certificates", str(site.authority)),
                *("--auth-supernode-private-key", str(site.key)),
                *("--node-config", f'site="{site.folder / "site.toml"}"'),
                *("--host", "127.0.0.1", "--port", str(port)),
            ]
        )
    running = []
    try:
        for number, command in enumerate(commands):
            log = open(server.state / f"{number}.log", "wb")  # noqa: SIM115
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            log.close()
            if number == 0:
                subprocess.run(
                    [sys.executable, "-m", "flamma.deploy.control", str(server.folder)], check=True
                )
        wait_online(server)
        yield environment
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(timeout=30)


def wait_online(server: ServerHost) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    with Control(server) as control:
        while control.offline():
            if time.monotonic() > until:
                raise SystemExit("the sites did not come online")
            time.sleep(0.5)


def show(who: str, what: str, seconds: list[float]) -> None:
    spread = f"{min(seconds):.1f} to {max(seconds):.1f}"
    print(f"{who:8} {what:34} {statistics.median(seconds):5.1f} s  ({spread}, n={len(seconds)})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["flower", "flamma"])
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}, cores: {os.cpu_count()}")
    for name, measure in (("flower", with_flower), ("flamma", with_flamma)):
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="flamma-round-") as place:
                folder = Path(place) / "fed"
                flamma("deploy", "init", folder, "--sites", 3)
                measure(folder, options.rounds)


if __name__ == "__main__":
    main()
