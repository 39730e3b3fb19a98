"""Why a site does not get in, as the server knows it: wrong key, wrong clock, refused requests.

The proxy turns requests away without an answer that tells a stranger anything. What it knows of
the reason it writes down on its own host, for ``deploy status`` and ``deploy run``.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import time
from collections.abc import Sequence

from flamma.deploy.admission import (
    CLOCK_DRIFT_SECONDS,
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    SIGNATURE_SECONDS,
    TIMESTAMP_HEADER,
    Headers,
    has_signed,
)
from flamma.deploy.control import Control, known_nodes
from flamma.deploy.hosts import ServerHost
from flamma.deploy.keys import load_public_key, public_key_bytes
from flamma.errors import DeployError, FlammaError
from flamma.io import JsonTable, write_atomically

_DENIALS_FILE = "denials.json"
"""The file in the server's state with the last reason of every site, and the time of day."""
_ACTIVATE_PATH = "/v1/fleet/activate-node"
"""The request by which a SuperNode begins, and in which Flower compares versions."""
_STRANGER = ""
"""The name in that file for hosts whose key is not registered."""
_FRESH_SECONDS = 120.0
"""Seconds that a reason is believed for; a site that is denied tries again within half a minute."""
_NOTE_SECONDS = 1.0
"""Seconds between two notes, so that a flood of requests costs little."""
_MAX_REASON_LENGTH = 200
_NEVER_ONLINE, _OFFLINE = "it has not connected since it was registered", "it is offline"


class Denials:
    """Writes down why requests were turned away.

    Parameters
    ----------
    host : ServerHost
        The server.
    """

    def __init__(self, host: ServerHost) -> None:
        self.host = host
        self._last = -_NOTE_SECONDS

    def note_headers(self, headers: Headers, address: str) -> None:
        """Note why a request is not let in, by its headers; nothing if it does not even pretend."""
        if time.monotonic() - self._last < _NOTE_SECONDS:
            return
        found = _why_denied(self.host, headers, address)
        if found is not None:
            self._note(*found)

    def note_answer(self, site: str, path: str, status: int, content: bytes) -> None:
        """Note that the SuperLink itself refused to let a site in, if it did."""
        if path == _ACTIVATE_PATH and status >= 400:
            text = content.decode("utf-8", "replace")
            with contextlib.suppress(ValueError, AttributeError):
                table = json.loads(text)
                text = str(table.get("message") or table.get("detail") or text)
            reason = " ".join(text.split())[:_MAX_REASON_LENGTH] or "-"
            self._note(site, f"the SuperLink refuses it ({status}: {reason})")

    def _note(self, site: str, why: str) -> None:
        self._last = time.monotonic()
        table = _read_denials(self.host)
        table[site] = {"why": why, "at": time.time()}
        with contextlib.suppress(OSError, FlammaError):  # sites are served, whatever happens here
            text = json.dumps(table, indent=1)
            write_atomically(self.host.state / _DENIALS_FILE, text.encode(), durable=False)


def _why_denied(host: ServerHost, headers: Headers, address: str) -> tuple[str, str] | None:
    """Return which site a denied request is of, if of any, and why it is denied."""
    values = dict(headers)
    key, signature, timestamp = (
        values.get(name, b"") for name in (PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER)
    )
    if not key:
        return None
    for site in host.sites:
        file = host.public_key(site)
        with contextlib.suppress(DeployError):
            if base64.b64encode(public_key_bytes(file)) == key:
                if not has_signed(load_public_key(file), timestamp, signature):
                    return site, "its requests are not signed by its key"
                return site, _why_stale(timestamp)
    return _STRANGER, f"a host at {address} tried to connect with a key that is not registered"


def _why_stale(timestamp: bytes) -> str:
    try:
        signed = datetime.datetime.fromisoformat(timestamp.decode("ascii"))
        behind = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return "its requests have no usable time"
    return clock_sentence("its clock", behind) or "its request came twice or too late"


def clock_sentence(whose: str, behind: float) -> str:
    """Return what is wrong with a clock that is so many seconds behind the server's, if anything.

    Examples
    --------
    >>> clock_sentence("its clock", -7.4)
    "its clock is 7 s ahead of the server's: set the time of the site's host"
    >>> clock_sentence("its clock", 20.0)
    ''
    """
    if -CLOCK_DRIFT_SECONDS < behind < SIGNATURE_SECONDS:
        return ""
    how = "behind" if behind > 0 else "ahead of"
    return f"{whose} is {abs(behind):.0f} s {how} the server's: set the time of the site's host"


def _read_denials(host: ServerHost) -> JsonTable:
    """Return the last reasons by site; empty if there are none."""
    try:
        table = json.loads((host.state / _DENIALS_FILE).read_text(encoding="utf-8"))
        return dict(table)
    except (OSError, ValueError, TypeError):
        return {}


def _fresh_denials(host: ServerHost) -> dict[str, str]:
    """Return why sites were denied just now, by name."""
    found = {}
    for name, entry in _read_denials(host).items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            if time.time() - float(entry["at"]) < _FRESH_SECONDS:
                found[str(name)] = str(entry["why"])
    return found


def site_reasons(host: ServerHost) -> dict[str, str]:
    """Return why sites are not online, by name, as far as the server's host knows."""
    denied = _fresh_denials(host)
    try:
        with Control(host) as control:
            offline: Sequence[str] = control.offline()
            states = {node.node_id: node.status for node in control.nodes()}
    except DeployError:
        return denied
    nodes, found = known_nodes(host), {}
    for name in offline:
        never = states.get(nodes.get(name, 0)) == "registered"
        found[name] = denied.get(name, _NEVER_ONLINE if never else _OFFLINE)
        if never and name not in denied and _STRANGER in denied:
            found[name] += f"; {denied[_STRANGER]}"
    return found
