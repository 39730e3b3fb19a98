"""The rows of CSV files that are not trusted."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from flamma.errors import DataError

MOST_CELL_CHARACTERS = 100_000

DELIMITERS = (",", ";", "\t", "|")
"""What may stand between cells: the first of these that the header has most of."""


def csv_rows(content: bytes, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, the header too, each with the number of its last line."""
    text = _decoded(content, name)
    first = text.lstrip().partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row) or len(row) > 1:
                if max(map(len, row)) > MOST_CELL_CHARACTERS:
                    raise DataError(
                        f"line {reader.line_num} of {name} has a cell of more than "
                        f"{MOST_CELL_CHARACTERS:,} characters."
                    )
                yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of {name} cannot be read: {error}.") from None


def _decoded(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"line {line} of {name} is not UTF-8 text: save the file as UTF-8."
        ) from None
    if "\0" in text:
        raise DataError(f"{name} is no text: it has bytes of zero.")
    return text
