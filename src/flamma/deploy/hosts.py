"""What a host knows of itself: ``host.toml``, and where things lie in its folder."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flamma.errors import DeployError
from flamma.files import read_text
from flamma.names import SITE_NAME, unknown

HOST, SITE = "host.toml", "site.toml"
SERVER_KEYS = ("role", "listen", "port", "control_port", "sites", "data")
SITE_KEYS = ("role", "name", "server", "app")
APP = "flamma.engines.flower.client_app:app"
"""What answers messages at a site, unless its host.toml names another ClientApp."""


@dataclass(frozen=True)
class Host:
    """What every host has."""

    folder: Path

    @property
    def logs(self) -> Path:
        """Where its processes write what they do."""
        return self.folder / "logs"

    @property
    def state(self) -> Path:
        """What it must remember: the database, which processes it has, who is registered."""
        return self.folder / "state"

    @property
    def flower_home(self) -> Path:
        """Flower's own folder, so that nothing of it lands in the user's home."""
        return self.folder / "flower"

    @property
    def authority(self) -> Path:
        """The certificate of the authority that everybody trusts."""
        return self.folder / "ca.crt"

    @property
    def secret(self) -> Path:
        """The secret by which the processes of this host know each other."""
        return self.folder / "process.secret"

    @property
    def title(self) -> str:
        """What the host is called in messages."""
        return "the server"


@dataclass(frozen=True)
class ServerHost(Host):
    """The host of the SuperLink.

    Sites come in by ``listen:port``, where only what sites may ask for is let through. The
    SuperLink itself listens on ``control_port`` of this host's loopback address alone.
    """

    listen: str
    port: int
    control_port: int
    sites: tuple[str, ...]
    data: Mapping[str, Any]

    def public_key(self, site: str) -> Path:
        """Return where a site's public key lies."""
        return self.folder / "keys" / f"{site}.pub"

    @property
    def nodes(self) -> Path:
        """Which node of Flower's is which site."""
        return self.state / "nodes.json"


@dataclass(frozen=True)
class SiteHost(Host):
    """The host of one SuperNode, with its own data and its own key."""

    name: str
    server: str
    app: str = APP

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
    DeployError
        If it is not the folder of a host, or its ``host.toml`` cannot work.
    """
    folder = folder.resolve()
    path = folder / HOST
    if not path.exists():
        raise DeployError(
            f"{folder} is not the folder of a host: there is no {HOST} in it; "
            f"flamma deploy init makes such folders."
        )
    try:
        table = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise DeployError(f"{path} is not valid TOML: {error}.") from error
    role = table.get("role")
    if role not in ("server", "site"):
        raise DeployError(f"{path}: role must be server or site, not {role!r}.")
    keys = SERVER_KEYS if role == "server" else SITE_KEYS
    for key in table:
        if key not in keys:
            raise DeployError(f"{path}: {unknown('key', key, keys)}")
    if role == "site":
        return SiteHost(
            folder,
            name=check_name(_get(table, "name", str, path)),
            server=_get(table, "server", str, path),
            app=_get({"app": APP} | table, "app", str, path),
        )
    sites = tuple(check_name(name) for name in _get(table, "sites", list, path))
    if len(set(sites)) != len(sites) or not sites:
        raise DeployError(f"{path}: sites must be different names, at least one.")
    return ServerHost(
        folder,
        listen=_get(table, "listen", str, path),
        port=check_port(_get(table, "port", int, path)),
        control_port=check_port(_get(table, "control_port", int, path)),
        sites=sites,
        data=table.get("data", {}),
    )


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
    """Return all hosts of a deployment that is here as a whole, the server first."""
    server = read_server(folder)
    if server.folder == folder.resolve():
        raise DeployError(
            f"{folder} is the server's folder alone; this is for a whole deployment on one "
            f"machine: start one host with flamma deploy start {folder}."
        )
    return [server, *(read_host(folder / "sites" / name) for name in server.sites)]


def check_name(name: Any) -> str:
    """Return a site's name, if it is one that can be a folder and part of a host's name."""
    if not isinstance(name, str) or not SITE_NAME.fullmatch(name):
        raise DeployError(
            f"a site's name is made of small letters, digits and hyphens, 40 at most, not {name!r}."
        )
    return name


def check_port(port: int) -> int:
    """Return a port, if it is one."""
    if not 0 < port < 65536:
        raise DeployError(f"a port is a number from 1 to 65535, not {port}.")
    return port


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address means this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _get(table: Mapping[str, Any], key: str, kind: type, path: Path) -> Any:
    value = table.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        said = {str: "a text", int: "a whole number", list: "a list"}[kind]
        raise DeployError(f"{path}: {key} must be {said}, not {value!r}.")
    return value
