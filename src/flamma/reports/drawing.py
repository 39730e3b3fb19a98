"""What every picture shares: lines in the colours of the palette, axes and saving."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import FlammaError
from flamma.extras import require
from flamma.files import write_atomically
from flamma.reports.palette import DASHES, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Dash = str | tuple[int, tuple[float, ...]]
PICTURE_ENDINGS = (".png", ".svg")


def line_style(look: Look, width: float) -> dict[str, Any]:
    """Return a look in the words of matplotlib, which counts dashes in widths of the line."""
    ink = tuple(max(0.6, pixels / 2) for pixels in DASHES[look.dash])
    dash: Dash = (0, ink) if ink else "-"
    return {"color": look.light, "linestyle": dash, "linewidth": width}


def check_picture_name(path: Path) -> None:
    """Refuse a file name whose ending is none of the formats we draw."""
    if path.suffix.lower() not in PICTURE_ENDINGS:
        raise FlammaError(
            f"cannot draw {path.name}: end the name in {' or '.join(PICTURE_ENDINGS)}."
        )


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, or say how to install what draws it."""
    require("drawing a picture", "matplotlib")
    from matplotlib.figure import Figure

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
