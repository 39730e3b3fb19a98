"""The events of hosts: where they are written, and how they are read again."""

from __future__ import annotations

import contextlib
import datetime
import heapq
import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flamma.deploy.hosts import Host, SiteHost
from flamma.errors import DeployError
from flamma.events import (
    EVENT_LEVELS,
    EVENTS_FILE,
    FILE_VARIABLE,
    HOST_VARIABLE,
    MOST_TEXT,
    Journal,
    event_files,
)
from flamma.io import JsonTable, printable

_NEW_EVENTS_SECONDS = 0.5
"""Seconds between two looks for new events."""
_MAX_LINE_BYTES = 100_000
"""Bytes of a line that are read as an event; what is longer, no FLamma has written."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME = re.compile(r"(\d{1,9})([smhd])")

Event = JsonTable


def host_journal(host: Host, part: str) -> Journal:
    """Return where a part of a host writes its events."""
    return Journal(_file(host), _name(host), part)


def event_environment(host: Host) -> dict[str, str]:
    """Return the variables by which a host's processes find where to write their events."""
    return {FILE_VARIABLE: str(_file(host)), HOST_VARIABLE: _name(host)}


@dataclass(frozen=True)
class EventFilter:
    """Which events are wanted.

    Parameters
    ----------
    since : str
        A time such as ``2026-03-01T12:00`` in UTC, or a span before now such as ``90s``, ``10m``,
        ``2h`` or ``3d``; empty for all.
    level : str
        The least level.

    Raises
    ------
    DeployError
        If the time cannot be read.
    """

    since: str = ""
    level: str = "info"

    def __post_init__(self) -> None:
        object.__setattr__(self, "since", _moment(self.since))

    def keeps(self, event: Event) -> bool:
        """Return whether an event is wanted."""
        known = event["level"] if event["level"] in EVENT_LEVELS else "info"
        loud = EVENT_LEVELS.index(known) >= EVENT_LEVELS.index(self.level)
        return loud and str(event["time"]) >= self.since


def events_of(hosts: Sequence[Host], wanted: EventFilter) -> Iterator[Event]:
    """Yield the events of hosts whose folders are here, the oldest first."""
    each = [_read(event_files(_file(host))) for host in hosts]
    merged = heapq.merge(*each, key=lambda event: str(event["time"]))
    return (event for event in merged if wanted.keeps(event))


def new_events(hosts: Sequence[Host], wanted: EventFilter) -> Iterator[Event]:
    """Return the events that are written after this call, as they come and without an end."""
    return _following({_file(host): _end(_file(host)) for host in hosts}, wanted)


def _following(places: dict[Path, tuple[int, int]], wanted: EventFilter) -> Iterator[Event]:
    while True:
        found = []
        for file in places:
            places[file], lines = _since(file, places[file])
            found += list(_parsed(lines))
        yield from sorted(filter(wanted.keeps, found), key=lambda event: str(event["time"]))
        time.sleep(_NEW_EVENTS_SECONDS)


def event_line(event: Event) -> str:
    """Return an event as one line for people.

    Examples
    --------
    >>> event_line({"time": "2026-03-01T12:00:00.123Z", "level": "warning", "host": "server",
    ...     "part": "proxy", "run": "", "round": None, "event": "site left", "message": "site0"})
    '2026-03-01 12:00:00 warning server     proxy       site left: site0'
    """
    told = {key: printable(str(value), MOST_TEXT) for key, value in event.items()}
    moment = told["time"].replace("T", " ").partition(".")[0]
    place = [f"run {told['run']}"] if event.get("run") else []
    place += [f"round {told['round']}"] if event.get("round") is not None else []
    where = f"  [{', '.join(place)}]" if place else ""
    return (
        f"{moment} {told['level']:<7} {told['host']:<10} {told['part']:<11} "
        f"{told['event']}: {told['message']}{where}"
    )


def _file(host: Host) -> Path:
    return host.logs / EVENTS_FILE


def _name(host: Host) -> str:
    return host.name if isinstance(host, SiteHost) else "server"


def _moment(text: str) -> str:
    """Return a moment as events have it, so that texts can be compared."""
    if not text:
        return ""
    try:
        if span := _TIME.fullmatch(text):
            ago = datetime.timedelta(seconds=int(span[1]) * _UNITS[span[2]])
            moment = datetime.datetime.now(datetime.UTC) - ago
        else:
            moment = datetime.datetime.fromisoformat(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=datetime.UTC)
            moment = moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise DeployError(
            f"--since takes a time in UTC such as 2026-03-01T12:00, or a span such as 10m, 2h or "
            f"3d, not {text!r}."
        ) from None
    return f"{moment:%Y-%m-%dT%H:%M:%S}"


def _read(files: Iterable[Path]) -> Iterator[Event]:
    for file in files:
        with contextlib.suppress(FileNotFoundError), open(file, "rb") as opened:
            yield from _parsed(opened)


def _parsed(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of lines; what is no event, such as half a line, is left out."""
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line) if len(line) <= _MAX_LINE_BYTES else None
            if isinstance(event, dict) and {"time", "level", "host", "part"} <= event.keys():
                yield {"event": "", "message": "", **event}


def _end(file: Path) -> tuple[int, int]:
    try:
        about = file.stat()
    except OSError:
        return 0, 0
    return about.st_ino, about.st_size


def _since(file: Path, place: tuple[int, int]) -> tuple[tuple[int, int], list[bytes]]:
    """Return the whole lines after a place in a file, and the place after them.

    If the file was renamed meanwhile, the rest of the old one comes first.
    """
    number, offset = place
    lines: list[bytes] = []
    now = _end(file)[0]
    if number not in (0, now):
        for old in event_files(file):
            if _end(old)[0] == number:
                lines += _whole_lines(old, offset)[1]
        offset = 0
    if not now:
        return (0, 0), lines
    offset, fresh = _whole_lines(file, offset)
    return (now, offset), lines + fresh


def _whole_lines(file: Path, offset: int) -> tuple[int, list[bytes]]:
    try:
        with open(file, "rb") as opened:
            opened.seek(offset)
            whole, newline, _ = opened.read().rpartition(b"\n")
    except FileNotFoundError:  # renamed just now
        return offset, []
    return offset + len(whole) + len(newline), whole.splitlines() if newline else []
