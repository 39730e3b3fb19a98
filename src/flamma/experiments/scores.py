"""``clients.csv`` as it is read: the accuracies of single clients, as arrays."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flamma.experiments.folder import CLIENTS
from flamma.experiments.summary import score_kind_of
from flamma.records import RoundRecord, rows_checksum
from flamma.types import ACCURACY_SCORE, Floats, Ints

MOST_PERCENT = 100.001
"""A larger accuracy is damage, not rounding."""


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """The accuracies of single clients.

    Attributes
    ----------
    clients : ndarray
        The clients of which any accuracy is known, in order.
    rounds : dict of int to ndarray
        For each evaluated round the accuracy of these clients, NaN where one has none.
    """

    clients: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rounds: dict[int, Floats] = field(default_factory=dict)


def read_score_table(
    text: str, records: Sequence[RoundRecord], problems: list[str], most_clients: int
) -> ScoreTable:
    """Return the accuracies in the text of ``clients.csv``; what is wrong is added to ``problems``.

    Lines of rounds that do not match the checksum in their record are left out.
    """
    last = records[-1].round if records else 0
    told = {str(r.round): r.scores_checksum for r in records if r.scores_checksum is not None}
    own = _lines_of_rounds(text)
    damaged = {key for key, checksum in told.items() if _checksum(own.get(key, [])) != checksum}
    if own and damaged:
        problems.append(f"{CLIENTS} does not match its checksum in {len(damaged)} rounds")
    found: dict[int, Floats] = {}
    skipped = 0
    for key, parts in own.items():
        if key in damaged:
            continue
        rows, unreadable = _parsed("".join(parts))
        client, accuracy = rows[:, 1], rows[:, 2]
        plausible = (client >= 0) & (client < most_clients) & (client == np.floor(client))
        if score_kind_of(records) == ACCURACY_SCORE:
            plausible &= np.isnan(accuracy) | ((accuracy >= 0) & (accuracy <= MOST_PERCENT))
        skipped += unreadable + int(np.count_nonzero(~plausible))
        rows = rows[plausible]
        if rows.size and 1 <= rows[0, 0] <= last:
            found[int(rows[0, 0])] = rows[:, 1:]
    if skipped:
        amount = "1 line" if skipped == 1 else f"{skipped} lines"
        problems.append(f"{CLIENTS} has {amount} that cannot be read")
    if not own and last:
        problems.append(f"{CLIENTS} is missing or empty, so single clients' accuracies are unknown")
    return _aligned(found)


def _lines_of_rounds(text: str) -> dict[str, list[str]]:
    """Return the lines of every round, whole, by the text of its number."""
    own: dict[str, list[str]] = {}
    start = text.find("\n") + 1
    end = text.rfind("\n") + 1  # a last line without an end is cut off
    while 0 < start < end:
        key = text[start : text.find("\n", start)].partition(",")[0]
        stop = start
        while stop < end and text.startswith(f"{key},", stop):
            stop = text.find("\n", stop) + 1
        if stop == start:  # a line without a comma
            stop = text.find("\n", start) + 1
        own.setdefault(key, []).append(text[start:stop])
        start = stop
    return own


def _checksum(parts: Sequence[str]) -> str | None:
    lines = "".join(parts).removesuffix("\n")
    return rows_checksum([lines] if lines else [])


def _parsed(lines: str) -> tuple[Floats, int]:
    """Return round, client and accuracy of some lines, and how many cannot be read."""
    try:
        columns = (0, 1, 2)
        table: Floats = np.loadtxt(
            io.StringIO(lines), delimiter=",", usecols=columns, comments=None, ndmin=2
        )
        return table, 0
    except ValueError:
        pass
    rows, unreadable = [], 0
    for line in lines.split("\n")[:-1]:
        try:
            number, client, accuracy, _ = line.split(",", 3)
            rows.append((int(number), int(client), float(accuracy)))
        except ValueError:
            unreadable += 1
    return np.array(rows, dtype=np.float64).reshape(-1, 3), unreadable


def _aligned(found: dict[int, Floats]) -> ScoreTable:
    if not found:
        return ScoreTable()
    clients = np.unique(np.concatenate([rows[:, 0] for rows in found.values()]))
    rounds = {}
    for number, rows in sorted(found.items()):
        rounds[number] = np.full(clients.size, math.nan)
        rounds[number][np.searchsorted(clients, rows[:, 0])] = rows[:, 1]
    return ScoreTable(clients.astype(np.int64), rounds)
