"""New keys and certificates in place of those that are in use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.deploy import keys
from flamma.deploy.certificates import read_certificates, server_names
from flamma.deploy.hosts import HOST, SiteHost, read_hosts, read_server
from flamma.deploy.membership import (
    changing,
    check_site,
    own_folder,
    put_in_force,
    scratch,
    take_key,
)
from flamma.errors import DeployError
from flamma.io import write_atomically

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_PUBLIC_KEY = "site.pub"
"""The file at a site that has made a new key of its own, for the server."""


def rotate_site(folder: Path, name: str, key: Path | None = None) -> bool:
    """Replace a site's key; the old one opens nothing from now on.

    Parameters
    ----------
    folder : Path
        The deployment, or the server's own folder.
    name : str
        The site.
    key : Path, optional
        The site's new public key, if the site has made it itself.

    Returns
    -------
    bool
        Whether a server that runs here goes by it already.
    """
    site = own_folder(folder, name)
    with changing(folder) as server:
        check_site(server, name)
        if key is not None:
            take_key(server, name, key)
            return put_in_force(folder)
        if site is None:
            raise DeployError(
                f"the private key of {name} is not in {folder}: make a new one at the site with "
                f"flamma deploy rotate FOLDER, and give its {_PUBLIC_KEY} here by --key."
            )
        with scratch(site.folder) as new:
            keys.make_site_key(new / "site.key", new / _PUBLIC_KEY, name)
            take_key(server, name, new / _PUBLIC_KEY)
            taken = put_in_force(folder)
            os.replace(new / "site.key", site.key)
    return taken


def rotate_own_key(site: SiteHost) -> Path:
    """Make a new key at the site itself, and return the public one, which the server needs."""
    with scratch(site.folder) as new:
        keys.make_site_key(new / "site.key", new / _PUBLIC_KEY, site.name)
        os.replace(new / _PUBLIC_KEY, site.folder / _PUBLIC_KEY)
        os.replace(new / "site.key", site.key)
    return site.folder / _PUBLIC_KEY


def rotate_server(folder: Path) -> None:
    """Replace the server's certificate and its key; from now on hosts trust one authority only."""
    authority = _authority(folder)
    server = read_server(folder)
    with scratch(server.folder) as new:
        keys.make_server_certificate(new, authority, server_names(server.certificate))
        os.replace(new / "server.key", server.certificate_key)
        os.replace(new / "server.pem", server.certificate)
    _give(folder, lambda _: (folder / "ca" / "ca.crt").read_bytes())


def rotate_authority(folder: Path) -> None:
    """Make a new authority, which hosts trust beside the old one until the server has a new key."""
    _authority(folder)  # or say that it is elsewhere
    with scratch(folder / "ca") as new:
        keys.make_authority(new)
        added = (new / "ca.crt").read_bytes()
        _give(folder, lambda before: added + before)
        os.replace(new / "ca.key", folder / "ca" / "ca.key")
        os.replace(new / "ca.crt", folder / "ca" / "ca.crt")


def _give(folder: Path, certificates: Callable[[bytes], bytes]) -> None:
    """Give all hosts what they trust, from what they have trusted before.

    A file that stays as it is is left alone, since processes are restarted when it changes.
    """
    for host in read_hosts(folder):
        before = host.authority.read_bytes()
        if (after := certificates(before)) != before:
            write_atomically(host.authority, after)


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if (folder / HOST).exists() or not (folder / "ca" / "ca.key").exists():
        raise DeployError(
            f"there is no authority in {folder}: do this in the folder that flamma deploy init "
            f"made, where ca/ca.key is."
        )
    key = load_pem_private_key((folder / "ca" / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, read_certificates(folder / "ca" / "ca.crt")[0]
