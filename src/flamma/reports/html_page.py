"""The HTML page: a document, our scripts and plotly.js in one file that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path

import flamma
from flamma.errors import RunError
from flamma.experiments.folder import CONFIG, ROUNDS
from flamma.extras import require
from flamma.files import write_atomically
from flamma.reports.document import Document
from flamma.reports.palette import DASHES, SERIES, SHAPES

REPORT_FILE = "report.html"
PAGE_SCRIPTS = ("solver.js", "charts.js", "groups.js", "explorer.js", "page.js", "live.js")


def read_document(path: Path) -> Document:
    """Return the page of a run, a comparison or an audit, of what can be read of its directory.

    Raises
    ------
    RunError
        If the directory holds none of them.
    """
    from flamma.reports.audit_page import audit_document, is_audit
    from flamma.reports.comparing import is_comparison
    from flamma.reports.comparison_page import comparison_document
    from flamma.reports.run_page import run_document

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
    scripts = [plotly(), *(_file(name) for name in PAGE_SCRIPTS)]
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
