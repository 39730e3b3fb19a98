"""The picture of a result, as a figure: what its report shows first."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flamma.data.federated import FederatedData
from flamma.errors import FlammaError, RunError
from flamma.experiments.comparison import Comparison, compared
from flamma.experiments.findings import Audit, AuditedCase, percent
from flamma.experiments.result import Run
from flamma.experiments.suite import Cell, family_name
from flamma.experiments.tune import Tuned
from flamma.extras import require
from flamma.game import Equilibrium, Game, Statics, best_response
from flamma.game.equilibrium import utility_pieces
from flamma.io import write_atomically
from flamma.metrics import Metric, shown_in
from flamma.reports.audit import FULL_COLOUR
from flamma.reports.document import SHOWN_CLIENTS, even_sample
from flamma.reports.reading import ComparisonView, RunView, read_comparison, read_run, read_runs
from flamma.reports.style import DASHES, SERIES, Look, looks_of
from flamma.strategies import FAMILIES, label_of
from flamma.types import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# What every picture shares: lines in the colours of the palette, axes and saving.

_Dash = str | tuple[int, tuple[float, ...]]
_PICTURE_ENDINGS = (".png", ".svg")


def _line_style(look: Look, width: float) -> dict[str, Any]:
    """Return a look in the words of matplotlib, which counts dashes in widths of the line."""
    ink = tuple(max(0.6, pixels / 2) for pixels in DASHES[look.dash])
    dash: _Dash = (0, ink) if ink else "-"
    return {"color": look.light, "linestyle": dash, "linewidth": width}


def check_picture_name(path: Path) -> None:
    """Refuse a file name whose ending is none of the formats we draw."""
    if path.suffix.lower() not in _PICTURE_ENDINGS:
        raise FlammaError(
            f"cannot draw {path.name}: end the name in {' or '.join(_PICTURE_ENDINGS)}."
        )


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, or say how to install what draws it."""
    require("drawing a picture", "matplotlib")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _label_axes(axes: Axes, xlabel: str, ylabel: str, title: str) -> None:
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


# Small multiples: one picture per family, with the same two strategies in each to compare with.

_REFERENCES = ("fedavg", "flamma-plus")
"""The strategies that are drawn in every family's picture."""


@dataclass(frozen=True)
class Multiple:
    """What one of the small multiples shows: a family, and references beside it."""

    family: str
    members: Sequence[str]
    references: Sequence[str]

    def suffixed(self, name: str) -> str:
        """Return the name of a chart, with the family if there is one."""
        return f"{name}-{self.family}" if self.family else name

    def titled(self, title: str) -> str:
        """Return the title of a chart, after the family if there is one."""
        if not self.family:
            return title
        return f"{family_name(self.family)}: {title[:1].lower()}{title[1:]}"


def multiples(view: ComparisonView) -> list[Multiple]:
    """Return one for every family; of few strategies one for all of them."""
    if not view.families:
        return [Multiple("", view.strategies, ())]
    references = [name for name in _REFERENCES if name in view.strategies]
    return [
        Multiple(family, members, [n for n in references if n not in members])
        for family, members in view.families.items()
    ]


def family_title(family: str) -> str:
    """Return how a family is headed."""
    return f"{family_name(family)}: {FAMILIES[family]}"


# Metrics over the rounds, with a band over seeds: the paper's Figs. 4 and 5.


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric of one strategy over the rounds: one row of values per seed."""

    strategy: str
    runs: list[RunView]
    rounds: list[int]
    values: Floats

    @property
    def mean(self) -> Floats:
        """The mean over the seeds."""
        mean: Floats = self.values.mean(axis=0)
        return mean

    @property
    def low(self) -> Floats:
        """The lowest seed of each round."""
        low: Floats = self.values.min(axis=0)
        return low

    @property
    def high(self) -> Floats:
        """The highest seed of each round."""
        high: Floats = self.values.max(axis=0)
        return high


def curves(view: ComparisonView, dataset: str, split: str, metric: str) -> list[Curve]:
    """Return the curve of every strategy that has the metric, on one dataset and split.

    A curve has the rounds for which all its seeds have a value; a seed without any is left out.
    """
    found = []
    for strategy in view.strategies:
        runs, known = [], []
        for run in view.longest_runs(dataset, split, strategy):
            # A damaged run may lack the record of a round.
            values = zip(run.numbers, run.of_rounds(metric), strict=True)
            if by_round := {number: value for number, value in values if value is not None}:
                runs.append(run)
                known.append(by_round)
        common = [n for n in known[0] if all(n in values for values in known)] if known else []
        if common:
            table = np.array([[values[n] for n in common] for values in known])
            found.append(Curve(strategy, runs, common, table))
    return found


def _draw_dataset(view: ComparisonView, dataset: str) -> Figure:
    """Draw one column per split and one row per metric; of many strategies one row per family."""
    splits = [split for name, split in view.panels if name == dataset]
    found = {
        metric: [curves(view, dataset, split, name) for split in splits]
        for name, metric in shown_in("curves", view.score_kind).items()
    }
    found = {metric: panels for metric, panels in found.items() if any(panels)}
    if view.families:
        return _draw_families(view, dataset, splits, found)
    figure = new_figure(4.6 * len(splits) + 1.6, 3.3 * max(1, len(found)))
    grid = figure.subplots(max(1, len(found)), len(splits), squeeze=False, sharex=True)
    for row, (metric, panels) in enumerate(found.items()):
        for column, panel in enumerate(panels):
            axes = grid[row][column]
            _draw_panel(axes, view, panel)
            _start_at_zero(axes, panel)
            below = "round" if row == len(found) - 1 else ""
            title = f"{dataset}, {splits[column]}" if row == 0 else ""
            _label_axes(axes, below, metric.title if column == 0 else "", title)
    figure.legend(*_legend_of(grid.flat), loc="outside right center", frameon=False)
    return figure


def _draw_families(
    view: ComparisonView,
    dataset: str,
    splits: Sequence[str],
    found: Mapping[Metric, Sequence[list[Curve]]],
) -> Figure:
    """Draw one row per family and one column per metric and split, references in each."""
    columns = [
        (metric, split, panel)
        for metric, panels in found.items()
        for split, panel in zip(splits, panels, strict=True)
    ]
    rows = multiples(view)
    figure = new_figure(4.2 * len(columns) + 2.2, 2.3 * len(rows))
    shape = (len(rows), max(1, len(columns)))
    grid = figure.subplots(*shape, squeeze=False, sharex=True, sharey="col")
    for row, own in enumerate(rows):
        for column, (metric, split, panel) in enumerate(columns):
            axes = grid[row][column]
            shown = [c for c in panel if c.strategy in (*own.references, *own.members)]
            _draw_panel(axes, view, shown, own)
            title = f"{family_name(own.family)}: {metric.label}, {dataset}, {split}"
            _label_axes(axes, "round" if row == len(rows) - 1 else "", metric.title, title)
        beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "fontsize": "small"}
        grid[row][-1].legend(*_legend_of(grid[row]), frameon=False, **beside)
    for column, (_, _, panel) in enumerate(columns):
        _start_at_zero(grid[0][column], panel)  # and all below, when they have been drawn
    return figure


def _legend_of(drawn: Iterable[Axes]) -> tuple[list[Any], list[str]]:
    """Return every line of some axes once, and its label."""
    found = {
        label: handle
        for axes in drawn
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    return list(found.values()), list(found)


def _draw_panel(
    axes: Axes, view: ComparisonView, panel: list[Curve], own: Multiple | None = None
) -> None:
    """Draw curves with a band over seeds; of a family the lines only, its references thin."""
    looks = looks_of(view.strategies)
    for curve in panel:
        look, label, width = looks[curve.strategy], label_of(curve.strategy), 1.5
        if own is None:
            axes.fill_between(curve.rounds, curve.low, curve.high, color=look.light, alpha=0.12)
        elif curve.strategy in own.references:
            width = 0.9
        axes.plot(curve.rounds, curve.mean, label=label, **_line_style(look, width))


def _start_at_zero(axes: Axes, panel: list[Curve]) -> None:
    if all(curve.low.min() >= 0 for curve in panel):
        axes.set_ylim(bottom=0)


def save_curves(folder: Path, comparison: Comparison) -> list[Path]:
    """Draw the curves of every dataset beside the tables; return the files."""
    view = ComparisonView(folder, comparison, read_runs(folder, []), [])
    pictures = []
    for dataset in dict.fromkeys(row.dataset for row in comparison.rows):
        path = folder / f"curves-{dataset}.png"
        save(_draw_dataset(view, dataset), path)
        pictures.append(path)
    return pictures


# The picture of a split: which client holds how many samples of which class.

_MAX_CLIENT_LABELS = 25
_MAX_NUMBERED_CLIENTS = 20
"""Up to so many clients the number of samples is written into every cell."""


@dataclass(frozen=True, eq=False)
class _HoldingsFigure:
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
) -> _HoldingsFigure:
    """Return the training samples by client and class; of very many clients an even sample."""
    shown = np.array(even_sample(data.clients, SHOWN_CLIENTS), dtype=np.int64)
    names = tuple(class_names) or tuple(str(label) for label in range(data.classes))
    counts = data.class_counts()[shown]
    if not counts.shape[1]:  # samples of a task without classes
        counts, names = data.samples[shown, None], ("all",)
    return _HoldingsFigure(
        shown, counts, data.clients, names, title or f"Who holds what of {data.name}"
    )


def draw_holdings(held: _HoldingsFigure) -> Figure:
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
    some = "" if rows == held.of_clients else f" ({rows} of {held.of_clients} clients)"
    _label_axes(left, "class", "client", held.title + some)
    left.grid(visible=False)
    _name_classes(left, held)
    step = next(step for step in (1, 2, 5, 10, 20) if rows <= step * _MAX_CLIENT_LABELS)
    left.set_yticks(range(0, rows, step), [str(client) for client in held.clients[::step]])
    if rows <= _MAX_NUMBERED_CLIENTS:
        _write_counts(left, held)
    right.barh(np.arange(rows), held.samples, color="#7F7F7F", height=0.8)
    _label_axes(right, "training samples", "", "How much")
    right.tick_params(axis="y", left=False, labelleft=False)
    right.locator_params(axis="x", nbins=3)
    figure.colorbar(image, ax=right, label="share of the client's samples")
    return figure


def _name_classes(axes: Axes, held: _HoldingsFigure) -> None:
    long = max(len(name) for name in held.class_names) > 2
    axes.set_xticks(
        range(len(held.class_names)),
        held.class_names,
        rotation=45 if long else 0,
        ha="right" if long else "center",
    )


def _write_counts(axes: Axes, held: _HoldingsFigure) -> None:
    for (row, column), count in np.ndenumerate(held.counts):
        if count:
            colour = "white" if held.shares[row, column] > 0.7 else "black"
            axes.text(
                column, row, str(count), ha="center", va="center", color=colour, fontsize="x-small"
            )


# Pictures of the game: data first, then a drawing of it.

_MAX_PIECES = 400
_LINE_WIDTH = 1.8
_GUIDE: dict[str, Any] = {"color": "#555555", "linewidth": 0.8, "linestyle": ":"}


def _leader_curve(game: Game) -> list[tuple[Floats, Floats]]:
    """Return decay factors and the leader's utility for each piece; of very many a sample."""
    piece = utility_pieces(game)
    chosen = np.flatnonzero(piece.end > piece.start)
    if chosen.size > _MAX_PIECES:
        chosen = chosen[np.linspace(0, chosen.size - 1, _MAX_PIECES).astype(int)]
    gammas = [np.linspace(piece.start[k], piece.end[k], 24) for k in chosen]
    return [
        (gamma, gamma * (piece.linear[k] + piece.quadratic[k] * gamma))
        for k, gamma in zip(chosen, gammas, strict=True)
    ]


def _shown_clients(clients: int) -> NDArray[np.int64]:
    """Return which clients a picture shows, each in a colour: all, or an even sample of many."""
    return np.array(even_sample(clients, len(SERIES)), dtype=np.int64)


def draw_equilibrium(game: Game, equilibrium: Equilibrium, names: Sequence[str]) -> Figure:
    """Draw the leader's utility with its pieces and optimum, and the clients' responses."""
    figure = new_figure(8, 7)
    above, below = figure.subplots(2, 1, sharex=True)
    _draw_leader(above, game, equilibrium)
    shown = _shown_clients(game.clients)
    gammas = np.linspace(*game.decay_bounds, 1001)
    responses = best_response(game, gammas)
    for k, client in enumerate(shown):
        style = _line_style(SERIES[k], _LINE_WIDTH)
        below.plot(gammas, responses[:, client], label=names[client], **style)
        below.plot(
            equilibrium.decay_factor, equilibrium.local_epochs[client], "o", color=SERIES[k].light
        )
    below.axvline(equilibrium.decay_factor, **_GUIDE)
    _label_axes(
        below, "decay factor γ", "local epochs τ*", "Best responses" + _of_game(shown, game.clients)
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
        decay.axvline(first - 0.5, **_GUIDE)
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
    _label_axes(decay, "", "decay factor γ*", "The server's decay factor")
    shown = _shown_clients(len(names))
    for k, client in enumerate(shown):
        style = {"label": names[client], **_line_style(SERIES[k], _LINE_WIDTH), **how}
        epochs.plot(found.values, found.local_epochs[:, client], **style)
        utilities.plot(found.values, found.client_utilities[:, client], **style)
    _label_axes(epochs, "", "local epochs τ*", "The clients' answers" + _of_game(shown, len(names)))
    _legend(epochs)
    _label_axes(utilities, "", "client utility", "Client utilities")
    utilities.axhline(0, **_GUIDE)
    server.plot(found.values, found.server_utilities, color=SERIES[0].light, **how)
    server.axhline(0, **_GUIDE)
    _label_axes(server, title, "server utility", "Server utility")
    return figure, decay, server


def _draw_leader(axes: Axes, game: Game, equilibrium: Equilibrium) -> None:
    curve = _leader_curve(game)
    for k, (gamma, utility) in enumerate(curve):
        axes.plot(gamma, utility, color=SERIES[(0, 6)[k % 2]].light, linewidth=2)
    if len(curve) < _MAX_PIECES / 4:
        for gamma, utility in curve[1:]:
            axes.plot(gamma[0], utility[0], ".", color=SERIES[0].light, markersize=5)
    best = (equilibrium.decay_factor, equilibrium.server_utility)
    axes.plot(*best, "*", color=SERIES[5].light, markersize=15, zorder=3)
    axes.axvline(best[0], **_GUIDE)
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
    count = "1 piece" if len(curve) == 1 else f"{len(curve)} pieces"
    _label_axes(axes, "", "server utility", f"The server's utility in round {game.round}, {count}")


def _of_game(shown: NDArray[np.int64], clients: int) -> str:
    return "" if shown.size == clients else f" ({shown.size} of {clients} clients)"


def _legend(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


@singledispatch
def draw_result(result: Any) -> Figure:
    """Return the picture of a run, a comparison, an audit or a search.

    Raises
    ------
    FlammaError
        If there is nothing to draw, or matplotlib is not installed.
    """
    raise RunError(f"a {type(result).__name__} has no picture.")


@draw_result.register(Run)
def _draw_run(run: Run) -> Figure:
    """Draw the metrics of a run over its rounds, as those of a comparison of one strategy."""
    data, strategy = run.config.data, run.config.strategy.name
    cell = Cell(data.title, data.split.name, strategy, run.config.seed, run.config)
    key = (cell.dataset, cell.split, cell.strategy)
    view = ComparisonView(
        run.path, compared(strategy, [(cell, run)]), {key: {cell.seed: read_run(run.path)}}, []
    )
    return _draw_dataset(view, cell.dataset)


@draw_result.register(Comparison)
def _draw_comparison(comparison: Comparison) -> Figure:
    """Draw the curves of the first dataset; of another one, narrow the comparison."""
    if comparison.path is None:
        raise RunError("the runs of this comparison are not there, so it has no curves.")
    return _draw_dataset(read_comparison(comparison.path), comparison.rows[0].dataset)


@draw_result.register(Audit)
def _draw_audit(audit: Audit) -> Figure:
    """Draw what every audited client gains by every deviation, one panel for each case."""
    cases = audit.cases
    rows = max(len(case.deviations) for case in cases)
    figure = new_figure(2.4 + 2.6 * len(cases), 1.4 + 0.3 * rows)
    grid = figure.subplots(1, len(cases), squeeze=False)
    for axes, case in zip(grid[0], cases, strict=True):
        _draw_gains(axes, case)
    return figure


@draw_result.register(Tuned)
def _draw_search(tuned: Tuned) -> Figure:
    """Draw the score of every trial, and the best so far."""
    scored = [t for t in tuned.trials if t["score"] is not None]
    numbers, scores = [t["number"] for t in scored], [t["score"] for t in scored]
    figure = new_figure(5.6, 3.3)
    axes = figure.subplots()
    axes.plot(numbers, scores, "o", color=SERIES[0].light, label="trial")
    axes.step(
        numbers, np.maximum.accumulate(scores), where="post", color=SERIES[1].light, label="best"
    )
    axes.legend(frameon=False)
    _label_axes(axes, "trial", "score", "")
    return figure


def _draw_gains(axes: Axes, case: AuditedCase) -> None:
    """Draw the heat map of a case: relative gains, mean over seeds, as the report's page has it."""
    subjects, deviations = case.subjects, case.deviations
    gains = np.full((len(deviations), len(subjects)), np.nan)
    for row, deviation in enumerate(deviations):
        for column, subject in enumerate(subjects):
            found = [f.relative_gain for f in case.of(subject, deviation)]
            known = [gain for gain in found if gain is not None]
            gains[row, column] = sum(known) / len(known) if known else np.nan
    axes.imshow(gains, cmap="RdBu_r", vmin=-FULL_COLOUR, vmax=FULL_COLOUR, aspect="auto")
    axes.set_xticks(range(len(subjects)), subjects)
    axes.set_yticks(range(len(deviations)), deviations)
    for (row, column), gain in np.ndenumerate(gains):
        text = "-" if np.isnan(gain) else percent(gain)
        ink = "white" if abs(gain) > FULL_COLOUR / 2 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize="small", color=ink)
    _label_axes(axes, "", "", f"{case.strategy}: gain of utility, {case.dataset} ({case.split})")
    axes.grid(visible=False)
