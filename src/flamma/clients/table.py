"""Clients from a CSV file with the columns contribution, cost and, optionally, name."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from flamma.errors import InputFileError
from flamma.files import read_text

NEEDED = ("contribution", "cost")


def read_clients(path: Path) -> tuple[list[str], list[float], list[float]]:
    """Return names, contributions and costs of the clients in a CSV file.

    Raises
    ------
    InputFileError
        If the file cannot be read, lacks a column, or has a cell that is not a number; the
        message names the line.
    """
    reader = csv.DictReader(io.StringIO(read_text(path)), skipinitialspace=True)
    try:
        columns = [column.strip() for column in reader.fieldnames or []]
        reader.fieldnames = columns
        for column in NEEDED:
            if column not in columns:
                has = ", ".join(columns) or "nothing"
                raise InputFileError(
                    f"{path} needs the columns contribution and cost, but its first line has {has}."
                )
        names: list[str] = []
        values: dict[str, list[float]] = {column: [] for column in NEEDED}
        for row in reader:
            for column in NEEDED:
                values[column].append(_cell(path, reader.line_num, column, row[column]))
            names.append((row.get("name") or "").strip() or f"client {len(names)}")
    except csv.Error as error:
        raise InputFileError(f"{path}, line {reader.line_num}: {error}.") from error
    return names, values["contribution"], values["cost"]


def _cell(path: Path, line: int, column: str, text: str | None) -> float:
    if text is None or not text.strip():
        raise InputFileError(f"{path}, line {line}: the {column} is missing.")
    try:
        value = float(text)
    except ValueError:
        raise InputFileError(
            f"{path}, line {line}: the {column} {text.strip()!r} is not a number."
        ) from None
    within = 0 <= value <= 1 if column == "contribution" else 0 < value < float("inf")
    if not within:
        rule = "lie in [0, 1]" if column == "contribution" else "be positive and finite"
        raise InputFileError(f"{path}, line {line}: the {column} must {rule}, not {text.strip()}.")
    return value
