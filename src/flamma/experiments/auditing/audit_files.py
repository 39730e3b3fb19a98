"""The files of an audit: what was found, as JSON and as a table."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from pathlib import Path

from flamma.errors import RunError
from flamma.experiments.auditing.findings import AUDIT_VERSION, Audit, Finding
from flamma.experiments.manifest import signed, verified
from flamma.files import read_text, write_atomically

AUDIT_FILE, FINDINGS_FILE = "audit.json", "audit.csv"


def write_audit(audit: Audit, folder: Path) -> None:
    """Write audit.json and audit.csv, each whole."""
    write_atomically(folder / FINDINGS_FILE, _as_csv(audit).encode())
    write_atomically(folder / AUDIT_FILE, signed(audit.as_json()).encode())


def read_audit(folder: Path) -> Audit:
    """Read an audit's directory.

    Raises
    ------
    RunError
        If there is no audit, or it is damaged.
    """
    file = folder / AUDIT_FILE
    if not file.exists():
        raise RunError(f"{folder} holds no finished audit: there is no {AUDIT_FILE} in it.")
    table = verified(read_text(file, regular=True))
    if table is not None and table.get("version") == AUDIT_VERSION:
        try:
            return Audit.from_json(table)
        except (KeyError, TypeError, AttributeError):
            pass
    raise RunError(f"{file} is damaged or of another version: the same audit writes it again.")


def _as_csv(audit: Audit) -> str:
    buffer = io.StringIO()
    left_out = {"group", "options"}
    columns = [f.name for f in fields(Finding) if f.name not in left_out]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["dataset", "split", "strategy", "gain", "relative_gain", *columns])
    for case in audit.cases:
        for finding in case.findings:
            table = finding.as_json()
            shown = [table[name] for name in ("gain", "relative_gain", *columns)]
            cells = ["" if value is None else value for value in shown]
            writer.writerow([case.dataset, case.split, case.strategy, *cells])
    return buffer.getvalue()
