"""What certificates say: for whom they are, and when they expire."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.deploy.hosts import Host, ServerHost
from flamma.errors import DeployError

if TYPE_CHECKING:
    from cryptography import x509

_WARN_DAYS = 31
"""Days before a certificate expires from which on ``status`` says so."""


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Return the certificates of a file, at least one.

    Raises
    ------
    DeployError
        If there are none in it.
    """
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DeployError(f"{path} holds no certificate: {error}.") from error


def server_names(path: Path) -> list[str]:
    """Return the names and addresses that a server's certificate is for, in order."""
    from cryptography import x509

    certificate = read_certificates(path)[0]
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in found.value]


def expiries(hosts: Mapping[str, Host]) -> dict[str, datetime.datetime]:
    """Return when the certificates of hosts expire, by what they are.

    Of several authorities that a host trusts, the newest one counts.
    """
    found = {}
    for name, host in hosts.items():
        if isinstance(host, ServerHost):
            found["server"] = read_certificates(host.certificate)[0].not_valid_after_utc
        last = max(c.not_valid_after_utc for c in read_certificates(host.authority))
        title = "authority" if isinstance(host, ServerHost) else f"authority at {name}"
        if title == "authority" or found.get("authority") != last:
            found[title] = last
    return found


def warnings_of(
    found: Mapping[str, datetime.datetime], folder: Path, now: datetime.datetime | None = None
) -> list[str]:
    """Return a sentence, with what to do, for each certificate that expires within a month."""
    now = now or datetime.datetime.now(datetime.UTC)
    return [
        _warning(title, when, folder, now)
        for title, when in found.items()
        if when - now < datetime.timedelta(days=_WARN_DAYS)
    ]


def _warning(title: str, when: datetime.datetime, folder: Path, now: datetime.datetime) -> str:
    tense = "expired" if when < now else "expires"
    if title == "server":
        todo = f"flamma deploy rotate {folder} --server makes a new one"
    elif title == "authority":
        todo = f"flamma deploy rotate {folder} --ca makes a new one"
    else:
        todo = "copy it the newer ca.crt of its folder in the deployment"
    return f"the certificate of the {title} {tense} on {when:%Y-%m-%d}: {todo}."
