"""docs/how-to/deploy.md word for word, on machines that are network namespaces of this one.

One namespace is the server's host, three are the sites', and a bridge is the network between
them. Each has a mount of its own over /opt/flamma that holds its own folder and nothing else, so
that the commands are those of the page. What a host's part may write to is what its systemd unit
says; everything else is mounted for reading only. Needs root on Linux::

    python tests/deploy/namespaces.py        prints what is done, and what came of it

Whatever happens, processes, namespaces and folders are removed at the end.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SITES = ("site0", "site1", "site2")
TAG = f"fl{os.getpid() % 10000}"
NET = "10.203.17"
SERVER = f"{NET}.1"
RUN = "--strategy flamma --rounds 3 --model logistic --out /opt/flamma/server/runs/first"


class Machines:
    """Namespaces on one bridge, each a machine with /opt/flamma of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        self.names: list[str] = []

    def __enter__(self) -> Machines:
        root(f"ip link add {TAG} type bridge")
        root(f"ip link set {TAG} up")
        for number, name in enumerate(("server", *SITES), start=1):
            space = f"{TAG}-{name}"
            root(f"ip netns add {space}")
            self.names.append(space)
            outer, inner = f"{TAG}o{number}", f"{TAG}i{number}"
            root(f"ip link add {outer} type veth peer name {inner}")
            root(f"ip link set {outer} master {TAG} up")
            root(f"ip link set {inner} netns {space}")
            for line in (
                f"ip addr add {NET}.{number}/24 dev {inner}",
                f"ip link set {inner} up",
                "ip link set lo up",
            ):
                root(f"ip netns exec {space} {line}")
            (self.folder / name).mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait(timeout=60)
        for space in self.names:
            subprocess.run(["ip", "netns", "delete", space], check=False)
        subprocess.run(["ip", "link", "delete", TAG], check=False)

    def words(self, machine: str, command: str) -> list[str]:
        """Return a command as it is given on a machine."""
        own = self.folder / machine
        inside = f"mount --bind {own} /opt/flamma && exec {command}"
        enter = ["ip", "netns", "exec", f"{TAG}-{machine}", "unshare", "--mount", "sh", "-c"]
        return [*enter, inside]

    def start(self, machine: str, command: str) -> None:
        """Start a host's part as its unit would: the same command, writing to the same places."""
        print(f"[{machine}] $ {command}", flush=True)
        unit = (self.folder / machine / machine / f"flamma-{machine}.service").read_text()
        assert f"ExecStart={command}\n" in unit
        writable = unit.partition("ReadWritePaths=")[2].splitlines()[0]
        confined = " && ".join(
            (
                f"mount --bind {writable} {writable}",
                "mount -o remount,bind,ro /opt/flamma",
                "mount -o remount,bind,ro /",
                "mount -t tmpfs tmpfs /var/tmp",  # PrivateTmp=yes
                f"! touch /opt/flamma/x 2>/dev/null && TMPDIR=/var/tmp exec {command}",
            )
        )
        log = open(self.folder / f"{machine}.log", "wb")  # noqa: SIM115
        words = self.words(machine, f"sh -c {shlex.quote(confined)}")
        self.running.append(subprocess.Popen(words, stdout=log, stderr=log))
        log.close()

    def call(self, machine: str, command: str, show: bool = True) -> str:
        if show:
            print(f"[{machine}] $ {command}", flush=True)
        done = subprocess.run(
            self.words(machine, command), capture_output=True, text=True, timeout=300
        )
        if show:
            print(done.stdout + done.stderr, flush=True)
        if done.returncode:
            raise SystemExit(f"{machine}: {command} ended with {done.returncode}")
        return done.stdout


def root(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True)


def environment(place: Path) -> None:
    """Make /opt/flamma/venv/bin/flamma on a machine: the FLamma that runs this script."""
    program = place / "venv" / "bin" / "flamma"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m flamma "$@"\n')
    program.chmod(0o755)


def main() -> None:
    mount = Path("/opt/flamma")
    ours = not mount.exists()
    mount.mkdir(parents=True, exist_ok=True)
    try:
        deploy()
    finally:
        if ours:
            mount.rmdir()


def deploy() -> None:
    """Do what the page says."""
    flamma = "/opt/flamma/venv/bin/flamma"
    with tempfile.TemporaryDirectory(prefix="flamma-machines-") as folder:
        place = Path(folder)
        fed = place / "fed"
        line = f"flamma deploy init fed --sites 3 --host {SERVER}"
        print(f"[desk] $ {line}", flush=True)
        subprocess.run([sys.executable, "-m", *line.split()], cwd=place, check=True)
        with Machines(place) as machines:
            for name in ("server", *SITES):
                source = fed / "server" if name == "server" else fed / "sites" / name
                environment(place / name)
                shutil.copytree(source, place / name / name, copy_function=shutil.copy2)
            machines.start("server", f"{flamma} deploy start /opt/flamma/server")
            for name in SITES:
                machines.start(name, f"{flamma} deploy start /opt/flamma/{name}")
            until = time.monotonic() + 180
            ask = f"{flamma} deploy status /opt/flamma/server --json"
            while machines.call("server", ask, show=False).count('"online"') < len(SITES):
                if time.monotonic() > until:
                    raise SystemExit("the sites did not come online")
                time.sleep(1)
            machines.call("server", f"{flamma} deploy status /opt/flamma/server")
            machines.call("server", f"{flamma} deploy run /opt/flamma/server {RUN}")
            seen = sorted(path.name for path in (place / "site1").iterdir())
            print(f"on the machine of site1 there is: {', '.join(seen)}")
            assert seen == ["site1", "venv"]
        print("done: the run finished, and every machine had its own folder only")


if __name__ == "__main__":
    main()
