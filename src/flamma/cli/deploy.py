"""``flamma deploy ...``: make, start and use a federation of real sites."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.cli.console import print_json, resume_hint, resuming, verbosity
from flamma.cli.parser import Parser, add_settings, settings
from flamma.errors import DeployError
from flamma.experiments.progress_bar import Verbosity, duration
from flamma.experiments.settings import SETTINGS
from flamma.extras import DEPLOYMENT_MODULES
from flamma.io import JsonTable

if TYPE_CHECKING:
    from flamma.deploy.hosts import Host
    from flamma.deploy.logs import Event


# What the commands of ``flamma deploy`` have in common: a folder, and mostly ``--json``.


def _add_verb(
    verbs: argparse._SubParsersAction[Parser],
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    summary: str,
    description: str,
    *,
    folder: str,
    metavar: str = "DIR",
    json: str = "print JSON instead of text",
    epilog: str | None = None,
) -> Parser:
    """Add a command that takes a folder.

    Parameters
    ----------
    verbs : argparse action
        The commands of ``flamma deploy``.
    name : str
        What it is called.
    run : callable
        What carries it out; it may return an exit status.
    summary, description, epilog : str
        What its help says: in the list of commands, and above and below its own options.
    folder, metavar : str
        What the help says of the folder, and what it is called there.
    json : str
        What the help says of ``--json``; empty if there is no such option.
    """
    parser = verbs.add_parser(name, help=summary, description=description, epilog=epilog)
    parser.add_argument("dir", type=Path, metavar=metavar, help=folder)
    if json:
        parser.add_argument("--json", action="store_true", help=json)
    parser.set_defaults(run=run)
    return parser


# ``flamma deploy fetch``: the model of a finished run, at a site.


def _register_fetch(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma deploy fetch`` to the command line."""
    fetch = _add_verb(
        verbs,
        "fetch",
        _run_fetch,
        "copy the model of a finished run, at a site",
        "Copy the model that the server sent this site at the end of a run, verified.",
        folder="the site's own folder",
        metavar="SITE_FOLDER",
        json="print JSON instead of a line",
    )
    fetch.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="where to: FILE.safetensors"
    )
    fetch.add_argument(
        "--run-id", default="", metavar="RUN", help="of this run (the last one that ended)"
    )


def _run_fetch(options: argparse.Namespace) -> None:
    """Run ``flamma deploy fetch``."""
    from flamma.deploy.hosts import SiteHost, read_host
    from flamma.engines.flower.final_model import fetch_final_model

    host = read_host(options.dir)
    if not isinstance(host, SiteHost):
        raise DeployError(
            f"{options.dir} is the server's folder; at the server, flamma export writes the model."
        )
    final = fetch_final_model(host.state, options.out, options.run_id)
    if options.json:
        print_json({"path": str(options.out), **asdict(final)})
        return
    print(
        f"{options.out}: the model of run {final.run} after round {final.round}\n"
        f"SHA-256 of the file     {final.sha256}\n"
        f"SHA-256 of the weights  {final.params_sha256}"
    )


# ``flamma deploy down``, ``stop`` and ``status``: the hosts of a federation on this machine.


def _register_host_verbs(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands to ``flamma deploy``."""
    _add_verb(
        verbs,
        "down",
        _run_down,
        "end what up has started",
        "End exactly the processes that up or start began, and their children.",
        folder="the deployment's folder",
    )
    stop = _add_verb(
        verbs,
        "stop",
        _run_stop,
        "end one host's processes",
        "End the processes of one host; the others go on without it.",
        folder="the host's own folder, or the deployment's with --host",
        epilog="A run that goes on treats a stopped site as one that is gone until it is back.",
    )
    stop.add_argument("--host", metavar="NAME", help="server or a site, in a deployment's folder")
    _add_verb(
        verbs,
        "status",
        _run_status,
        "what runs, who is online, which runs there are",
        "Tell what runs, which sites are online and when they last gave a sign of life, which runs "
        "there are, and which certificates expire within a month.",
        folder="the deployment's folder, or a host's own",
    )


def _run_down(options: argparse.Namespace) -> None:
    """Run ``flamma deploy down``."""
    from flamma.deploy.loopback import down

    _print_ended(options, down(options.dir), "down")


def _run_stop(options: argparse.Namespace) -> None:
    """Run ``flamma deploy stop``."""
    from flamma.deploy.hosts import read_host
    from flamma.deploy.loopback import down

    if options.host is None:
        read_host(options.dir)  # or say that it is not one host's folder
    _print_ended(options, down(options.dir, options.host), "stopped")


def _print_ended(options: argparse.Namespace, ended: list[str], verb: str) -> None:
    if options.json:
        print_json({"ended": ended}, indent=None)
    elif ended:
        print(f"{verb}: {', '.join(ended)}")
    else:
        print(f"{options.dir} is not up; there was nothing to end.")


def _run_status(options: argparse.Namespace) -> None:
    """Run ``flamma deploy status``."""
    from flamma.deploy.status import status

    found = status(options.dir)
    if options.json:
        print_json(found)
        return
    _print_status(found)


def _print_status(found: JsonTable) -> None:
    from flamma.experiments.result import text_table

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

    if when is None:
        return ""
    now = datetime.datetime.now(datetime.UTC)
    age = (now - datetime.datetime.fromisoformat(when)).total_seconds()
    return f"{duration(max(0.0, age))} ago"


# ``flamma deploy logs, watch, health, backup, restore``: what an operator needs.

_HERE, _AT_SERVER = "the deployment, or a host's folder", "the deployment, or server's folder"
_UNHEALTHY = 1
"""The exit status of ``health`` if something is wrong."""


def _register_operator_verbs(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands to ``flamma deploy``."""
    _register_logs(verbs)
    _register_watch(verbs)
    health = _add_verb(
        verbs,
        "health",
        _run_health,
        "whether hosts do what they should: exit status 0 or 1",
        "Tell in a sentence whether the hosts whose folders are here are healthy.",
        folder=_HERE,
        json="print JSON instead of a sentence",
        epilog="The exit status is 0 if they are and 1 if not.",
    )
    health.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="wait so long for health"
    )
    _register_backup(verbs)


def _register_logs(verbs: argparse._SubParsersAction[Parser]) -> None:
    logs = _add_verb(
        verbs,
        "logs",
        _run_logs,
        "what happened on the hosts whose folders are here",
        "Print the events of hosts, the oldest first: logs/flamma.jsonl of each.",
        folder=_HERE,
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
    watch = _add_verb(
        verbs,
        "watch",
        _run_deploy_watch,
        "the page of the newest run, live, on the server's host",
        "Serve the page of a deployed run and update it as rounds finish.",
        folder=_AT_SERVER,
        json="print the address as JSON, too",
        epilog="flamma watch RUN_DIR does the same for a run directory that you name yourself.",
    )
    watch.add_argument("--run-name", default="", metavar="NAME", help="of this run directory")
    watch.add_argument("--port", type=int, default=0, help="the port (default any free one)")
    watch.add_argument("--host", default="127.0.0.1", help="where to listen (default 127.0.0.1)")
    watch.add_argument("--open", action="store_true", help="show it in the browser")


def _register_backup(verbs: argparse._SubParsersAction[Parser]) -> None:
    backup = _add_verb(
        verbs,
        "backup",
        _run_backup,
        "copy the server's state and runs into one file",
        "Copy the server's settings, public keys, database and runs into an archive. The server "
        "may go on meanwhile.",
        folder=_AT_SERVER,
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
    restore.set_defaults(run=_run_restore)


def _run_logs(options: argparse.Namespace) -> None:
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


def _run_deploy_watch(options: argparse.Namespace) -> None:
    """Run ``flamma deploy watch``."""
    from flamma.cli.report import run_watch
    from flamma.deploy.hosts import read_server
    from flamma.deploy.known_runs import newest_run

    options.dir = newest_run(read_server(options.dir), options.run_name).path
    run_watch(options)


def _run_health(options: argparse.Namespace) -> int:
    """Run ``flamma deploy health`` and return its exit status."""
    from flamma.deploy.health import health_of

    found = health_of(_hosts(options.dir), options.wait)
    if options.json:
        table = {"healthy": found.healthy, "problems": found.problems, "hosts": found.hosts}
        print_json(table, indent=None)
    else:
        print(found.sentence())
    return 0 if found.healthy else _UNHEALTHY


def _run_backup(options: argparse.Namespace) -> None:
    """Run ``flamma deploy backup``."""
    from flamma.deploy.backup import back_up
    from flamma.deploy.hosts import read_server

    files, runs = back_up(read_server(options.dir), options.file, options.keys)
    if options.json:
        print_json({"path": str(options.file), "files": files, "runs": runs}, indent=None)
        return
    keys = "with the private keys: keep it secret" if options.keys else "without private keys"
    print(f"{options.file}: {files} files, {runs} runs, {keys}.")


def _run_restore(options: argparse.Namespace) -> None:
    """Run ``flamma deploy restore``."""
    from flamma.deploy.restore import restore

    runs, missing = restore(options.file, options.dir)
    if options.json:
        print_json({"path": str(options.dir), "missing": missing, "runs": runs}, indent=None)
        return
    print(f"{options.dir}: the server, {len(runs)} runs, all checksums right.")
    for name in missing:
        print(f"Put {name} into {options.dir} before you start it; the backup has no keys.")


def _hosts(folder: Path) -> Sequence[Host]:
    """Return the hosts of a deployment, or the one host whose folder it is."""
    from flamma.deploy.hosts import HOST, read_host, read_hosts

    return [read_host(folder)] if (folder / HOST).exists() else read_hosts(folder)


def _named(hosts: Sequence[Host], name: str) -> Sequence[Host]:
    """Return the host of a name, or all if there is none."""
    from flamma.io import unknown

    names = ["server" if host.title == "the server" else host.title for host in hosts]
    if name and name not in names:
        raise DeployError(unknown("host", name, names))
    return [host for host, own in zip(hosts, names, strict=True) if name in ("", own)]


# ``flamma deploy add-site``, ``remove-site`` and ``rotate``: sites come and go, keys change.

_WHERE = "the deployment's folder, or the server's own on its host"


def _register_site_verbs(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands to ``flamma deploy``."""
    add = _add_verb(
        verbs,
        "add-site",
        _run_add,
        "let a site join",
        "Make a site's key and folder, and let the server know its public key.",
        folder=_WHERE,
        epilog="The others are not stopped. The site takes part in runs that begin afterwards.",
    )
    add.add_argument("name", metavar="NAME", help="the site's name")
    add.add_argument("--wheel", type=Path, metavar="FILE", help="the wheel that the site installs")
    remove = _add_verb(
        verbs,
        "remove-site",
        _run_remove,
        "let a site leave, and revoke its key",
        "Take a site off the list: its key opens nothing from now on.",
        folder=_WHERE,
        epilog="A run that goes on treats it as a site that is gone.",
    )
    remove.add_argument("name", metavar="NAME", help="the site's name")
    rotate = _add_verb(
        verbs,
        "rotate",
        _run_rotate,
        "replace keys and certificates",
        "Replace a site's key, the server's certificate, or the authority.",
        folder=f"{_WHERE}, or a site's own",
        epilog="In a site's own folder, it makes the site a new key and tells what to do with it.",
    )
    rotate.add_argument("name", nargs="?", metavar="NAME", help="the site")
    kinds = rotate.add_mutually_exclusive_group()
    kinds.add_argument("--server", action="store_true", help="the server's certificate")
    kinds.add_argument("--ca", action="store_true", help="the authority, and then --server")
    for parser in (add, rotate):
        parser.add_argument(
            "--key", type=Path, metavar="FILE", help="a public key that the site has made itself"
        )


def _run_add(options: argparse.Namespace) -> None:
    """Run ``flamma deploy add-site``."""
    from flamma.deploy.membership import add_site

    name, folder = options.name, options.dir
    taken = add_site(folder, name, options.key, options.wheel)
    lines = [f"{name} is a site of {folder}."]
    if options.key is None:
        lines.append(f"Its host needs {folder / 'sites' / name}; here, flamma deploy up {folder}.")
    _tell(options, taken, lines, f"add-site {{server}} {name} --key {name}.pub")


def _run_remove(options: argparse.Namespace) -> None:
    """Run ``flamma deploy remove-site``."""
    from flamma.deploy.membership import remove_site

    name = options.name
    taken = remove_site(options.dir, name)
    lines = [f"{name} is no site of {options.dir} any more; its key is revoked."]
    _tell(options, taken, lines, f"remove-site {{server}} {name}")


def _run_rotate(options: argparse.Namespace) -> None:
    """Run ``flamma deploy rotate``."""
    from flamma.deploy.hosts import HOST, SiteHost, read_host
    from flamma.deploy.rotation import rotate_authority, rotate_own_key, rotate_server, rotate_site

    folder, name = options.dir, options.name
    host = read_host(folder) if (folder / HOST).exists() else None
    if (options.server or options.ca) and (name or options.key):
        raise DeployError("--server and --ca are not for a site: leave its name and key out.")
    if options.server:
        rotate_server(folder)
        _tell(options, None, [_SERVER_DONE.format(folder=folder)])
    elif options.ca:
        rotate_authority(folder)
        _tell(options, None, [_AUTHORITY_DONE.format(folder=folder)])
    elif isinstance(host, SiteHost):
        public = rotate_own_key(host)
        _tell(options, None, [_OWN_KEY_DONE.format(name=host.name, public=public)])
    elif name is None:
        raise DeployError("name a site whose key is to be replaced, or add --server or --ca.")
    else:
        taken = rotate_site(folder, name, options.key)
        lines = [f"{name} has a new key; the old one opens nothing any more."]
        if options.key is None:
            lines.append(f"Its host needs {folder / 'sites' / name / 'site.key'}.")
        _tell(options, taken, lines, f"rotate {{server}} {name} --key {name}.pub")


_SERVER_DONE = """\
The server has a new certificate. If it runs elsewhere, replace server.key and server.pem there by
those in {folder}/server; it takes them over, and no site is stopped."""
_AUTHORITY_DONE = """\
There is a new authority, which hosts trust beside the old one. Give each host that is elsewhere the
ca.crt of its folder in {folder}; it takes it over. Then: flamma deploy rotate {folder} --server"""
_OWN_KEY_DONE = """\
{name} has a new key. Give {public} to the server's operator, who lets the site in again by
flamma deploy rotate SERVER-FOLDER {name} --key site.pub"""


def _tell(
    options: argparse.Namespace, taken: bool | None, lines: list[str], there: str = ""
) -> None:
    """Print what was done, and what is left to do on the server's host if it is elsewhere."""
    if options.json:
        told = {} if taken is None else {"in_force": taken}
        print_json({"path": str(options.dir), "name": options.name, **told})
        return
    if taken:
        lines.append("The running server goes by it already.")
    elif taken is False:
        again = "flamma deploy " + there.format(server="SERVER-FOLDER")
        lines.append(f"No server runs here; if it runs elsewhere, on its host: {again}")
    print("\n".join(lines))


_EXAMPLES = """\
on this machine, to try it:
  flamma deploy init fed --sites 3                 keys, certificates and a folder per host
  flamma deploy up fed                             server and sites on loopback
  flamma deploy run fed --strategy flamma --rounds 5 --model mlp --out runs/deployed
  flamma deploy status fed
  flamma deploy down fed

across machines:
  flamma deploy init fed --sites 3 --host fl.example.org --port 8443
  flamma deploy start /opt/flamma/server           on the server's host
  flamma deploy start /opt/flamma/site0            on the host of site0, with its folder only
  flamma deploy run /opt/flamma/server ...         on the server's host
  flamma deploy health /opt/flamma/server; flamma deploy logs /opt/flamma/server --follow
  flamma deploy fetch /opt/flamma/site0 --out model.safetensors    the trained model, at a site

sites that come and go, and new keys, without stopping the others:
  flamma deploy add-site fed west                  its keys and its folder
  flamma deploy remove-site fed west               its key opens nothing from now on
  flamma deploy rotate fed west                    a new key; --server and --ca: certificates
  flamma deploy stop fed --host west               one host's processes

fed/README.md has the exact command for each host; docs/how-to/deploy.md explains all of it.
"""
_OF_INIT = ("dataset", "split", "seed", "train_samples")
"""The options of a run that ``deploy init`` takes: they determine the sites' slices."""
_NOT_OF_RUNS = ("dataset", "split", "clients", "processes", "engine", "train_samples")
"""The options of a run that ``deploy run`` does not take, since the deployment determines them."""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma deploy`` to the command line."""
    deploy = commands.add_parser(
        "deploy",
        help="run a federation of real sites",
        description="Make, start and use a federation of real sites, on Flower's network.",
        epilog=_EXAMPLES,
    )
    deploy.set_defaults(needs=DEPLOYMENT_MODULES)
    verbs = deploy.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _register_init(verbs)
    _register_hosts(verbs)
    _register_host_verbs(verbs)
    _register_site_verbs(verbs)
    _register_run(verbs)
    _register_fetch(verbs)
    _register_operator_verbs(verbs)


def _register_init(verbs: argparse._SubParsersAction[Parser]) -> None:
    init = _add_verb(
        verbs,
        "init",
        _run_init,
        "make keys, certificates and a folder for each host",
        "Make the folders of a federation: certificate authority, server, sites.",
        folder="a new folder",
        json="print JSON instead of a sentence",
        epilog="Nothing is overwritten. Without --host the federation is for this machine alone.",
    )
    init.add_argument("--sites", type=int, metavar="N", help="how many sites (default 3)")
    init.add_argument(
        "--names", metavar="A,B,..", help="the sites' names (default site0, site1, ..)"
    )
    init.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="name or address by which sites reach the server; repeatable, the first is used",
    )
    init.add_argument("--port", type=int, help="where the server listens for sites")
    init.add_argument("--control-port", type=int, help="where it listens for its own host")
    init.add_argument(
        "--metrics-port", type=int, default=0, metavar="PORT", help="tell Prometheus metrics there"
    )
    init.add_argument(
        "--wheel",
        type=Path,
        metavar="FILE",
        help="the wheel that hosts install (default: one of the FLamma that runs here)",
    )
    init.add_argument("--class-names", metavar="A,B", help="what classes are called at all sites")
    init.add_argument(
        "--columns", type=Path, metavar="FILE.toml", help="declared columns of the sites' tables"
    )
    add_settings(init, leave_out=SETTINGS.keys() - _OF_INIT)


def _register_hosts(verbs: argparse._SubParsersAction[Parser]) -> None:
    start = _add_verb(
        verbs,
        "start",
        _run_start,
        "run one host's part, in the foreground",
        "Start the processes of one host and restart those that die, until Ctrl-C.",
        folder="the host's own folder",
        metavar="FOLDER",
        json="",
    )
    start.add_argument("--loopback", action="store_true", help="all hosts are this machine")
    _add_verb(
        verbs,
        "up",
        _run_up,
        "start the whole federation on this machine",
        "Start server and sites on loopback, and wait until all are online.",
        folder="the deployment's folder",
    )


def _register_run(verbs: argparse._SubParsersAction[Parser]) -> None:
    run = _add_verb(
        verbs,
        "run",
        _run_deployed,
        "run an experiment on the federation",
        "Run an experiment on the sites, into a run directory on the server's host.",
        folder="the deployment, or the server's folder",
        json="print JSON instead of a table",
        epilog="If its ServerApp dies, the run goes on by itself. flamma resume goes on after "
        "Ctrl-C.",
    )
    run.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="a configuration")
    add_settings(run, leave_out=_NOT_OF_RUNS)
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="the run directory (a new one in runs/)"
    )


def _run_init(options: argparse.Namespace) -> None:
    """Run ``flamma deploy init``."""
    from flamma.deploy.init import init
    from flamma.experiments.config import make_config, with_settings

    if options.names:
        names = [name.strip() for name in options.names.split(",")]
        if options.sites not in (None, len(names)):
            raise DeployError(f"--sites says {options.sites}, but --names has {len(names)}.")
    else:
        names = [f"site{number}" for number in range(3 if options.sites is None else options.sites)]
    chosen = {"data.clients": max(1, len(names)), "per_round": 1, **settings(options)}
    config = make_config(with_settings({}, chosen))
    data = {**config.data.as_table(), "seed": config.seed}
    classes = [name.strip() for name in (options.class_names or "").split(",") if name.strip()]
    init(
        options.dir,
        names,
        data,
        options.host,
        options.port,
        options.control_port,
        class_names=classes,
        columns=options.columns,
        wheel=options.wheel,
        metrics_port=options.metrics_port,
    )
    if options.json:
        print_json({"path": str(options.dir), "sites": names})
        return
    print(
        f"{len(names)} sites and a server in {options.dir}; README.md there has the commands for "
        f"each host.\nTo try it here: flamma deploy up {options.dir}"
    )


def _run_start(options: argparse.Namespace) -> None:
    """Run ``flamma deploy start``."""
    from flamma.deploy.hosts import read_host
    from flamma.deploy.supervisor import Supervisor

    Supervisor(read_host(options.dir), options.loopback).run()


def _run_up(options: argparse.Namespace) -> None:
    """Run ``flamma deploy up``."""
    from flamma.deploy.loopback import up
    from flamma.experiments.progress_bar import LiveLine

    with LiveLine(verbosity=verbosity(options)) as line:
        if line.live:
            line.show("starting server and sites")
        done = up(options.dir)
    if options.json:
        print_json(asdict(done))
        return
    if not done.started:
        print(f"{options.dir} is already up: all {len(done.running) - 1} sites are online.")
        return
    again = f"; already running: {', '.join(done.running)}" if done.running else ""
    print(f"up after {duration(done.seconds)}: {', '.join(done.started)}{again}")
    if verbosity(options) > Verbosity.QUIET:
        print(f"next: flamma deploy run {options.dir} --strategy flamma --rounds 5")


def _run_deployed(options: argparse.Namespace) -> None:
    """Run ``flamma deploy run``."""
    from flamma.cli.console import RoundDisplay
    from flamma.cli.report import report_at_end
    from flamma.cli.run import print_run
    from flamma.deploy.hosts import read_server
    from flamma.deploy.runs import check_online, deployed_config, needed_sites, offline_reasons
    from flamma.experiments.callbacks import Notices
    from flamma.experiments.run import default_folder, run_config

    server = read_server(options.dir)
    config = deployed_config(server, options.config, settings(options))
    out = options.out if options.out is not None else default_folder(config)
    if offline := check_online(server):
        print(
            f"flamma: offline: {', '.join(offline)}{offline_reasons(server)}; the run begins once "
            f"{needed_sites(config)} of {len(server.sites)} sites are there.",
            file=sys.stderr,
        )
    with (
        resume_hint(resuming(out, options)),
        RoundDisplay(config.rounds, out, verbosity(options)) as display,
    ):
        done = run_config(config, out, on_round=display, callbacks=[Notices(display.notice)])
    print_run(done, options.json)
    report_at_end(done.path, options)
