"""The picture of a split: which client holds how many samples of which class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flamma.data.federated import FederatedData
from flamma.reports.document import even_sample
from flamma.reports.drawing import label_axes, new_figure
from flamma.types import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CLIENT_ROWS = 200
MAX_CLIENT_LABELS = 25
MAX_NUMBERED_CLIENTS = 20
"""Up to so many clients the number of samples is written into every cell."""


@dataclass(frozen=True, eq=False)
class HoldingsFigure:
    """The data of the picture: one row per client shown, one column per class."""

    clients: Ints
    counts: Ints
    of_clients: int
    class_names: tuple[str, ...]
    title: str

    @property
    def shares(self) -> Floats:
        """Each class's share of a client's training samples."""
        shares: Floats = self.counts / self.counts.sum(axis=1, keepdims=True)
        return shares

    @property
    def samples(self) -> Ints:
        """How many training samples each client shown has."""
        samples: Ints = self.counts.sum(axis=1)
        return samples


def holdings(
    data: FederatedData, class_names: Sequence[str] = (), title: str = ""
) -> HoldingsFigure:
    """Return the training samples by client and class; of very many clients an even sample."""
    shown = np.array(even_sample(data.clients, MAX_CLIENT_ROWS), dtype=np.int64)
    names = tuple(class_names) or tuple(str(label) for label in range(data.classes))
    counts = data.class_counts()[shown]
    if not counts.shape[1]:  # samples of a task without classes
        counts, names = data.samples[shown, None], ("all",)
    return HoldingsFigure(
        shown, counts, data.clients, names, title or f"Who holds what of {data.name}"
    )


def draw_holdings(held: HoldingsFigure) -> Figure:
    """Draw a heat map of each client's class shares beside bars of how much it has.

    A scale of a single hue is safe for colour-blind readers, and a grid stays readable where
    stacked bars of ten colours do not.
    """
    rows, columns = held.counts.shape
    figure = new_figure(4.5 + 0.42 * columns, min(14.0, 2.2 + 0.28 * rows))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(columns, max(3, columns / 3)))
    image = left.imshow(
        held.shares, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest"
    )
    label_axes(left, "class", "client", held.title + _of(held))
    left.grid(visible=False)
    _name_classes(left, held)
    _name_clients(left, held)
    if rows <= MAX_NUMBERED_CLIENTS:
        _write_counts(left, held)
    right.barh(np.arange(rows), held.samples, color="#7F7F7F", height=0.8)
    label_axes(right, "training samples", "", "How much")
    right.tick_params(axis="y", left=False, labelleft=False)
    right.locator_params(axis="x", nbins=3)
    figure.colorbar(image, ax=right, label="share of the client's samples")
    return figure


def _name_classes(axes: Axes, held: HoldingsFigure) -> None:
    long = max(len(name) for name in held.class_names) > 2
    axes.set_xticks(
        range(len(held.class_names)),
        held.class_names,
        rotation=45 if long else 0,
        ha="right" if long else "center",
    )


def _name_clients(axes: Axes, held: HoldingsFigure) -> None:
    rows = len(held.clients)
    step = next(step for step in (1, 2, 5, 10, 20) if rows <= step * MAX_CLIENT_LABELS)
    axes.set_yticks(range(0, rows, step), [str(client) for client in held.clients[::step]])


def _write_counts(axes: Axes, held: HoldingsFigure) -> None:
    for (row, column), count in np.ndenumerate(held.counts):
        if count:
            colour = "white" if held.shares[row, column] > 0.7 else "black"
            axes.text(
                column, row, str(count), ha="center", va="center", color=colour, fontsize="x-small"
            )


def _of(held: HoldingsFigure) -> str:
    shown = len(held.clients)
    return "" if shown == held.of_clients else f" ({shown} of {held.of_clients} clients)"
