"""Pictures of the game: data first, then a drawing of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flamma.game import Equilibrium, Game, Statics, best_response
from flamma.game.model import Vector
from flamma.game.pieces import pieces
from flamma.reports.document import even_sample
from flamma.reports.drawing import label_axes, line_style, new_figure
from flamma.reports.palette import SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINES = len(SERIES)
"""Clients that are drawn, each in a colour of its own."""

MAX_PIECES = 400
LINE_WIDTH = 1.8
GUIDE: dict[str, Any] = {"color": "#555555", "linewidth": 0.8, "linestyle": ":"}


@dataclass(frozen=True, eq=False)
class LeaderCurve:
    """The leader's utility over the decay factor: one pair of lines per piece."""

    gamma: list[Vector]
    utility: list[Vector]


def leader_curve(game: Game) -> LeaderCurve:
    """Return the curve piece by piece; of very many pieces a sample."""
    piece = pieces(game)
    chosen = np.flatnonzero(piece.end > piece.start)
    if chosen.size > MAX_PIECES:
        chosen = chosen[np.linspace(0, chosen.size - 1, MAX_PIECES).astype(int)]
    gammas = [np.linspace(piece.start[k], piece.end[k], 24) for k in chosen]
    utilities = [
        gamma * (piece.linear[k] + piece.quadratic[k] * gamma)
        for k, gamma in zip(chosen, gammas, strict=True)
    ]
    return LeaderCurve(gammas, utilities)


def shown_clients(clients: int) -> NDArray[np.int64]:
    """Return which clients a picture shows: all, or an even sample of many."""
    return np.array(even_sample(clients, MAX_LINES), dtype=np.int64)


def draw_equilibrium(game: Game, equilibrium: Equilibrium, names: Sequence[str]) -> Figure:
    """Draw the leader's utility with its pieces and optimum, and the clients' responses."""
    figure = new_figure(8, 7)
    above, below = figure.subplots(2, 1, sharex=True)
    _draw_leader(above, game, equilibrium)
    shown = shown_clients(game.clients)
    gammas = np.linspace(*game.decay_bounds, 1001)
    responses = best_response(game, gammas)
    for k, client in enumerate(shown):
        style = line_style(SERIES[k], LINE_WIDTH)
        below.plot(gammas, responses[:, client], label=names[client], **style)
        below.plot(
            equilibrium.decay_factor, equilibrium.local_epochs[client], "o", color=SERIES[k].light
        )
    below.axvline(equilibrium.decay_factor, **GUIDE)
    label_axes(
        below, "decay factor γ", "local epochs τ*", "Best responses" + _of(shown, game.clients)
    )
    _legend(below)
    return figure


def draw_path(game: Game, path: Statics, names: Sequence[str]) -> Figure:
    """Draw the decay factor, the epochs and the utilities round by round."""
    figure, decay, server = _draw_statics(path, names, "round t", drawstyle="steps-mid")
    rounds, top = path.values, game.decay_bounds[1]
    decay.set_title(f"The server's decay factor (price λ = {game.price:.4g})")
    server.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    falls = np.flatnonzero(path.decay_factors < top)
    if falls.size:
        first = rounds[falls[0]]
        right = first < np.mean(rounds)
        decay.axvline(first - 0.5, **GUIDE)
        decay.annotate(
            f"leaves {top:g} in round {first:g}",
            (first, 1.0),
            xytext=(6 if right else -6, 0),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
        )
    return figure


def draw_sweep(found: Statics, names: Sequence[str], title: str) -> Figure:
    """Draw the same over the values of another parameter, which ``title`` names."""
    figure, _, server = _draw_statics(found, names, title, marker=".")
    steps = found.values[1:] / np.maximum(found.values[:-1], np.finfo(float).tiny)
    if found.values.min() > 0 and steps.size > 1 and np.ptp(steps) < 1e-6 * steps.max():
        server.set_xscale("log")  # values that grow by the same factor
    return figure


def _draw_statics(
    found: Statics, names: Sequence[str], title: str, **how: Any
) -> tuple[Figure, Axes, Axes]:
    """Draw equilibria over a parameter; return the figure, its uppermost and lowest axes."""
    figure = new_figure(8, 10)
    decay, epochs, utilities, server = figure.subplots(4, 1, sharex=True)
    decay.plot(found.values, found.decay_factors, color=SERIES[0].light, **how)
    decay.set_ylim(-0.03, 1.08)
    label_axes(decay, "", "decay factor γ*", "The server's decay factor")
    shown = shown_clients(len(names))
    for k, client in enumerate(shown):
        style = {"label": names[client], **line_style(SERIES[k], LINE_WIDTH), **how}
        epochs.plot(found.values, found.local_epochs[:, client], **style)
        utilities.plot(found.values, found.client_utilities[:, client], **style)
    label_axes(epochs, "", "local epochs τ*", "The clients' answers" + _of(shown, len(names)))
    _legend(epochs)
    label_axes(utilities, "", "client utility", "Client utilities")
    utilities.axhline(0, **GUIDE)
    server.plot(found.values, found.server_utilities, color=SERIES[0].light, **how)
    server.axhline(0, **GUIDE)
    label_axes(server, title, "server utility", "Server utility")
    return figure, decay, server


def _draw_leader(axes: Axes, game: Game, equilibrium: Equilibrium) -> None:
    curve = leader_curve(game)
    for k, (gamma, utility) in enumerate(zip(curve.gamma, curve.utility, strict=True)):
        axes.plot(gamma, utility, color=SERIES[(0, 6)[k % 2]].light, linewidth=2)
    if len(curve.gamma) < MAX_PIECES / 4:
        for gamma, utility in zip(curve.gamma[1:], curve.utility[1:], strict=True):
            axes.plot(gamma[0], utility[0], ".", color=SERIES[0].light, markersize=5)
    best = (equilibrium.decay_factor, equilibrium.server_utility)
    axes.plot(*best, "*", color=SERIES[5].light, markersize=15, zorder=3)
    axes.axvline(best[0], **GUIDE)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.15 * (high - low))
    right = best[0] < np.mean(game.decay_bounds)
    axes.annotate(
        f"equilibrium γ* = {best[0]:.4g}, U = {best[1]:.4g}",
        (best[0], high + 0.08 * (high - low)),
        xytext=(6 if right else -6, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
    )
    count = "1 piece" if len(curve.gamma) == 1 else f"{len(curve.gamma)} pieces"
    label_axes(axes, "", "server utility", f"The server's utility in round {game.round}, {count}")


def _of(shown: NDArray[np.int64], clients: int) -> str:
    return "" if shown.size == clients else f" ({shown.size} of {clients} clients)"


def _legend(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
