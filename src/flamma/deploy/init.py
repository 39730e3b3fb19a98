"""``flamma deploy init``: the folders of a federation, one for each host."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from flamma.deploy import keys, templates
from flamma.deploy.containers import container_files
from flamma.deploy.hosts import HOST, SITE, ServerHost, SiteHost, is_loopback
from flamma.deploy.wheel import Wheel, installed_wheel, read_wheel
from flamma.errors import DeployError
from flamma.io import TableView
from flamma.registry import to_toml

_DEFAULT_PORT, _DEFAULT_CONTROL_PORT = 8443, 8444
"""The ports on a network, fixed so that a firewall can be set up for them."""
MAX_SITES = 1000
_COLUMNS_FILE = "columns.toml"
"""The declared columns of tables, at the server and at every site."""


def init(
    folder: Path,
    names: Sequence[str],
    data: TableView,
    hosts: Sequence[str] = (),
    port: int | None = None,
    control_port: int | None = None,
    class_names: Sequence[str] = (),
    columns: Path | None = None,
    wheel: Path | None = None,
    metrics_port: int = 0,
) -> None:
    """Make the folders of a federation.

    Parameters
    ----------
    folder : Path
        A folder that does not exist yet, or is empty.
    names : sequence of str
        The sites' names; a site's position is its client number in the runs.
    data : mapping
        The ``[data]`` table of a run's configuration and its ``seed``. Every site gets a slice of
        that dataset, or, if the dataset is ``own``, a ``site.toml`` for its own data.
    hosts : sequence of str
        Names or addresses of the server; sites use the first one. Without any, the federation is
        for this machine only.
    port, control_port : int, optional
        The ports for sites and for the server's own host. On this machine only, free ones are
        chosen by default.
    class_names : sequence of str
        What classes are called at all sites, in order.
    columns : Path, optional
        A file that declares the columns of the sites' tables; every host gets a copy.
    wheel : Path, optional
        The wheel of FLamma that the hosts install; by default one of the FLamma that runs here.
    metrics_port : int
        The port of the server's loopback address that tells metrics; 0 for none.

    Raises
    ------
    DeployError
        If the folder is not empty, or a name, a port or the wheel cannot be used.
    """
    if not 0 < len(names) <= MAX_SITES:
        raise DeployError(f"a federation has from 1 to {MAX_SITES} sites, not {len(names)}.")
    if (class_names or columns is not None) and data["dataset"] != "own":
        raise DeployError(
            "class names and columns are declared for data that sites bring: add --dataset own."
        )
    local = all(is_loopback(host) for host in hosts)
    hosts = tuple(hosts) or ("127.0.0.1",)
    free = free_ports(2) if local else [_DEFAULT_PORT, _DEFAULT_CONTROL_PORT]
    folder = Path(os.path.abspath(folder))
    server = ServerHost(
        folder / "server",
        listen="127.0.0.1" if local else "0.0.0.0",
        port=free[0] if port is None else port,
        control_port=free[1] if control_port is None else control_port,
        sites=tuple(names),
        metrics_port=metrics_port,
        data=data,
        class_names=tuple(class_names),
        columns=_COLUMNS_FILE if columns is not None else "",
    )
    packed = read_wheel(wheel) if wheel else installed_wheel()
    declared = b""
    if columns is not None:
        from flamma.data.sites import read_declared

        read_declared(columns)  # or say what is wrong with it
        declared = columns.read_bytes()
    _check_empty(folder)
    authority = keys.make_authority(folder / "ca")
    os.chmod(folder / "ca", 0o700)
    keys.make_server_certificate(server.folder, authority, hosts)
    _write_server(server, packed)
    if declared:
        keys.write_public(server.folder / _COLUMNS_FILE, declared)
    address = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
    for partition, name in enumerate(names):
        site = SiteHost(folder / "sites" / name, name, f"{address}:{server.port}")
        write_site(site, server, partition, packed)
    _write(folder / "README.md", templates.readme(hosts, server, str(folder), packed.name))


def _write_server(server: ServerHost, wheel: Wheel) -> None:
    keys.make_secret(server.secret)
    table = {
        "role": "server",
        "listen": server.listen,
        "port": server.port,
        "control_port": server.control_port,
        "sites": server.sites,
        **({"metrics_port": server.metrics_port} if server.metrics_port else {}),
        **({"class_names": server.class_names} if server.class_names else {}),
        **({"columns": server.columns} if server.columns else {}),
        "data": server.data,
    }
    _write(server.folder / HOST, to_toml(table) + "\n")
    _write_service(server.folder, "server", server.port, wheel)


def write_site(
    site: SiteHost,
    server: ServerHost,
    partition: int,
    wheel: Wheel,
    partitions: int | None = None,
) -> None:
    """Write the folder of a site, and its public key into the server's.

    ``partitions`` is into how many slices a known dataset is cut, by default one for each site.
    """
    keys.make_site_key(site.key, server.public_key(site.name), site.name)
    keys.make_secret(site.secret)
    keys.write_public(site.authority, server.authority.read_bytes())
    table = {"role": "site", "name": site.name, "server": site.server}
    _write(site.folder / HOST, to_toml(table) + "\n")
    _write(site.folder / SITE, templates.site_toml(site.name, server, partition, partitions))
    if server.columns:
        declared = (server.folder / server.columns).read_bytes()
        keys.write_public(site.folder / server.columns, declared)
    _write_service(site.folder, site.name, None, wheel)


def _write_service(folder: Path, name: str, port: int | None, wheel: Wheel) -> None:
    keys.write_public(folder / wheel.name, wheel.content)
    requirement = wheel.requirement(f"{templates.INSTALL_PREFIX}/{name}")
    _write(folder / "requirements.txt", templates.requirements(requirement))
    _write(folder / f"flamma-{name}.service", templates.unit(name))
    for file, text in container_files(name, port).items():
        _write(folder / file, text)
    os.chmod(folder, 0o700)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address on which nothing listens at the moment."""
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
