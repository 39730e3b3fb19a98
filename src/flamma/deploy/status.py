"""``flamma deploy status``: what runs, who is online, which runs there are, what to see to."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path

from flamma.deploy.certificates import expiries, warnings_of
from flamma.deploy.control import Control, known_nodes
from flamma.deploy.denials import site_reasons
from flamma.deploy.hosts import (
    HOST,
    Host,
    ServerHost,
    SiteHost,
    read_host,
    read_hosts,
    read_server,
)
from flamma.deploy.liveness import SIGNS_FILE, Signs
from flamma.deploy.loopback import is_alive
from flamma.deploy.supervisor import recorded
from flamma.deploy.traffic import read_traffic
from flamma.errors import DeployError
from flamma.io import JsonTable


def status(folder: Path) -> JsonTable:
    """Return the hosts' processes, who is online, why others are not, the runs, what to see to.

    With one host's folder alone, the processes are those of that host; at a site, nothing is known
    of others.
    """
    if not (folder / HOST).exists():
        read_server(folder)  # or say that it is no deployment
    hosts = [read_host(folder)] if (folder / HOST).exists() else read_hosts(folder)
    server = next((host for host in hosts if isinstance(host, ServerHost)), None)
    names = server.sites if server else [host.title for host in hosts]
    table: JsonTable = {
        "hosts": {host.title: _host_status(host) for host in hosts},
        "sites": dict.fromkeys(names, "unknown"),
        "seen": {
            name: None
            if when is None
            else datetime.datetime.fromtimestamp(when, datetime.UTC).isoformat(timespec="seconds")
            for name, when in _seen(hosts, server, names).items()
        },
        "reasons": {},
        "runs": [],
        **_certificates({host.title: host for host in hosts}, folder),
    }
    if server is None or not is_alive(server):
        return table
    with contextlib.suppress(DeployError), Control(server) as control:
        states = {node.node_id: node.status for node in control.nodes()}
        for name, node in known_nodes(server).items():
            if name in table["sites"]:
                table["sites"][name] = states.get(node, "not registered")
        table["runs"] = [
            {
                "run_id": str(run.run_id),
                "status": run.outcome if run.finished else run.status,
                "details": run.details,
            }
            for run in control.runs()
        ]
    table["reasons"] = site_reasons(server)
    return table


def _seen(
    hosts: list[ServerHost | SiteHost], server: ServerHost | None, names: Iterable[str]
) -> dict[str, float | None]:
    """Return when each site last gave a sign of life, as the server's proxy or the site knows."""
    found: dict[str, float | None] = dict.fromkeys(names)
    if server is not None:
        found |= {name: about.seen or None for name, about in read_traffic(server)[0].items()}
    for host in hosts:
        signs = Signs.read(host.state / SIGNS_FILE)
        if isinstance(host, SiteHost) and signs is not None and signs.answered is not None:
            found[host.name] = max(found[host.name] or 0.0, signs.answered)
    return found


def _certificates(hosts: Mapping[str, Host], folder: Path) -> JsonTable:
    try:
        found = expiries(hosts)
    except DeployError as error:
        return {"certificates": {}, "warnings": [str(error)]}
    dates = {title: when.date().isoformat() for title, when in found.items()}
    return {"certificates": dates, "warnings": warnings_of(found, folder)}


def _host_status(host: Host) -> JsonTable:
    _, processes, restarts = recorded(host)
    return {
        "running": is_alive(host),
        "processes": {
            name: {"pid": process.pid, "alive": process.alive, "restarts": restarts[name]}
            for name, process in processes.items()
        },
    }
