"""Clients from a CSV file: what each contributes, what it costs and, optionally, its name."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from flamma.errors import InputFileError
from flamma.files import read_text
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.names import printable, quoted

MOST_NAME = 60
"""The most characters of a client's name, and of a cell in a message."""

MOST_HEADER = 200
"""The most characters of a header in a message."""

MOST_CSV_BYTES = 1 << 28
"""The largest file of clients that is read: enough for millions."""


def read_clients(path: Path) -> tuple[list[str], list[float], list[float]]:
    """Return names, contributions and costs of the clients in a CSV file.

    Raises
    ------
    InputFileError
        If the file cannot be read, lacks a column, or has a cell that is not a number; the
        message names the line.
    """
    names, values = _read_columns(path, ("contribution", "cost"))
    return names, values["contribution"], values["cost"]


def read_costs(path: Path) -> tuple[list[str], list[float]]:
    """Return names and costs of the clients in a CSV file; other columns do not matter.

    Raises
    ------
    InputFileError
        As :func:`read_clients`.
    """
    names, values = _read_columns(path, ("cost",))
    return names, values["cost"]


def read_column(path: Path, column: str) -> list[float]:
    """Return one column of positive numbers of a CSV file; others do not matter.

    Raises
    ------
    InputFileError
        As :func:`read_clients`.
    """
    return _read_columns(path, (column,))[1][column]


def _read_columns(path: Path, needed: tuple[str, ...]) -> tuple[list[str], dict[str, list[float]]]:
    reader = csv.DictReader(io.StringIO(read_text(path, MOST_CSV_BYTES)), skipinitialspace=True)
    try:
        columns = [column.strip() for column in reader.fieldnames or []]
        reader.fieldnames = columns
        if not set(needed) <= set(columns):
            wants = f"column{'s' * (len(needed) > 1)} {' and '.join(needed)}"
            has = printable(", ".join(columns), MOST_HEADER) or "nothing"
            raise InputFileError(f"{path} needs the {wants}, but its first line has {has}.")
        names: list[str] = []
        values: dict[str, list[float]] = {column: [] for column in needed}
        for row in reader:
            for column in needed:
                values[column].append(_cell(path, reader.line_num, column, row[column]))
            names.append(printable(row.get("name") or "", MOST_NAME) or f"client {len(names)}")
    except csv.Error as error:
        raise InputFileError(f"{path}, line {reader.line_num}: {error}.") from error
    return names, values


def _cell(path: Path, line: int, column: str, text: str | None) -> float:
    if text is None or not text.strip():
        raise InputFileError(f"{path}, line {line}: the {column} is missing.")
    try:
        value = float(text)
    except ValueError:
        raise InputFileError(
            f"{path}, line {line}: the {column} {quoted(text.strip())} is not a number."
        ) from None
    low, high = (0, 1) if column == "contribution" else (SMALLEST_COST, LARGEST_COST)
    if not low <= value <= high:
        rule = "lie in [0, 1]" if column == "contribution" else "be positive and finite"
        raise InputFileError(
            f"{path}, line {line}: the {column} must {rule}, not {printable(text, MOST_NAME)}."
        )
    return value
