"""What a host knows of itself: ``host.toml``, and where things lie in its folder."""

from __future__ import annotations

import ipaddress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Literal

from flamma.errors import DeployError
from flamma.io import SITE_NAME, TableView, read_toml, unknown
from flamma.registry import convert, from_table

HOST, SITE = "host.toml", "site.toml"
_FLAMMA_CLIENT_APP = "flamma.engines.flower.client_app:app"
LOOPBACK_NAMES = ("localhost", "127.0.0.1")
"""What a host calls itself, whatever others call it."""


@dataclass(frozen=True)
class Host:
    """What every host has."""

    folder: Path

    @property
    def logs(self) -> Path:
        """The folder of the logs, one for each process."""
        return self.folder / "logs"

    @property
    def state(self) -> Path:
        """What outlives a restart: Flower's database, the processes, the registered nodes."""
        return self.folder / "state"

    @property
    def flower_home(self) -> Path:
        """Flower's own folder, so that it writes nothing to the user's home."""
        return self.folder / "flower"

    @property
    def authority(self) -> Path:
        """The certificate of the federation's authority."""
        return self.folder / "ca.crt"

    @property
    def secret(self) -> Path:
        """The secret by which the processes of this host authenticate to each other."""
        return self.folder / "process.secret"

    @property
    def title(self) -> str:
        """What the host is called in messages."""
        return "the server"


@dataclass(frozen=True)
class ServerHost(Host):
    """The host of the SuperLink; the fields are the keys of its ``host.toml``.

    Parameters
    ----------
    folder : Path
        The host's own folder.
    listen : str
        The address that the proxy listens on for sites.
    port : int
        The port that the proxy listens on.
    control_port : int
        The SuperLink's own port, on the loopback address only.
    sites : tuple of str
        The names of the sites; a site's position is its client number in the runs.
    metrics_port : int
        The port of the loopback address that tells metrics to Prometheus; 0 for none.
    data : mapping
        The ``[data]`` table and the ``seed`` of every run, so that it matches the sites' slices.
    class_names : tuple of str
        What classes are called at all sites, in order; empty if sites need only agree.
    columns : str
        The file with the declared columns of the sites' tables; empty if sites need only agree.
    samples : mapping of str to int
        How many training samples sites have, as far as the operator has written it down; they
        count for no more, whatever they say.
    validation : mapping
        The server's own validation set where sites bring their own data, with the keys of the
        table ``[data]`` of a site: ``npz``, ``parquet`` or ``folder``.
    answer_bytes : int
        The most bytes of one answer of a site; 0 for four times those of the order, and 16 MiB.
    """

    listen: str
    port: int
    control_port: int
    sites: tuple[str, ...]
    metrics_port: int = 0
    data: TableView = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    columns: str = ""
    samples: TableView = field(default_factory=dict)
    validation: TableView = field(default_factory=dict)
    answer_bytes: int = 0

    def __post_init__(self) -> None:
        for name in self.sites:
            _check_name(name)
        for name, count in self.samples.items():
            if name not in self.sites:
                raise DeployError(unknown("site in samples", name, self.sites))
            if type(count) is not int or count < 1:
                raise DeployError(f"samples.{name} must be a whole number above 0, not {count!r}.")
        if len(set(self.sites)) != len(self.sites) or not self.sites:
            raise DeployError("sites must be different names, at least one.")
        for key, port in (("port", self.port), ("control_port", self.control_port)):
            if not 0 < port < 65536:
                raise DeployError(f"{key} must be from 1 to 65535, not {port}.")
        if self.answer_bytes < 0:
            raise DeployError(f"answer_bytes must be 0 or more, not {self.answer_bytes}.")
        if self.port == self.control_port:
            raise DeployError(f"port and control_port must be two ports, not {self.port} for both.")
        if self.metrics_port in (self.port, self.control_port):
            raise DeployError(f"metrics_port must be a port of its own, not {self.metrics_port}.")
        if not 0 <= self.metrics_port < 65536:
            raise DeployError(f"metrics_port must be from 0 to 65535, not {self.metrics_port}.")

    def public_key(self, site: str) -> Path:
        """Return where a site's public key lies."""
        return self.folder / "keys" / f"{site}.pub"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.pem"

    @property
    def certificate_key(self) -> Path:
        """The private key of the server's certificate."""
        return self.folder / "server.key"

    @property
    def nodes(self) -> Path:
        """The file that maps the sites' names to Flower's node ids."""
        return self.state / "nodes.json"


@dataclass(frozen=True)
class SiteHost(Host):
    """The host of one SuperNode; the fields are the keys of its ``host.toml``.

    Parameters
    ----------
    folder : Path
        The host's own folder.
    name : str
        The site's name.
    server : str
        The server's ``address:port``.
    app : str
        The ClientApp that answers messages, as ``module:attribute``.
    """

    name: str
    server: str
    app: str = _FLAMMA_CLIENT_APP

    def __post_init__(self) -> None:
        _check_name(self.name)

    @property
    def key(self) -> Path:
        """The site's private key."""
        return self.folder / "site.key"

    @property
    def title(self) -> str:
        """What the host is called in messages."""
        return self.name


def read_host(folder: Path) -> ServerHost | SiteHost:
    """Return the host whose folder this is.

    Raises
    ------
    FlammaError
        If it is not the folder of a host, or its ``host.toml`` cannot be used.
    """
    folder = folder.resolve()
    path = folder / HOST
    if not path.exists():
        raise DeployError(
            f"{folder} is not the folder of a host: there is no {HOST} in it; "
            f"flamma deploy init makes such folders."
        )
    table = read_toml(path)
    role = convert(table.pop("role", None), Literal["server", "site"], f"{path}: role")
    kind: type[ServerHost | SiteHost] = ServerHost if role == "server" else SiteHost
    keys = [f for f in fields(kind) if f.name != "folder"]
    given = from_table(kind, table, f"{path}: ", [key.name for key in keys])
    for key in keys:
        if key.name not in given and key.default is key.default_factory is MISSING:
            raise DeployError(f"{path}: {key.name} is missing.")
    try:
        return kind(folder, **given)
    except DeployError as error:
        raise DeployError(f"{path}: {error}") from error


def read_server(folder: Path) -> ServerHost:
    """Return the server of a deployment, from its folder or from the server's own."""
    own = folder if (folder / HOST).exists() else folder / "server"
    if not (own / HOST).exists():
        raise DeployError(
            f"{folder} holds no deployment: make one with flamma deploy init {folder}, or name "
            f"the server's folder."
        )
    host = read_host(own)
    if not isinstance(host, ServerHost):
        raise DeployError(
            f"{folder} is the folder of the site {host.name}; this is for the server."
        )
    return host


def read_hosts(folder: Path) -> list[ServerHost | SiteHost]:
    """Return all hosts of a deployment whose folders are all here, the server first."""
    server = read_server(folder)
    if server.folder == folder.resolve():
        raise DeployError(
            f"{folder} is the server's folder alone; this is for a whole deployment on one "
            f"machine: start one host with flamma deploy start {folder}."
        )
    return [server, *(read_host(folder / "sites" / name) for name in server.sites)]


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is that of the loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_name(name: str) -> None:
    if not SITE_NAME.fullmatch(name):
        raise DeployError(
            f"a site's name is made of small letters, digits and hyphens, 40 at most, not {name!r}."
        )
