"""Tables of the trials of ``chaos.py``."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Entry = dict[str, Any]
HEAD = (
    "| disturbed | trials | well | times resumed | answers lost | median s | longest s |",
    "|---|---|---|---|---|---|---|",
)


def shown(entry: Entry) -> str:
    """Return one trial as a line."""
    what = ", ".join(
        one["target"] + (f" {one['seconds']:.0f} s" if one["seconds"] else "")
        for one in entry["disturbances"]
    )
    verdict = "well" if entry["well"] else "NOT WELL"
    return (
        f"{entry['trial']:>5}  {verdict:<8}  {entry['seconds']:>7.0f} s  rounds "
        f"{entry['rounds']}  empty {entry['empty']}  answers lost {entry['failed']:>2}  resumed "
        f"{entry['resumed']}  lingering {entry['lingering']}  struck {entry['struck']}  {what}"
    )


def by_target(entries: Sequence[Entry]) -> list[str]:
    """Return a Markdown table: of each target, the trials in which it was struck, and of all."""
    kinds = sorted({kind for entry in entries for kind in _kinds(entry)})
    rows = [_row(kind, [entry for entry in entries if kind in _kinds(entry)]) for kind in kinds]
    return [*HEAD, *rows, _row("all trials", entries)] if entries else []


def _kinds(entry: Entry) -> set[str]:
    return {
        f"{one['target']} {'cut off' if one['target'] == 'network' else 'stopped'}"
        if one["seconds"]
        else f"{one['target']} killed"
        for one in entry["disturbances"]
    }


def _row(name: str, entries: Sequence[Entry]) -> str:
    def total(key: str) -> int:
        return sum(int(entry[key]) for entry in entries)

    seconds = [float(entry["seconds"]) for entry in entries]
    numbers: Iterable[object] = (
        len(entries),
        total("well"),
        total("resumed"),
        total("failed"),
        f"{statistics.median(seconds):.0f}",
        f"{max(seconds):.0f}",
    )
    return f"| {name} | {' | '.join(map(str, numbers))} |"
