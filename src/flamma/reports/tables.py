"""Plain text tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return rows under a header, aligned: the first ``left`` columns left, the others right.

    Examples
    --------
    >>> print(text_table(["client", "epochs"], [["a", "10"], ["bcd", "2"]]))
    client  epochs
    ------  ------
    a           10
    bcd          2
    """
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
