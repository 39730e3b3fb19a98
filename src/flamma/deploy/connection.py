"""Why a site's SuperNode cannot connect, in one sentence: the network, TLS, the clock, the key.

Flower's own says "terminated gracefully". So when it has ended by itself, the site's supervisor
asks the server once, and says what is wrong.

Run as ``python -m flamma.deploy.connection FOLDER SERVER``.
"""

from __future__ import annotations

import base64
import datetime
import http.client
import ssl
import sys
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from flamma.deploy.admission import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from flamma.deploy.denials import clock_sentence
from flamma.deploy.hosts import SiteHost, read_host
from flamma.errors import DeployError

_CONNECT_SECONDS = 10.0
"""Seconds that the server has to answer."""
_HEARTBEAT_PATH = "/v1/fleet/send-node-heartbeat"
_UNAUTHORIZED = 401


def _why_not_connected(host: SiteHost, server: str) -> str:
    """Return what keeps a site from connecting; empty if nothing is wrong with the connection."""
    name, _, port = server.rpartition(":")
    try:
        trusted = ssl.create_default_context(cafile=str(host.authority))
        connection = http.client.HTTPSConnection(
            name.strip("[]"), int(port), timeout=_CONNECT_SECONDS, context=trusted
        )
        asked = time.time()
        connection.request("POST", _HEARTBEAT_PATH, headers=_signed_headers(host))
        answer = connection.getresponse()
        connection.close()
    except ssl.SSLCertVerificationError as error:
        return (
            f"the certificate of {server} cannot be verified ({error.verify_message}): compare "
            f"ca.crt with the server's, and this host's time"
        )
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"{server} does not answer ({why}): is the server started, and the port open?"
    if told := _wrong_clock(answer.headers.get("Date", ""), asked, time.time()):
        return told
    if answer.status == _UNAUTHORIZED:
        return (
            f"the server does not let this site in: it has another key of {host.name}, or none; "
            f"its operator needs this site's public key"
        )
    return ""


def _wrong_clock(date: str, asked: float, answered: float) -> str:
    """Return what is wrong with this host's clock, by the ``Date`` of an answer; or nothing.

    The date, in whole seconds, was written some time between the question and the answer.

    Examples
    --------
    >>> _wrong_clock("Thu, 01 Jan 1970 01:00:00 GMT", 3000.0, 3000.5)
    "this host's clock is 600 s behind the server's: set the time of the site's host"
    >>> _wrong_clock("Thu, 01 Jan 1970 01:00:00 GMT", 3600.0, 3612.0)
    ''
    """
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return ""
    least, most = theirs - answered, theirs + 1 - asked
    return clock_sentence("this host's clock", least if least > 0 else min(most, 0.0))


def _signed_headers(host: SiteHost) -> dict[str, str]:
    """Return the headers by which Flower authenticates a request of a site."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_private_key,
    )

    key = load_ssh_private_key(host.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    timestamp = datetime.datetime.now(datetime.UTC).isoformat()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = key.sign(timestamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    values = {
        PUBLIC_KEY_HEADER: base64.b64encode(public).decode(),
        SIGNATURE_HEADER: base64.b64encode(signature).decode(),
        TIMESTAMP_HEADER: timestamp,
    }
    return {name.decode(): value for name, value in values.items()}


def main() -> None:
    """Say in one sentence why the site of the first argument cannot connect, if it cannot."""
    host = read_host(Path(sys.argv[1]))
    if not isinstance(host, SiteHost):
        raise DeployError(f"{host.folder} is the server's folder; only a site connects to it.")
    if told := _why_not_connected(host, sys.argv[2]):
        print(f"{time.strftime('%H:%M:%S')} {host.name} cannot connect: {told}", flush=True)


if __name__ == "__main__":
    main()
