"""Signs requests as a site's SuperNode does."""

from __future__ import annotations

import datetime
from base64 import b64encode

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)

from flamma.deploy.admission import SiteKeys
from flamma.deploy.keys import make_site_key


def make_keys(folder):
    """Make the key of ``site0``, and return it and the keys of a proxy that knows it."""
    make_site_key(folder / "site.key", folder / "site0.pub", "site0")
    return load_key(folder / "site.key"), SiteKeys({"site0": folder / "site0.pub"})


def load_key(path):
    return load_ssh_private_key(path.read_bytes(), None)


def public_bytes(private):
    return private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def signed(private, when=None):
    """Return the headers of a request that is signed at this moment, or at another."""
    timestamp = (when or datetime.datetime.now(datetime.UTC)).isoformat()
    signature = private.sign(timestamp.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": b64encode(public_bytes(private)).decode(),
        "flwr-timestamp": timestamp,
        "flwr-signature": b64encode(signature).decode(),
    }
