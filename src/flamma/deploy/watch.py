"""What the running proxy takes over without a restart: sites, their keys, certificates.

The commands that change the sites of a federation change files in the server's folder. The proxy
looks at them twice a second, and writes down which keys it goes by, for commands that wait until a
change has come into force.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.deploy.hosts import HOST, ServerHost, read_server
from flamma.errors import FlammaError
from flamma.io import JsonTable, Stamp, stamp, write_atomically

if TYPE_CHECKING:
    from flamma.deploy.proxy import Proxy

_WATCH_SECONDS = 0.5
"""Seconds between two looks at the files."""
_PROXY_FILE = "proxy.json"
"""The file in the server's state in which the proxy tells what it goes by."""


def site_keys(host: ServerHost) -> dict[str, Path]:
    """Return the files of the sites' public keys, by name."""
    return {site: host.public_key(site) for site in host.sites}


def keys_digest(keys: Mapping[str, bytes]) -> str:
    """Return what tells one list of sites and keys from another."""
    text = json.dumps({name: key.decode("ascii") for name, key in keys.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def proxy_state(host: ServerHost) -> JsonTable:
    """Return what the proxy wrote last: ``keys``, a digest of those that it goes by."""
    try:
        found = json.loads((host.state / _PROXY_FILE).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


class Watch:
    """Keeps a proxy up to date.

    Parameters
    ----------
    host : ServerHost
        The server as it was when the proxy started.
    proxy : Proxy
        The proxy.
    own : SSLContext
        By which sites are served, with the server's certificate.
    trusted : SSLContext
        By which the SuperLink is reached, with the authority's certificate.
    """

    def __init__(
        self, host: ServerHost, proxy: Proxy, own: ssl.SSLContext, trusted: ssl.SSLContext
    ) -> None:
        self.host = host
        self.proxy = proxy
        self.own = own
        self.trusted = trusted
        self._sites = self._sites_stamp()
        self._certificates = self._certificates_stamp()
        self._told = ""

    async def run(self) -> None:
        """Look at the files until cancelled."""
        said = ""
        while True:
            try:
                self.look()
                await self.proxy.answers.expire()
                said = ""
            except Exception as error:  # whatever is wrong with a file, sites are served
                text = f"flamma: {type(error).__name__}: {error}"
                if text != said:
                    print(text, file=sys.stderr, flush=True)
                said = text
            await asyncio.sleep(_WATCH_SECONDS)

    def look(self) -> None:
        """Take over what has changed."""
        if (now := self._sites_stamp()) != self._sites:
            self._sites = now
            self._take_sites()
        if (now := self._certificates_stamp()) != self._certificates:
            self._certificates = now
            self.own.load_cert_chain(self.host.certificate, self.host.certificate_key)
            self.trusted.load_verify_locations(str(self.host.authority))
        text = json.dumps({"keys": keys_digest(self.proxy.keys.known())})
        if text != self._told:
            write_atomically(self.host.state / _PROXY_FILE, text.encode(), durable=False)
            self._told = text

    def _take_sites(self) -> None:
        before = self.proxy.keys.known()
        try:
            self.host = read_server(self.host.folder)
            self.proxy.keys.replace(site_keys(self.host))
        except FlammaError as error:
            print(f"flamma: the sites stay as they are: {error}", file=sys.stderr, flush=True)
            return
        self._sites = self._sites_stamp()
        if self.proxy.denials is not None:
            self.proxy.denials.host = self.host
        after = self.proxy.keys.known()
        gone = {name for name, key in before.items() if after.get(name) != key}
        self.proxy.connections.cut_off(gone)
        for name in gone:
            self.proxy.answers.drop(name)
            self.proxy.orders.forget_last(name)
        self.proxy.orders.most_bytes = self.host.answer_bytes

    def _sites_stamp(self) -> Stamp:
        return stamp(self.host.folder / HOST, *site_keys(self.host).values())

    def _certificates_stamp(self) -> Stamp:
        return stamp(self.host.certificate, self.host.certificate_key, self.host.authority)
