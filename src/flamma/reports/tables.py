"""Plain text tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return rows under a header, aligned: the first ``left`` columns left, the others right.

    A row of a single cell is the heading of those below it, which are indented.

    Examples
    --------
    >>> print(text_table(["client", "epochs"], [["a", "10"], ["bcd", "2"]]))
    client  epochs
    ------  ------
    a           10
    bcd          2
    """
    whole = [*_under_headings(rows, len(header))]
    widths = [max(len(cell) for cell in column) for column in zip(header, *whole, strict=True)]
    lines = [header, ["-" * width for width in widths], *whole]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _under_headings(rows: Sequence[Sequence[str]], width: int) -> Iterator[Sequence[str]]:
    """Yield rows of equal width; under a heading their first cell is indented."""
    indent = ""
    for first, *others in rows:
        if others or width == 1:
            yield [f"{indent}{first}", *others]
        else:
            indent = "  "
            yield [first, *[""] * (width - 1)]
