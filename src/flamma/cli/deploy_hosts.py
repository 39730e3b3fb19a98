"""``flamma deploy down``, ``stop`` and ``status``: the hosts of a federation on this machine."""

from __future__ import annotations

import argparse
import json
from typing import Any

from flamma.cli.deploy_verbs import add_verb
from flamma.cli.parser import Parser


def register(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands to ``flamma deploy``."""
    add_verb(
        verbs,
        "down",
        run_down,
        "end what up has started",
        "End exactly the processes that up or start began, and their children.",
        folder="the deployment's folder",
    )
    stop = add_verb(
        verbs,
        "stop",
        run_stop,
        "end one host's processes",
        "End the processes of one host; the others go on without it.",
        folder="the host's own folder, or the deployment's with --host",
        epilog="A run that goes on treats a stopped site as one that is gone until it is back.",
    )
    stop.add_argument("--host", metavar="NAME", help="server or a site, in a deployment's folder")
    add_verb(
        verbs,
        "status",
        run_status,
        "what runs, who is online, which runs there are",
        "Tell what runs, which sites are online and when they last gave a sign of life, which runs "
        "there are, and which certificates expire within a month.",
        folder="the deployment's folder, or a host's own",
    )


def run_down(options: argparse.Namespace) -> None:
    """Run ``flamma deploy down``."""
    from flamma.deploy.loopback import down

    _print_ended(options, down(options.dir), "down")


def run_stop(options: argparse.Namespace) -> None:
    """Run ``flamma deploy stop``."""
    from flamma.deploy.hosts import read_host
    from flamma.deploy.loopback import down

    if options.host is None:
        read_host(options.dir)  # or say that it is not one host's folder
    _print_ended(options, down(options.dir, options.host), "stopped")


def _print_ended(options: argparse.Namespace, ended: list[str], verb: str) -> None:
    if options.json:
        print(json.dumps({"ended": ended}))
    elif ended:
        print(f"{verb}: {', '.join(ended)}")
    else:
        print(f"{options.dir} is not up; there was nothing to end.")


def run_status(options: argparse.Namespace) -> None:
    """Run ``flamma deploy status``."""
    from flamma.deploy.status import status

    found = status(options.dir)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    _print_status(found)


def _print_status(found: dict[str, Any]) -> None:
    from flamma.experiments.presented import text_table

    rows = []
    for host, about in found["hosts"].items():
        alive = [f"{n} {p['pid']}" for n, p in about["processes"].items() if p["alive"]]
        dead = [n for n, p in about["processes"].items() if not p["alive"]]
        restarts = sum(p["restarts"] for p in about["processes"].values())
        state = "running" if about["running"] and not dead else "partly dead" if alive else "down"
        site, seen = found["sites"].get(host, ""), _ago(found["seen"].get(host))
        rows.append([host, state, site, seen, str(restarts), ", ".join(alive)])
    for site, state in found["sites"].items():
        if site not in found["hosts"]:
            rows.append([site, "elsewhere", state, _ago(found["seen"].get(site)), "", ""])
    header = ["host", "state", "network", "last sign", "restarts", "processes"]
    print(text_table(header, rows, left=6))
    for site, why in found["reasons"].items():
        print(f"{site}: {why}")
    if found["runs"]:
        lines = [[run["run_id"], run["status"], run["details"]] for run in found["runs"]]
        print("\n" + text_table(["run", "status", "details"], lines, left=3))
    for warning in found["warnings"]:
        print(f"\nwarning: {warning}")


def _ago(when: str | None) -> str:
    """Return how long ago a time was."""
    import datetime

    from flamma.cli.live import duration

    if when is None:
        return ""
    now = datetime.datetime.now(datetime.UTC)
    age = (now - datetime.datetime.fromisoformat(when)).total_seconds()
    return f"{duration(max(0.0, age))} ago"
