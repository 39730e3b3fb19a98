"""What every picture shares: colours that colour-blind readers can tell apart, and saving."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.errors import FlammaError, MissingExtraError
from flamma.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, dark enough on white; line styles repeat the distinction.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F")
# The same, as light pages have it (charts.js), so that a strategy has one colour everywhere.
SERIES_COLOURS = (
    *("#0072B2", "#C98300", "#009E73", "#B7568F", "#1a1d21", "#D55E00", "#3A9BDC", "#7F7F7F"),
)
Dash = str | tuple[int, tuple[int, ...]]
DASHES: tuple[Dash, ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1)),
    (0, (3, 1, 1, 1)),
    (0, (1, 1)),
    (0, (8, 2)),
)
PICTURE_ENDINGS = (".png", ".svg")


def style_of(number: int) -> tuple[str, Dash]:
    """Return colour and dash of a line; from the ninth on colours come again with other dashes."""
    turn, place = divmod(number, len(SERIES_COLOURS))
    return SERIES_COLOURS[place], DASHES[(place + 2 * turn) % len(DASHES)]


def check_picture_name(path: Path) -> None:
    """Refuse a file name whose ending is none of the formats we draw."""
    if path.suffix.lower() not in PICTURE_ENDINGS:
        raise FlammaError(
            f"cannot draw {path.name}: end the name in {' or '.join(PICTURE_ENDINGS)}."
        )


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, or say how to install what draws it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing a picture", "report") from None
    return Figure(figsize=(width, height), layout="constrained")


def label_axes(axes: Axes, xlabel: str, ylabel: str, title: str) -> None:
    """Label an axes and take away what carries no information."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """Save a figure as PNG or SVG, by its ending; the same figure gives the same bytes."""
    import matplotlib

    check_picture_name(path)
    buffer = io.BytesIO()
    kind = path.suffix.lower()[1:]
    with matplotlib.rc_context({"svg.hashsalt": "flamma", "svg.fonttype": "none"}):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    write_atomically(path, buffer.getvalue())
