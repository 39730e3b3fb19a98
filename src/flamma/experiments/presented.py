"""Results as people look at them: one line, a small table in a notebook, a frame, a picture."""

from __future__ import annotations

import html
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import RunError
from flamma.experiments.progress_bar import NotebookHtml, in_notebook
from flamma.experiments.scratch import ScratchFolder
from flamma.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPARK_WIDTH, SPARK_HEIGHT, SPARK_POINTS = 120, 24, 60
MOST_SHOWN_ROWS = 40
"""Lines of a table in a notebook; the report has all."""

DRAW = ("flamma.reports.pictures", "draw_result")
WRITE_REPORT = ("flamma.reports.html_page", "write_report")
"""What draws and writes reports; a room above, so it is loaded by name."""


class PresentedResult:
    """What every result has for those who look at it in a terminal, a notebook or a script."""

    path: Path | None
    scratch: ScratchFolder | None

    @abstractmethod
    def _headline(self) -> str:
        """Return the result in one sentence."""

    @abstractmethod
    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return small tables: a caption, a header, and lines of cells, which may be SVG."""

    @abstractmethod
    def _records(self) -> list[dict[str, Any]]:
        """Return the rows of the frame."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._headline()}>"

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{html.escape(self._headline())}</b></p>"]
        parts += [html_table(*table) for table in self._tables()]
        return "\n".join(parts)

    def frame(self) -> Any:
        """Return the numbers as a pandas ``DataFrame``.

        Raises
        ------
        MissingExtraError
            If pandas is not installed.
        """
        require("a frame", "pandas")
        return import_module("pandas").DataFrame.from_records(self._records())

    def plot(self) -> Figure:
        """Return the report's own picture as a figure of matplotlib.

        Raises
        ------
        FlammaError
            If matplotlib is not installed, or there is nothing to draw.
        """
        figure: Figure = _loaded(DRAW)(self)
        if in_notebook():
            _let_notebook_show(type(figure))
        return figure

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML report and return its file; a notebook shows a link to it.

        Parameters
        ----------
        path : path, optional
            The file; if not given, ``report.html`` in the result's directory, or in the current
            one if the result is in none that stays.
        """
        if self.path is None:
            raise RunError("this result has no directory to report on: give it an out=.")
        if path is None and self.scratch is not None:
            path = "report.html"
        written: Path = _loaded(WRITE_REPORT)(self.path, None if path is None else Path(path))
        if in_notebook():
            name = html.escape(str(written))
            link = NotebookHtml(f'<a href="{name}" target="_blank">{name}</a>', str(written))
            import_module("IPython.display").display(link)
        return written


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


def html_table(caption: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table for a notebook; cells that are SVG stay as they are."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    rows = [f"<tr>{''.join(_cell(cell) for cell in line)}</tr>" for line in lines[:MOST_SHOWN_ROWS]]
    if len(lines) > MOST_SHOWN_ROWS:
        rows.append(f"<tr><td>and {len(lines) - MOST_SHOWN_ROWS} more</td></tr>")
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table>"


def sparkline(values: Sequence[float | None]) -> str:
    """Return a curve as a small inline SVG, nothing for fewer than two values.

    Examples
    --------
    >>> sparkline([0.0, 1.0]).count("polyline"), sparkline([1.0])
    (1, '')
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    step = max(1, len(known) // SPARK_POINTS)
    shown = [*known[:-1:step], known[-1]]
    low, high = min(shown), max(shown)
    points = " ".join(
        f"{2 + (SPARK_WIDTH - 4) * k / (len(shown) - 1):.0f},"
        f"{SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 4) * (v - low) / ((high - low) or 1):.1f}"
        for k, v in enumerate(shown)
    )
    return (
        f'<svg width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}" role="img" aria-label="from '
        f'{shown[0]:.1f} to {shown[-1]:.1f}"><polyline fill="none" stroke="#0072B2" '
        f'stroke-width="1.5" points="{points}"/></svg>'
    )


def _cell(text: str) -> str:
    return f"<td>{text if text.startswith('<svg ') else html.escape(text)}</td>"


def _let_notebook_show(figure: type) -> None:
    """Let a notebook show figures that were made without pyplot, unless it can already."""
    shell: Any = import_module("IPython").get_ipython()
    formatter = shell.display_formatter.formatters["image/png"]
    if figure not in formatter.type_printers and not formatter.deferred_printers:
        import_module("IPython.core.pylabtools").select_figure_formats(shell, {"png"})


def _loaded(place: tuple[str, str]) -> Any:
    module, name = place
    return getattr(import_module(module), name)
