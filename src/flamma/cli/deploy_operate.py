"""``flamma deploy logs, watch, health, backup, restore``: what an operator needs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.cli.deploy_verbs import add_verb
from flamma.cli.parser import Parser

if TYPE_CHECKING:
    from flamma.deploy.hosts import Host
    from flamma.deploy.logs import Event

HERE, AT_SERVER = "the deployment, or a host's folder", "the deployment, or server's folder"
UNHEALTHY = 1
"""The exit status of ``health`` if something is wrong."""


def register(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands to ``flamma deploy``."""
    _register_logs(verbs)
    _register_watch(verbs)
    health = add_verb(
        verbs,
        "health",
        run_health,
        "whether hosts do what they should: exit status 0 or 1",
        "Tell in a sentence whether the hosts whose folders are here are healthy.",
        folder=HERE,
        json="print JSON instead of a sentence",
        epilog="The exit status is 0 if they are and 1 if not.",
    )
    health.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="wait so long for health"
    )
    _register_backup(verbs)


def _register_logs(verbs: argparse._SubParsersAction[Parser]) -> None:
    logs = add_verb(
        verbs,
        "logs",
        run_logs,
        "what happened on the hosts whose folders are here",
        "Print the events of hosts, the oldest first: logs/flamma.jsonl of each.",
        folder=HERE,
        json="print each event as a line of JSON",
    )
    logs.add_argument("--host", default="", metavar="NAME", help="of one host: server, or a site")
    logs.add_argument(
        "--since", default="", metavar="TIME", help="such as 10m, 2h, or 2026-03-01T12:00 in UTC"
    )
    logs.add_argument(
        "--level", choices=("info", "warning", "error"), default="info", help="the least level"
    )
    logs.add_argument("--follow", action="store_true", help="go on as events happen, until Ctrl-C")


def _register_watch(verbs: argparse._SubParsersAction[Parser]) -> None:
    watch = add_verb(
        verbs,
        "watch",
        run_deploy_watch,
        "the page of the newest run, live, on the server's host",
        "Serve the page of a deployed run and update it as rounds finish.",
        folder=AT_SERVER,
        json="print the address as JSON, too",
        epilog="flamma watch RUN_DIR does the same for a run directory that you name yourself.",
    )
    watch.add_argument("--run-name", default="", metavar="NAME", help="of this run directory")
    watch.add_argument("--port", type=int, default=0, help="the port (default any free one)")
    watch.add_argument("--host", default="127.0.0.1", help="where to listen (default 127.0.0.1)")
    watch.add_argument("--open", action="store_true", help="show it in the browser")


def _register_backup(verbs: argparse._SubParsersAction[Parser]) -> None:
    backup = add_verb(
        verbs,
        "backup",
        run_backup,
        "copy the server's state and runs into one file",
        "Copy the server's settings, public keys, database and runs into an archive. The server "
        "may go on meanwhile.",
        folder=AT_SERVER,
        json="print JSON instead of a sentence",
    )
    backup.add_argument("file", type=Path, metavar="FILE.tar", help="the archive")
    backup.add_argument("--keys", action="store_true", help="with the server's private keys")
    restore = verbs.add_parser(
        "restore",
        help="make a server's folder from such a file",
        description="Make a server's folder of a backup, with all checksums verified.",
    )
    restore.add_argument("file", type=Path, metavar="FILE.tar", help="the archive")
    restore.add_argument("dir", type=Path, metavar="FOLDER", help="a new folder for the server")
    restore.add_argument("--json", action="store_true", help="print JSON instead of a sentence")
    restore.set_defaults(run=run_restore)


def run_logs(options: argparse.Namespace) -> None:
    """Run ``flamma deploy logs``."""
    from flamma.deploy.logs import EventFilter, event_line, events_of, new_events

    hosts = _named(_hosts(options.dir), options.host)
    wanted = EventFilter(options.since, options.level)
    following, last = new_events(hosts, wanted), ""

    def show(event: Event) -> None:
        print(json.dumps(event) if options.json else event_line(event), flush=options.follow)

    for event in events_of(hosts, wanted):
        show(event)
        last = str(event["time"])
    for event in following if options.follow else ():
        if str(event["time"]) > last:  # else it was written while the files were read
            show(event)


def run_deploy_watch(options: argparse.Namespace) -> None:
    """Run ``flamma deploy watch``."""
    from flamma.cli.report import run_watch
    from flamma.deploy.hosts import read_server
    from flamma.deploy.known_runs import newest_run

    options.dir = newest_run(read_server(options.dir), options.run_name).path
    run_watch(options)


def run_health(options: argparse.Namespace) -> int:
    """Run ``flamma deploy health`` and return its exit status."""
    from flamma.deploy.health import health_of

    found = health_of(_hosts(options.dir), options.wait)
    if options.json:
        table = {"healthy": found.healthy, "problems": found.problems, "hosts": found.hosts}
        print(json.dumps(table))
    else:
        print(found.sentence())
    return 0 if found.healthy else UNHEALTHY


def run_backup(options: argparse.Namespace) -> None:
    """Run ``flamma deploy backup``."""
    from flamma.deploy.backup import back_up
    from flamma.deploy.hosts import read_server

    made = back_up(read_server(options.dir), options.file, options.keys)
    if options.json:
        print(json.dumps({"path": str(options.file), "files": made.files, "runs": made.runs}))
        return
    keys = "with the private keys: keep it secret" if options.keys else "without private keys"
    print(f"{options.file}: {made.files} files, {made.runs} runs, {keys}.")


def run_restore(options: argparse.Namespace) -> None:
    """Run ``flamma deploy restore``."""
    from flamma.deploy.restore import restore

    done = restore(options.file, options.dir)
    if options.json:
        print(json.dumps({"path": str(options.dir), "missing": done.missing, "runs": done.runs}))
        return
    print(f"{options.dir}: the server, {len(done.runs)} runs, all checksums right.")
    for name in done.missing:
        print(f"Put {name} into {options.dir} before you start it; the backup has no keys.")


def _hosts(folder: Path) -> Sequence[Host]:
    """Return the hosts of a deployment, or the one host whose folder it is."""
    from flamma.deploy.hosts import HOST, read_host, read_hosts

    return [read_host(folder)] if (folder / HOST).exists() else read_hosts(folder)


def _named(hosts: Sequence[Host], name: str) -> Sequence[Host]:
    """Return the host of a name, or all if there is none."""
    from flamma.errors import DeployError
    from flamma.names import unknown

    names = ["server" if host.title == "the server" else host.title for host in hosts]
    if name and name not in names:
        raise DeployError(unknown("host", name, names))
    return [host for host, own in zip(hosts, names, strict=True) if name in ("", own)]
