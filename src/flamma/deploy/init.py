"""``flamma deploy init``: the folders of a federation, one for each host."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flamma.deploy import keys, texts
from flamma.deploy.hosts import HOST, SITE, check_name, check_port, is_loopback
from flamma.errors import DeployError
from flamma.options import to_toml

PORT, CONTROL_PORT = 8443, 8444
"""The ports on a real network, where a firewall wants to know them beforehand."""
MOST_SITES = 1000


def init(
    folder: Path,
    names: Sequence[str],
    data: Mapping[str, Any],
    hosts: Sequence[str] = (),
    port: int | None = None,
    control_port: int | None = None,
) -> None:
    """Make the folders of a federation.

    Parameters
    ----------
    folder : Path
        A folder that does not exist yet, or is empty.
    names : sequence of str
        The sites' names; a site's place here is its number in the runs.
    data : mapping
        The known dataset of which every site has a slice, as in a run's configuration, with
        ``seed``; or ``own`` as the dataset where sites bring theirs.
    hosts : sequence of str
        Names or addresses by which sites reach the server, the first one is what they use.
        Without any, the federation is for this machine alone.
    port, control_port : int, optional
        Where the server listens for sites, and for its own host. On this machine alone, the
        default is what is free.

    Raises
    ------
    DeployError
        If the folder is not empty, or a name or port cannot work.
    """
    sites = [check_name(name) for name in names]
    if not 0 < len(sites) <= MOST_SITES:
        raise DeployError(f"a federation has from 1 to {MOST_SITES} sites, not {len(sites)}.")
    if len(set(sites)) != len(sites):
        raise DeployError("the sites need different names.")
    local = all(is_loopback(host) for host in hosts)
    hosts = tuple(hosts) or ("127.0.0.1",)
    free = free_ports(2) if local else [PORT, CONTROL_PORT]
    port = check_port(free[0] if port is None else port)
    control_port = check_port(free[1] if control_port is None else control_port)
    if port == control_port:
        raise DeployError(f"sites and the server's own host need two ports, not {port} for both.")
    folder = Path(os.path.abspath(folder))
    _check_empty(folder)

    authority = keys.make_authority(folder / "ca")
    os.chmod(folder / "ca", 0o700)
    server = folder / "server"
    keys.make_server_certificate(server, authority, hosts)
    keys.make_secret(server / "process.secret")
    listen = "127.0.0.1" if local else "0.0.0.0"
    table = {
        "role": "server",
        "listen": listen,
        "port": port,
        "control_port": control_port,
        "sites": sites,
        "data": dict(data),
    }
    _write(server / HOST, to_toml(table) + "\n")
    _write(server / "flamma-server.service", texts.unit("flamma-server", f"{texts.HOME}/server"))
    _write(server / "Containerfile", texts.containerfile("flamma-server", port))
    for number, name in enumerate(sites):
        site = folder / "sites" / name
        keys.make_site_key(site / "site.key", server / "keys" / f"{name}.pub", name)
        keys.make_secret(site / "process.secret")
        keys.write_public(site / "ca.crt", (server / "ca.crt").read_bytes())
        address = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
        own = {"role": "site", "name": name, "server": f"{address}:{port}"}
        _write(site / HOST, to_toml(own) + "\n")
        _write(site / SITE, texts.site_toml(name, data, number))
        role = f"flamma-{name}"
        _write(site / f"{role}.service", texts.unit(role, f"{texts.HOME}/{name}"))
        _write(site / "Containerfile", texts.containerfile(role, None))
    for private in (server, *(folder / "sites" / name for name in sites)):
        os.chmod(private, 0o700)
    page = texts.readme(hosts, port, control_port, sites, str(folder))
    _write(folder / "README.md", page)


def free_ports(count: int) -> list[int]:
    """Return so many ports of this machine that nobody listens on just now."""
    held = []
    try:
        for _ in range(count):
            taken = socket.socket()
            held.append(taken)
            taken.bind(("127.0.0.1", 0))
        return [taken.getsockname()[1] for taken in held]
    finally:
        for taken in held:
            taken.close()


def _check_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise DeployError(
                f"{folder} is not empty: keys are never overwritten, so name a new folder."
            )
    except OSError as error:
        raise DeployError(f"cannot make {folder}: {error.strerror}.") from error


def _write(path: Path, text: str) -> None:
    keys.write_public(path, text.encode())
