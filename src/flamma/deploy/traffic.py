"""What the proxy has seen: which sites come, what they send and get, and what was refused.

The counts are kept in a file of the server's state, so that they outlive the proxy and can be told
by another process.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from flamma.deploy.hosts import ServerHost
from flamma.deploy.logs import host_journal
from flamma.errors import FlammaError
from flamma.events import Journal
from flamma.io import write_atomically

_TRAFFIC_FILE = "traffic.json"
"""The file in the server's state with the counts."""
ABSENT_SECONDS = 60.0
"""Seconds without a request after which a site has left; a SuperNode asks every 20 seconds."""
_SAVE_SECONDS = 2.0
"""Seconds after which a change is on disk."""
_REFUSAL_SECONDS = 60.0
"""Seconds in which refusals of one kind are one event, so that a stranger cannot fill the log."""
_REASONS = {
    401: "not signed by a registered site at this time",
    403: "not allowed to this site",
    404: "not a request of a site",
    408: "too slow",
    413: "too large",
    503: "no room for it, or the SuperLink does not answer",
}
"""What the statuses of the proxy mean."""


@dataclass
class _SiteTraffic:
    """What one site has sent and got.

    ``seen`` is the time of its last request, in seconds since 1970; 0 for never.
    """

    requests: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seen: float = 0.0


@dataclass
class ProxyTraffic:
    """The counts of a server's proxy, and the events of them.

    Parameters
    ----------
    file : Path, optional
        Where the counts are kept; by default they are not.
    journal : Journal
        Where events are written.
    """

    file: Path | None = None
    journal: Journal = field(default_factory=lambda: Journal(None))
    sites: dict[str, _SiteTraffic] = field(default_factory=dict)
    refusals: Counter[int] = field(default_factory=Counter)
    _told: dict[tuple[str, int, str], float] = field(default_factory=dict)
    _left_out: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    _absent: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _saving: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, host: ServerHost) -> ProxyTraffic:
        """Return the traffic of a server's proxy, with what was counted before."""
        file = host.state / _TRAFFIC_FILE
        sites, refusals = read_traffic(host)
        return cls(file, host_journal(host, "proxy"), sites, refusals)

    def seen(self, site: str) -> None:
        """Count a request that a site has signed."""
        about = self.sites.setdefault(site, _SiteTraffic())
        about.requests += 1
        about.seen = time.time()
        loop = asyncio.get_running_loop()
        if timer := self._absent.pop(site, None):
            timer.cancel()
        else:
            self.journal.tell("site joined", f"{site} is connected", site=site)
        self._absent[site] = loop.call_later(ABSENT_SECONDS, self._left, site)
        self._changed()

    def passed(self, site: str, up: int, down: int) -> None:
        """Count the bytes of a request and of its answer."""
        about = self.sites.setdefault(site, _SiteTraffic())
        about.bytes_up += up
        about.bytes_down += down

    def refused(
        self,
        status: int,
        site: str | None,
        client: Sequence[object] | None = None,
        reason: str = "",
    ) -> None:
        """Count a request that was not passed on, and tell of the first one in a while."""
        self.refusals[status] += 1
        self._changed()
        key, now = (site or "", status, reason), time.monotonic()
        if now - self._told.get(key, -_REFUSAL_SECONDS) < _REFUSAL_SECONDS:
            self._left_out[key] += 1
            return
        self._told[key] = now
        who = site or f"a stranger at {client[0] if client else 'an unknown address'}"
        why = reason or _REASONS.get(status, "refused")
        if more := self._left_out.pop(key, 0):
            why += f" ({more:,} more of these since the last one)"
        event = "limit hit" if status in (408, 413, 503) else "request refused"
        count = self.refusals[status]
        self.journal.tell(
            event, f"{who}: {why}", "warning", status=status, site=site or "", count=count
        )

    def crowded(self, address: str) -> None:
        """Count a connection without a request of a site that was closed to make room."""
        self.refused(503, None, (address,), "its oldest connection without a request made room")

    def save(self) -> None:
        """Write the counts to their file."""
        self._saving = None
        if self.file is not None:
            table = {
                "sites": {name: vars(about) for name, about in self.sites.items()},
                "refusals": {str(status): count for status, count in self.refusals.items()},
            }
            with suppress(FlammaError):  # a full disk ends no proxy
                write_atomically(self.file, json.dumps(table).encode(), durable=False)

    def _left(self, site: str) -> None:
        self._absent.pop(site, None)
        message = f"no request of {site} for {ABSENT_SECONDS:.0f} s"
        self.journal.tell("site left", message, "warning", site=site)

    def _changed(self) -> None:
        if self._saving is None and self.file is not None:
            self._saving = asyncio.get_running_loop().call_later(_SAVE_SECONDS, self.save)


def read_traffic(host: ServerHost) -> tuple[dict[str, _SiteTraffic], Counter[int]]:
    """Return what the proxy of a server has counted; nothing if the file is not there or damaged.

    Sites that are not of the federation any more are left out.
    """
    try:
        table = json.loads((host.state / _TRAFFIC_FILE).read_text(encoding="utf-8"))
        sites = {
            name: _SiteTraffic(
                int(about["requests"]),
                int(about["bytes_up"]),
                int(about["bytes_down"]),
                float(about["seen"]),
            )
            for name, about in table["sites"].items()
            if name in host.sites
        }
        return sites, Counter({int(k): int(v) for k, v in table["refusals"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, Counter()
