"""Sites that join and leave: the list of sites, their keys, and a server that takes them over.

The server's folder says who takes part: ``sites`` in its ``host.toml``, and a public key for each.
A server that runs goes by a changed list within a second, and nobody else is stopped for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from flamma.deploy import keys
from flamma.deploy.admission import SiteKeys
from flamma.deploy.certificates import server_names
from flamma.deploy.control import Control, write_nodes
from flamma.deploy.hosts import HOST, ServerHost, SiteHost, read_host, read_server
from flamma.deploy.init import MAX_SITES, write_site
from flamma.deploy.loopback import end_host, is_alive
from flamma.deploy.watch import keys_digest, proxy_state, site_keys
from flamma.deploy.wheel import installed_wheel, read_wheel
from flamma.errors import DeployError
from flamma.io import JsonTable, read_toml, unknown, write_atomically
from flamma.registry import to_toml

_TAKE_OVER_SECONDS = 10.0
"""Seconds that a running server has to go by a changed list."""
_REVOKED_FILE = "revoked.txt"
"""The file beside the public keys with the SHA-256 of those that were revoked."""
_LOCK_SECONDS = 10.0
"""Seconds that a command waits for another one that changes the list."""


def add_site(folder: Path, name: str, key: Path | None = None, wheel: Path | None = None) -> bool:
    """Let a site join a federation, with a new key and a folder of its own.

    Parameters
    ----------
    folder : Path
        The deployment, or the server's own folder.
    name : str
        The site's name, which no other site has.
    key : Path, optional
        The site's public key, if it has one already: only the server learns of it then.
    wheel : Path, optional
        The wheel that the site installs; by default one of the FLamma that runs here.

    Returns
    -------
    bool
        Whether a server that runs here goes by it already.

    Raises
    ------
    DeployError
        If the name or the key is in use, or there is no place for the site's folder.
    """
    with changing(folder) as server:
        if name in server.sites:
            raise DeployError(f"there is a site {name} already: name another one.")
        if len(server.sites) >= MAX_SITES:
            raise DeployError(f"a federation has at most {MAX_SITES} sites.")
        sites = (*server.sites, name)
        replace(server, sites=sites)  # or say why the server could not read the list
        if key is None:
            _make_site(folder, server, name, wheel)
        else:
            take_key(server, name, key)
        _write_sites(server, sites)
    return put_in_force(folder)


def remove_site(folder: Path, name: str) -> bool:
    """Let a site leave: its key opens nothing from now on.

    If the site runs on this machine, from the deployment's folder, its processes are ended. Its
    folder stays.

    Returns
    -------
    bool
        Whether a server that runs here refuses it already.
    """
    with changing(folder) as server:
        check_site(server, name)
        if len(server.sites) == 1:
            raise DeployError(f"{name} is the only site, and a federation has at least one.")
        _revoke(server, name)
        _write_sites(server, [site for site in server.sites if site != name])
        server.public_key(name).unlink(missing_ok=True)
    taken = put_in_force(folder)
    if (site := own_folder(folder, name)) is not None:
        end_host(site)
    return taken


def put_in_force(folder: Path) -> bool:
    """Let a server that runs here go by the list; return whether there is one.

    A server that does not run does so when it starts.

    Raises
    ------
    DeployError
        If the server does not take the list over in time.
    """
    server = read_server(folder)
    if not is_alive(server):
        return False
    with Control(server) as control:
        write_nodes(server, control.register())
    wanted = keys_digest(SiteKeys(site_keys(server)).known())
    until = time.monotonic() + _TAKE_OVER_SECONDS
    while proxy_state(server).get("keys") != wanted:
        if time.monotonic() > until:
            raise DeployError(
                f"the server's proxy did not take the sites over in {_TAKE_OVER_SECONDS:g} s: see "
                f"{server.logs / 'proxy.log'}."
            )
        time.sleep(0.1)
    return True


def take_key(server: ServerHost, name: str, key: Path) -> None:
    """Write down a public key as that of a site, unless it is in use or was revoked."""
    given = keys.public_key_bytes(key)
    if _digest(given) in _revoked(server):
        raise DeployError(f"{key} was revoked, which is for good: make a new one.")
    for site in server.sites:
        if server.public_key(site).exists() and keys.public_key_bytes(server.public_key(site)) == (
            given
        ):
            raise DeployError(f"{key} is the key of {site} already: make a new one.")
    _revoke(server, name)
    write_atomically(server.public_key(name), key.read_bytes())


def _revoke(server: ServerHost, name: str) -> None:
    """Write down that a site's key must not be used again: the SuperLink would not take it."""
    if (known := server.public_key(name)).exists():
        every = _revoked(server) | {_digest(keys.public_key_bytes(known))}
        lines = "".join(f"{digest}\n" for digest in sorted(every))
        write_atomically(known.with_name(_REVOKED_FILE), lines.encode())


def _revoked(server: ServerHost) -> set[str]:
    path = server.folder / "keys" / _REVOKED_FILE
    return set(path.read_text(encoding="ascii").split()) if path.exists() else set()


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def own_folder(folder: Path, name: str) -> SiteHost | None:
    """Return a site whose folder is in a deployment; None if only the server's is here."""
    if (folder / HOST).exists() or not (folder / "sites" / name / HOST).exists():
        return None
    host = read_host(folder / "sites" / name)
    assert isinstance(host, SiteHost)
    return host


def check_site(server: ServerHost, name: str) -> None:
    """Refuse a name that no site has."""
    if name not in server.sites:
        raise DeployError(unknown("site", name, server.sites))


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[ServerHost]:
    """Yield the server while nobody else changes its list of sites."""
    server = read_server(folder)
    try:
        with FileLock(server.folder / ".sites.lock", timeout=_LOCK_SECONDS):
            yield read_server(folder)
    except Timeout:
        raise DeployError(f"another command changes the sites of {server.folder}.") from None


def _make_site(folder: Path, server: ServerHost, name: str, wheel: Path | None) -> None:
    if (folder / HOST).exists():
        raise DeployError(
            f"{folder} is the server's folder alone: make the site's folder where the deployment "
            f"is, and give its public key here by --key."
        )
    if (folder / "sites" / name).exists():
        raise DeployError(
            f"{folder / 'sites' / name} is there already, and keys are never overwritten: move it "
            f"away, or name another site."
        )
    packed = read_wheel(wheel) if wheel else installed_wheel()
    first = server_names(server.certificate)[0]
    address = f"[{first}]" if ":" in first else first
    site = SiteHost(
        Path(os.path.abspath(folder / "sites" / name)), name, f"{address}:{server.port}"
    )
    count = len(server.sites)
    # A slice of a dataset that is cut into one more; those of other sites stay as they are.
    write_site(site, server, count, packed, partitions=count + 1)


def _write_sites(server: ServerHost, sites: Sequence[str]) -> None:
    path = server.folder / HOST
    table: JsonTable = {**read_toml(path), "sites": tuple(sites)}
    if "samples" in table:
        table["samples"] = {name: n for name, n in table["samples"].items() if name in sites}
    write_atomically(path, (to_toml(table) + "\n").encode())


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Yield a new private folder beside files that are to be replaced; it is removed at the end."""
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
