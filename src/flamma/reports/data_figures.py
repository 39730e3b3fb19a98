"""Pictures of data: who holds which classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flamma.data.federated import FederatedData
from flamma.reports.drawing import new_figure, tidy
from flamma.types import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 200
MOST_LABELS = 25
NUMBERED_CLIENTS = 20


@dataclass(frozen=True, eq=False)
class Holdings:
    """Who holds how much of what: one row per client shown, one column per class."""

    clients: Ints
    counts: Ints
    of_clients: int
    class_names: tuple[str, ...]
    title: str

    @property
    def shares(self) -> Floats:
        """Return each class's share of a client's training samples."""
        shares: Floats = self.counts / self.counts.sum(axis=1, keepdims=True)
        return shares

    @property
    def samples(self) -> Ints:
        """Return how many training samples each client shown has."""
        samples: Ints = self.counts.sum(axis=1)
        return samples


def holdings(data: FederatedData, class_names: Sequence[str] = (), title: str = "") -> Holdings:
    """Return the training samples by client and class; of very many clients an even sample."""
    shown = np.unique(np.linspace(0, data.clients - 1, min(data.clients, MOST_ROWS)).astype(int))
    names = tuple(class_names) or tuple(str(label) for label in range(data.classes))
    counts = data.class_counts()[shown]
    return Holdings(shown, counts, data.clients, names, title or f"Who holds what of {data.name}")


def draw_holdings(held: Holdings) -> Figure:
    """Draw a heat map of each client's class shares beside bars of how much it has.

    One dark-to-light scale of a single hue is read the same by every eye, and a grid stays
    readable where stacked bars of ten colours do not.
    """
    rows, columns = held.counts.shape
    figure = new_figure(4.5 + 0.42 * columns, min(14.0, 2.2 + 0.28 * rows))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(columns, max(3, columns / 3)))
    image = left.imshow(
        held.shares, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest"
    )
    tidy(left, "class", "client", held.title + _of(held))
    left.grid(visible=False)
    _name_classes(left, held)
    _name_clients(left, held)
    if rows <= NUMBERED_CLIENTS:
        _write_counts(left, held)
    right.barh(np.arange(rows), held.samples, color="#7F7F7F", height=0.8)
    tidy(right, "training samples", "", "How much")
    right.tick_params(axis="y", left=False, labelleft=False)
    right.locator_params(axis="x", nbins=3)
    figure.colorbar(image, ax=right, label="share of the client's samples")
    return figure


def _name_classes(axes: Axes, held: Holdings) -> None:
    long = max(len(name) for name in held.class_names) > 2
    axes.set_xticks(
        range(len(held.class_names)),
        held.class_names,
        rotation=45 if long else 0,
        ha="right" if long else "center",
    )


def _name_clients(axes: Axes, held: Holdings) -> None:
    rows = len(held.clients)
    step = next(step for step in (1, 2, 5, 10, 20) if rows <= step * MOST_LABELS)
    axes.set_yticks(range(0, rows, step), [str(client) for client in held.clients[::step]])


def _write_counts(axes: Axes, held: Holdings) -> None:
    for (row, column), count in np.ndenumerate(held.counts):
        if count:
            colour = "white" if held.shares[row, column] > 0.7 else "black"
            axes.text(
                column, row, str(count), ha="center", va="center", color=colour, fontsize="x-small"
            )


def _of(held: Holdings) -> str:
    shown = len(held.clients)
    return "" if shown == held.of_clients else f" ({shown} of {held.of_clients} clients)"
