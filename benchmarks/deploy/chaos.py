"""Chaos: a deployed run is disturbed at random, and must come to its end without a hand.

One federation of three sites stands on loopback. Each trial begins a run on it and, at seeded
times, kills, stops (SIGSTOP, and SIGCONT some seconds later) or cuts off parts of the federation:
the SuperNode or the client's process of a site, the SuperLink, the ServerApp, the SuperExec, the
proxy, a supervisor (started again, as systemd would do), or the network of all sites at once (the
proxy forwards nothing). A trial is well if the run ends with all of its rounds, none of them
empty, and exit code 0, and if no process of a task lingers at a site.

    python benchmarks/deploy/chaos.py --trials 100 --out chaos.jsonl

Each trial is one line of JSON in the file that ``--out`` names. The same command goes on where it
ended: trials that are in the file are not done again. ``--first 50 --trials 50`` does the second
half, for a second federation beside the first one. At last there is a table by what was disturbed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from chaos_table import by_target, shown

FLAMMA = (sys.executable, "-m", "flamma")
SITES = 3
ROUNDS = 5
RUN = ("--strategy", "fedavg", "--model", "mlp", "--epochs", "40", "--rounds", str(ROUNDS))
FIRST_SECONDS, LAST_SECONDS = 0.0, 15.0
"""Seconds after the run has begun between which disturbances happen."""
SHORTEST_STOP, LONGEST_STOP = 5.0, 60.0
"""Seconds that something is stopped or cut off; the SuperLink gives a site up after about 50."""
WAIT_SECONDS = 60
"""What ``engine.wait`` is set to: how long a site that is stopped holds up a round."""
MOST_SECONDS = 1200.0
"""Seconds after which a trial is a failure, however far it is."""
LINGER_SECONDS = 90.0
"""Seconds that the processes of tasks have to end after the run."""
TARGETS = (
    *("supernode", "client", "worker", "superlink", "server-app", "superexec", "proxy"),
    *("server-supervisor", "site-supervisor", "network"),
)


@dataclass(frozen=True)
class Disturbance:
    """What happens: how long after the run has begun, to what, and for how long if not for good.

    ``seconds`` is how long something is stopped or the network is cut; 0 kills it.
    """

    after: float
    target: str
    site: int
    seconds: float


@dataclass
class Outcome:
    """What became of a trial."""

    trial: int
    disturbances: list[Disturbance]
    struck: int = 0
    resumed: int = 0
    code: int | None = None
    seconds: float = 0.0
    rounds: int = 0
    empty: int = 0
    failed: int = 0
    lingering: int = 0
    told: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Whether the run came to its end as it should."""
        return (self.code, self.rounds, self.empty, self.lingering) == (0, ROUNDS, 0, 0)

    @property
    def line(self) -> str:
        """What the file of results has of it."""
        return json.dumps({**asdict(self), "well": self.well}) + "\n"


def plan(seed: int, trial: int) -> list[Disturbance]:
    """Return what happens in a trial: one to three disturbances."""
    rng = random.Random(f"{seed}-{trial}")
    found = []
    for number in range(rng.randint(1, 3)):
        target = TARGETS[trial % len(TARGETS)] if number == 0 else rng.choice(TARGETS)
        stops = target == "network" or (target != "client" and rng.random() < 0.3)
        seconds = round(rng.uniform(SHORTEST_STOP, LONGEST_STOP), 1) if stops else 0.0
        after = round(rng.uniform(FIRST_SECONDS, LAST_SECONDS), 2)
        found.append(Disturbance(after, target, rng.randrange(SITES), seconds))
    return sorted(found, key=lambda one: one.after)


class Federation:
    """The standing deployment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ready(self) -> None:
        """Make it if it is not there, and start what does not run."""
        if not self.folder.exists():
            self.flamma("init", "--sites", SITES)
        for _ in range(3):  # what the last trial left may need a moment
            if self.flamma("up").returncode == 0:
                return
            time.sleep(10)
        raise SystemExit(f"the federation in {self.folder} does not start")

    def flamma(self, verb: str, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command of ``flamma deploy``."""
        command = [*FLAMMA, "deploy", verb, str(self.folder), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def host(self, disturbance: Disturbance) -> Path:
        """Return the folder of the host that a disturbance is at."""
        at_site = disturbance.target in ("supernode", "client", "worker", "site-supervisor")
        return self.folder / (f"sites/site{disturbance.site}" if at_site else "server")

    def pids(self, disturbance: Disturbance) -> list[int]:
        """Return the processes that a disturbance strikes; none if there are none just now."""
        try:
            file = self.host(disturbance) / "state" / "processes.json"
            table = json.loads(file.read_text())
        except (OSError, ValueError):
            return []
        if disturbance.target.endswith("supervisor"):
            return [int(table["supervisor"]["pid"])]
        owners = {"client": "worker", "server-app": "superexec", "network": "proxy"}
        name = owners.get(disturbance.target, disturbance.target)
        if name not in table["processes"]:
            return []
        pid = int(table["processes"][name]["pid"])
        return _descendants(pid) if disturbance.target in ("client", "server-app") else [pid]

    def start_supervisor(self, host: Path) -> None:
        """Start a host's supervisor, again until it runs, as a service manager does."""
        again = ("sh", "-c", 'until "$@"; do sleep 5; done', "sh")
        with open(host / "logs" / "host.log", "ab") as log:
            subprocess.Popen(
                [*again, *FLAMMA, "deploy", "up", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def lingering(self) -> int:
        """Return how many processes of tasks are left at the sites."""
        found = 0
        for site in range(SITES):
            found += len(self.pids(Disturbance(0.0, "client", site, 0.0)))
        return found


def _descendants(pid: int) -> list[int]:
    try:
        found = psutil.Process(pid).children(recursive=True)
        return [p.pid for p in found if p.status() != psutil.STATUS_ZOMBIE]
    except psutil.Error:
        return []


Later = tuple[float, Callable[[], None]]
"""When something is to be done, and what."""


def strike(federation: Federation, disturbance: Disturbance, now: float) -> list[Later] | None:
    """Do it; return what is to be done later, None if there is nothing to strike just now."""
    pids = federation.pids(disturbance)
    if not pids:
        return None
    pid = pids[-1] if disturbance.target == "client" else pids[0]
    if disturbance.seconds:
        _send(pid, signal.SIGSTOP)
        return [(now + disturbance.seconds, lambda: _send(pid, signal.SIGCONT))]
    _send(pid, signal.SIGKILL)
    if disturbance.target.endswith("supervisor"):
        host = federation.host(disturbance)
        return [(now + 5.0, lambda: federation.start_supervisor(host))]
    return []


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@dataclass(eq=False)
class Storm:
    """The disturbances of one trial: those to come, and what is to be done after some of them."""

    federation: Federation
    due: list[Disturbance]
    later: list[Later] = field(default_factory=list)
    struck: int = 0

    def blow(self, now: float) -> None:
        """Do what is due, at so many seconds after the run has begun."""
        for one in [one for one in self.due if now >= one.after]:
            if (then := strike(self.federation, one, now)) is not None:
                self.due.remove(one)
                self.later += then
                self.struck += 1
        self._clear(now)

    def end(self) -> None:
        """Let go on whatever is stopped, and start what is to be started."""
        self._clear(float("inf"))

    def _clear(self, now: float) -> None:
        for item in [item for item in self.later if now >= item[0]]:
            self.later.remove(item)
            item[1]()


def carry_out(federation: Federation, outcome: Outcome, out: Path) -> None:
    """Begin a run, disturb it as planned, and wait for its end."""
    words = ("--set", f"engine.wait={WAIT_SECONDS}", "--set", f"seed={outcome.trial}")
    command = [*FLAMMA, "deploy", "run", str(federation.folder), "--out", str(out), *RUN, *words]
    begun, first = time.monotonic(), None  # the command, and the rounds
    log, storm = out.with_suffix(".log"), Storm(federation, list(outcome.disturbances))
    with open(log, "wb") as file:
        run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        while run.poll() is None and (now := time.monotonic()) - begun < MOST_SECONDS:
            if first is None and (out / "rounds.jsonl").exists():
                first = now
            if first is not None:
                storm.blow(now - first)
            time.sleep(0.1)
        storm.end()
        if run.poll() is None:
            run.kill()
        outcome.code = run.wait()
    outcome.seconds, outcome.struck = round(time.monotonic() - begun, 1), storm.struck
    _count(outcome, out, log.read_text(errors="replace"))
    until = time.monotonic() + LINGER_SECONDS
    while federation.lingering() and time.monotonic() < until:
        time.sleep(1.0)
    outcome.lingering = federation.lingering()


def _count(outcome: Outcome, out: Path, log: str) -> None:
    lines = log.replace(f"{out.parent}/", "").splitlines()
    outcome.told = [line for line in lines if line.startswith("flamma:")]
    outcome.resumed = log.count("the run goes on after round")
    try:
        records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return
    outcome.rounds = len(records)
    failures = [len(record["outcome"]["failed"]) for record in records]
    outcome.failed = sum(failures)
    outcome.empty = sum(
        failed == len(record["selected"]) for failed, record in zip(failures, records, strict=True)
    )


def main() -> None:
    """Do the trials that are not done yet, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--trials", type=int, default=10, help="how many, with those done before")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--seed", type=int, default=0, help="what is disturbed, and when")
    parser.add_argument("--out", type=Path, default=Path("chaos.jsonl"), help="one line per trial")
    parser.add_argument(
        "--folder", type=Path, help="the federation (a new one, taken down at last)"
    )
    parser.add_argument("--only", help="disturbances of this kind only, killed; or nothing")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    federation = Federation(options.folder or place / "fed")
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    table = {entry["trial"]: entry for entry in map(json.loads, lines)}
    for entry in table.values():
        print(shown(entry), flush=True)
    numbers = range(options.first, options.first + options.trials)
    try:
        for trial in [number for number in numbers if number not in table]:
            federation.ready()
            outcome = Outcome(trial, planned(options, trial))
            carry_out(federation, outcome, place / f"trial{trial}")
            with open(options.out, "a") as file:
                file.write(outcome.line)
            table[trial] = json.loads(outcome.line)
            print(shown(table[trial]), flush=True)
    finally:
        if options.folder is None:
            federation.flamma("down")
    print("", *by_target(list(table.values())), sep="\n")
    well = sum(entry["well"] for entry in table.values())
    print(f"{well} of {len(table)} trials came to their end without a hand; runs in {place}")
    sys.exit(0 if well == len(table) else 1)


def planned(options: argparse.Namespace, trial: int) -> list[Disturbance]:
    """Return what the command line asks to happen in a trial."""
    if options.only == "nothing":
        return []
    if options.only:
        return [Disturbance(FIRST_SECONDS, options.only, trial % SITES, 0.0)]
    return plan(options.seed, trial)


if __name__ == "__main__":
    main()
