"""What a page shows, as plain data that its scripts draw, so that text is never read as markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import flamma
from flamma.errors import RunError
from flamma.experiments.folder import CONFIG, ROUNDS
from flamma.extras import require
from flamma.io import write_atomically
from flamma.metrics import LAST_ROUNDS, Metric, ScoreMetric
from flamma.reports.style import DASHES, SERIES, SHAPES, Look
from flamma.types import Floats

Plotly = dict[str, Any]
"""A trace or a layout in the words of plotly.js."""

_Shown = float | str | None
"""A number or a text in a trace; None leaves a gap."""

_Numbers = Sequence[float | None] | Floats
MAX_POINTS = 2000
"""Points of a line or a box; more would only make the page slow."""

MAX_FACTS = 8
"""Numbers at the top of a page."""

SHOWN_CLIENTS = 200
"""Clients that have a row of their own in a chart."""

_DRAWN_DIGITS = 8
"""Significant digits of what is drawn; the files of the run have all."""

_SHOWN_AS_ZERO = 1e-9
"""A number whose size is below this is written as 0."""


@dataclass(frozen=True)
class View:
    """One way to look at a chart: traces and a layout in the words of plotly.js.

    Colours are left to the page, which knows its theme: a trace says which ``series`` it belongs
    to, by number or as the name of one of the document's ``looks``; a heat map which ``scale`` it
    uses. One that belongs to a ``group`` is hidden with it.
    """

    traces: Sequence[Plotly]
    layout: Plotly
    label: str = ""


@dataclass(frozen=True)
class Chart:
    """A titled chart with one sentence on how to read it, and one view or several to choose."""

    name: str
    title: str
    aid: str
    views: Sequence[View]
    wide: bool = False
    height: int = 340
    group: str = ""


@dataclass(frozen=True)
class Charts:
    """Charts that share one legend if they show the same.

    Small ones stand closer together, under one sentence on how to read them all.
    """

    charts: Sequence[Chart]
    small: bool = False
    lead: str = ""
    kind: str = field(default="charts", init=False)


@dataclass(frozen=True)
class TableCell:
    """A cell of a table: its text, the number behind it, a mark and a second, smaller line."""

    text: str
    value: float | None = None
    spread: float | None = None
    mark: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a caption; ``groups`` has the group of every row, if rows are grouped."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | TableCell]]
    notes: Sequence[str] = ()
    groups: Sequence[str] = ()
    kind: str = field(default="table", init=False)


@dataclass(frozen=True)
class Facts:
    """Numbers to read at a glance: label, value, and what to know of it."""

    facts: Sequence[tuple[str, str, str]]
    kind: str = field(default="facts", init=False)


@dataclass(frozen=True)
class Code:
    """A text to read or copy as it is."""

    label: str
    text: str
    folded: bool = False
    kind: str = field(default="code", init=False)


@dataclass(frozen=True)
class Explorer:
    """The game explorer and the games it can start from."""

    games: Sequence[Plotly]
    kind: str = field(default="explorer", init=False)


Item = Charts | Table | Facts | Code | Explorer


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str
    title: str
    lead: str
    items: Sequence[Item]


@dataclass(frozen=True)
class PageProgress:
    """How far something unfinished is, in words too, and the seconds left, if they are known."""

    done: int
    of: int
    text: str
    seconds_left: float | None = None


@dataclass(frozen=True)
class Document:
    """A whole page.

    ``groups`` are what can be hidden and shown together, each with its title; ``looks`` are those
    of the strategies; ``progress`` is there for what is not finished.
    """

    kind: str
    title: str
    subtitle: str
    notices: Sequence[str]
    facts: Facts
    sections: Sequence[Section]
    footer: str
    groups: Mapping[str, str] = field(default_factory=dict)
    looks: Mapping[str, Look] = field(default_factory=dict)
    progress: PageProgress | None = None

    @property
    def missing(self) -> list[str]:
        """What the page does not show, damaged or yet to come, one sentence each."""
        yet_to_come = [] if self.progress is None else [notice(self.progress.text)]
        return [*self.notices, *yet_to_come]


def short_numbers(values: Iterable[_Shown]) -> list[_Shown]:
    """Return numbers rounded to be embedded; what is not finite is None, and texts stay.

    Examples
    --------
    >>> short_numbers([1.0, 1 / 3, float("nan"), None])
    [1, 0.33333333, None, None]
    """
    return [_short(value) for value in values]


def _short(value: _Shown) -> _Shown:
    if isinstance(value, str):
        return value
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{_DRAWN_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def line(
    name: str, x: Iterable[_Shown], y: Iterable[_Shown], series: int | str = 0, **more: object
) -> Plotly:
    """Return a line of one series; of very many points an even sample."""
    points = list(zip(x, y, strict=True))
    points = [points[k] for k in even_sample(len(points), MAX_POINTS)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": short_numbers(point[0] for point in points),
        "y": short_numbers(point[1] for point in points),
        "series": series,
        **more,
    }


def band(
    name: str, x: _Numbers, low: _Numbers, high: _Numbers, series: int | str, of: str
) -> list[Plotly]:
    """Return the two edges of a band that belongs to the line called ``of``."""
    lowest, highest = name.split("/")
    shared: Plotly = {"series": series, "of": of, "band": True, "hoverinfo": "skip"}
    return [
        line(f"{of}, {lowest}", x, low, **shared),
        line(f"{of}, {highest}", x, high, **shared, fill="tonexty"),
    ]


def heatmap(
    x: Sequence[_Shown], y: Sequence[_Shown], z: Sequence[_Numbers], unit: str, **more: object
) -> Plotly:
    """Return a heat map; ``scale`` is ``sequential`` unless told otherwise."""
    return {
        "type": "heatmap",
        "name": unit,
        "x": list(x),
        "y": list(y),
        "z": [short_numbers(row) for row in z],
        "scale": "sequential",
        **more,
    }


def axes(x: str, y: str, **more: object) -> Plotly:
    """Return a layout with two titled axes; ``x_`` and ``y_`` begin further options of each."""
    layout: Plotly = {"xaxis": {"title": x}, "yaxis": {"title": y}}
    for key, value in more.items():
        axis, _, option = key.partition("_")
        layout[f"{axis}axis"][option] = value
    return layout


def number_text(value: float | None, digits: int = 4) -> str:
    """Return a number as people read it.

    Examples
    --------
    >>> number_text(89.7312), number_text(None), number_text(3e-17), number_text(1234567.0)
    ('89.73', 'not known', '0', '1,235,000')
    """
    if value is None:
        return "not known"
    if abs(value) < _SHOWN_AS_ZERO:
        return "0"
    if abs(value) >= 10**digits:
        rounded = round(value, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{rounded:,.0f}"
    return f"{value:.{digits}g}"


def byte_size(amount: float) -> str:
    """Return a number of bytes as people read it.

    Examples
    --------
    >>> byte_size(740472), byte_size(22214160)
    ('740 kB', '22.2 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= scale:
            return f"{amount / scale:.3g} {unit}"
    return f"{amount:.0f} B"


def even_sample(amount: int, most: int) -> list[int]:
    """Return the indices of things that are shown: all, or an even sample of many.

    Examples
    --------
    >>> even_sample(3, 10), even_sample(101, 3)
    ([0, 1, 2], [0, 50, 100])
    """
    return [int(k) for k in np.unique(np.linspace(0, amount - 1, min(amount, most)).astype(int))]


def notice(problem: str) -> str:
    """Return a clause on what is missing as a sentence."""
    return f"{problem[:1].upper()}{problem[1:]}."


# How pages write a metric: its value with its unit, and which direction is better.

BETTER = {"higher": "Higher is better.", "lower": "Lower is better.", "neither": ""}
"""What to say of each direction."""


def value_text(metric: Metric, value: float, digits: int = 4) -> str:
    """Return a value as people read it; only percentages and bytes are told with their unit."""
    if metric.unit == "bytes":
        return byte_size(value)
    if metric.unit.startswith("%"):
        return f"{value:.1f} {metric.unit}"
    return number_text(value, digits)


def column_text(metric: Metric) -> str:
    """Return the label of a column, with the unit if the values are written without it."""
    return metric.label if metric.unit == "bytes" or metric.unit.startswith("%") else metric.title


def fact(metric: Metric, value: float, rounds: Sequence[float | None] = ()) -> tuple[str, str, str]:
    """Return a metric of a run as a fact: label, value, and how it comes from the rounds.

    What is a mean over ``rounds`` says over how many, and what the last of them was.
    """
    alone = column_text(metric) == metric.label
    averaged = isinstance(metric, ScoreMetric) and bool(rounds)
    how = _mean_note(metric, rounds) if averaged else metric.aggregation()
    note = how if alone else f"{metric.unit}, {how}"
    return metric.label, value_text(metric, value), note


def _mean_note(metric: Metric, rounds: Sequence[float | None]) -> str:
    """Say over how many of the last rounds the mean is, and what the last one had."""
    latest = rounds[-LAST_ROUNDS:]
    known = [value for value in latest if value is not None]
    if len(known) == 1:
        return "of the last evaluated round"
    which = f"last {len(latest)}" if len(rounds) > len(latest) else f"{len(latest)}"
    few = "" if len(known) == len(latest) else f"{len(known)} evaluated ones of the "
    last = value_text(metric, known[-1]).replace(" ", "\N{NO-BREAK SPACE}")
    return f"mean of the {few}{which} rounds; the last has {last}"


# The HTML page: a document, our scripts and plotly.js in one file that loads nothing else.

REPORT_FILE = "report.html"
_PAGE_SCRIPTS = ("solver.js", "charts.js", "groups.js", "explorer.js", "page.js", "live.js")


def read_document(path: Path) -> Document:
    """Return the page of a run, a comparison or an audit, of what can be read of its directory.

    Raises
    ------
    RunError
        If the directory holds none of them.
    """
    from flamma.reports.audit import audit_document, is_audit
    from flamma.reports.comparison import comparison_document
    from flamma.reports.reading import is_comparison
    from flamma.reports.run import run_document

    if (path / CONFIG).exists() or (path / ROUNDS).exists():
        return run_document(path)
    if is_audit(path):
        return audit_document(path)
    if is_comparison(path):
        return comparison_document(path)
    raise RunError(
        f"{path} holds neither a run nor a comparison: name a directory that flamma run, flamma "
        f"compare or flamma audit has written."
    )


def write_report(path: Path, out: Path | None = None) -> Path:
    """Write the report of a directory, by default as ``report.html`` in it; return the file.

    Raises
    ------
    FlammaError
        If there is nothing to report on, the place cannot be written, or the ``report`` extra is
        missing.
    """
    return write_page(read_document(path), path / REPORT_FILE if out is None else out)


def write_page(document: Document, target: Path) -> Path:
    """Write a document as a page, and return its file."""
    write_atomically(target, render(document).encode(), durable=False)
    return target


def render(document: Document, live: bool = False) -> str:
    """Return the whole page; a live one may also ask its own server for news."""
    scripts = [plotly(), *(_file(name) for name in _PAGE_SCRIPTS)]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"base-uri 'none'; form-action 'none'" + ("; connect-src 'self'" if live else "")
    )
    parts = {
        "live": "yes" if live else "no",
        "policy": html.escape(policy),
        "version": html.escape(flamma.__version__),
        "title": html.escape(document.title),
        "style": _file("page.css"),
        "data": as_json(document),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    page = []
    for k, piece in enumerate(_file("template.html").split("@")):
        page.append(parts[piece] if k % 2 else piece)
    return "".join(page)


def as_json(document: Document) -> str:
    """Return a document as JSON that can stand inside a script element of a page.

    Nothing in it can end the element or begin a comment: what HTML or old JavaScript would
    stumble over is written as an escape, which JSON reads back as it was.
    """
    palette = {"series": [asdict(look) for look in SERIES], "dashes": DASHES, "shapes": SHAPES}
    whole = asdict(document) | {"palette": palette}
    text = json.dumps(whole, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode(errors="replace").decode()  # half a surrogate pair cannot be written


@cache
def plotly() -> str:
    """Return plotly.js, or say how to install what brings it."""
    require("an HTML report", "plotly")
    text = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


@cache
def _file(name: str) -> str:
    return (files("flamma.reports") / "page" / name).read_text(encoding="utf-8")


@cache
def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
