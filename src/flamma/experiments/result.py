"""What a run came to, from its records alone."""

from __future__ import annotations

import html
import io
import math
import os
import shutil
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.errors import RunError
from flamma.experiments.config import Config, make_config, read_config, with_settings
from flamma.experiments.folder import ABOUT, CLIENTS, CONFIG, FINITE, ROUNDS, Manifest, RunFolder
from flamma.experiments.loop import StoppedEarly, read_stopped, why_diverged
from flamma.experiments.progress_bar import NotebookHtml, in_notebook
from flamma.extras import require
from flamma.io import quoted, unknown
from flamma.metrics import (
    LAST_ROUNDS,
    METRICS,
    ComparedMetric,
    ScoreMetric,
    mean_of,
    of_run,
    shown_in,
    usable,
)
from flamma.records import Evaluation, RoundRecord, damaged_scores
from flamma.strategies import label_of
from flamma.types import ACCURACY_SCORE, Floats, Ints, NamesItsScore, ScoreKind

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import nn


@dataclass(frozen=True)
class Summary(NamesItsScore):
    """Every metric of a run.

    Attributes
    ----------
    rounds : int
        How many are finished.
    final : mapping of str to float or None
        The metrics of the last evaluated round.
    metrics : mapping of str to float or None
        Every metric of the run by name, aggregated over its rounds as
        :data:`flamma.metrics.METRICS` says; None where the rounds do not tell it.
    failures, abstentions : int
        Over all rounds.
    decay_factor : float or None
        That of the last round.
    epochs_warmup : float
        The work of the warm-up, in epochs.
    clients : int
        How many there are.
    sample : int or None
        How many of them were drawn for the evaluations: metrics of an evaluation are over these
        alone. None if all were evaluated.
    rounds_averaged : int
        How many rounds the means over the last ones are over: those evaluated among the last ten.
    personal : bool
        Whether clients scored models of their own, rather than the global one.
    surveyed : int
        How often clients were asked for a loss before the server selected, over all rounds.
    bytes_surveys : int
        What they were sent for that; it is in ``bytes_down``, too.
    scored_by : str
        What clients are scored by, empty for accuracy.
    less_is_better : bool
        Whether less of that is better, as of a loss; it is not in percent then.
    diverged : str
        In what the run has diverged, and the likely cause; empty if it has not.
    """

    rounds: int
    final: Mapping[str, float | None]
    metrics: Mapping[str, float | None]
    failures: int
    abstentions: int
    decay_factor: float | None
    epochs_warmup: float
    clients: int
    sample: int | None
    rounds_averaged: int = 0
    personal: bool = False
    surveyed: int = 0
    bytes_surveys: int = 0
    scored_by: str = ""
    less_is_better: bool = False
    diverged: str = ""

    def __getitem__(self, name: str) -> float | None:
        if name not in self.metrics:
            raise KeyError(unknown("metric", name, self.metrics))
        return self.metrics[name]

    def __contains__(self, name: object) -> bool:
        return name in self.metrics

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    @property
    def averaged_title(self) -> str:
        """The title of a column of means over the last rounds."""
        every = self.rounds_averaged == min(self.rounds, LAST_ROUNDS)
        return f"mean of last {self.rounds_averaged}{'' if every else ' evaluated'}"

    def keys(self) -> Iterable[str]:
        """Return the names of all metrics, so that ``dict(summary)`` has them."""
        return self.metrics.keys()

    def as_json(self) -> dict[str, Any]:
        """Return the summary as ``flamma show --json`` prints it."""
        table: dict[str, Any] = {"rounds": self.rounds}
        scored = {n for n in self.metrics if isinstance(METRICS[n], ScoreMetric)}
        table |= {name: value for name, value in self.final.items() if name in scored}
        table |= {f"last_{LAST_ROUNDS}_{name}": self.metrics[name] for name in self.final}
        for name, value in self.metrics.items():
            group = METRICS[name].group
            if group:
                table.setdefault(group, {})[name] = value
            elif name not in scored:
                table[name] = value
        return table | {
            "epochs_warmup": self.epochs_warmup,
            "clients": self.clients,
            "sample": self.sample,
            "rounds_averaged": self.rounds_averaged,
            "personal": self.personal,
            "scored_by": self.score_kind.name,
            "less_is_better": self.less_is_better,
            "surveyed": self.surveyed,
            "bytes_surveys": self.bytes_surveys,
            "decay_factor": self.decay_factor,
            "failures": self.failures,
            "abstentions": self.abstentions,
            "diverged": self.diverged,
        }


_NO_TARGETS: Mapping[str, float] = {}


def _summarise_run(
    records: Sequence[RoundRecord], clients: int, targets: Mapping[str, float] = _NO_TARGETS
) -> Summary:
    """Return every metric of a run with so many clients; ``targets`` are those of its clock."""
    evaluated = [record for record in records if record.evaluated]
    warmup = records[0].warmup if records else None
    surveys = [record.survey for record in records if record.survey is not None]
    known = usable()
    scored = [name for name, metric in known.items() if isinstance(metric, ScoreMetric)]
    kind = score_kind_of(records)
    return Summary(
        rounds=len(records),
        final={name: evaluated[-1].metric(name) if evaluated else None for name in scored},
        metrics={
            name: of_run(name, records, clients, targets)
            for name, metric in known.items()
            if not isinstance(metric, ComparedMetric)
        },
        failures=sum(len(record.outcome.failed) for record in records),
        abstentions=sum(len(record.outcome.abstained) for record in records),
        decay_factor=records[-1].offer.decay_factor if records else None,
        epochs_warmup=0.0 if warmup is None else warmup.epochs,
        clients=clients,
        sample=sample_of(records),
        rounds_averaged=sum(record.evaluated for record in records[-LAST_ROUNDS:]),
        personal=is_personal(records),
        surveyed=sum(survey.asked for survey in surveys),
        bytes_surveys=sum(survey.bytes_down for survey in surveys),
        scored_by=kind.title,
        less_is_better=kind.lower_is_better,
    )


def sample_of(records: Sequence[RoundRecord]) -> int | None:
    """Return how many clients were drawn for the last evaluation, None if it was of all."""
    last = _last_evaluation(records)
    return None if last is None else last.sample


def is_personal(records: Sequence[RoundRecord]) -> bool:
    """Return whether clients scored models of their own in the last evaluation."""
    last = _last_evaluation(records)
    return last is not None and last.personal


def score_kind_of(records: Sequence[RoundRecord]) -> ScoreKind:
    """Return what clients are scored by in the last evaluation."""
    last = _last_evaluation(records)
    return ACCURACY_SCORE if last is None else last.score_kind


def _last_evaluation(records: Sequence[RoundRecord]) -> Evaluation | None:
    return next((r.evaluation for r in reversed(records) if r.evaluation is not None), None)


def sample_text(sample: int, clients: int) -> str:
    """Return what metrics over a sample of the clients are over.

    Examples
    --------
    >>> sample_text(10_000, 1_000_000)
    'a sample of 10,000 of 1,000,000 clients'
    """
    return f"a sample of {sample:,} of {clients:,} clients"


def at_budget(records: Sequence[RoundRecord], epochs: float, name: str) -> float | None:
    """Return a metric over the last ten rounds within a budget of local epochs.

    The first round counts in any case, so that there is something to tell.
    """
    warmup = records[0].warmup if records else None
    spent = 0.0 if warmup is None else warmup.epochs
    within: list[RoundRecord] = []
    for record in records:
        spent += record.outcome.epochs_total
        if spent > epochs and within:
            break
        within.append(record)
    values = [METRICS[name].of_round(name, record) for record in within[-LAST_ROUNDS:]]
    return mean_of([value for value in values if value is not None])


# ``clients.csv`` as it is read: the accuracies of single clients, as arrays.

_MOST_PERCENT = 100.001
"""A larger accuracy is damage, not rounding."""


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """The accuracies of single clients.

    Attributes
    ----------
    clients : ndarray
        The clients of which any accuracy is known, in order.
    rounds : dict of int to ndarray
        For each evaluated round the accuracy of these clients, NaN where one has none.
    """

    clients: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rounds: dict[int, Floats] = field(default_factory=dict)


def read_score_table(
    folder: RunFolder, records: Sequence[RoundRecord], problems: list[str], most_clients: int
) -> ScoreTable:
    """Return the accuracies in ``clients.csv``; what is wrong is added to ``problems``.

    Rounds that do not match the checksum in a record of version 2 are left out.
    """
    last = records[-1].round if records else 0
    own = {key: "".join(parts) for key, parts in _lines_of_rounds(folder.text(CLIENTS)).items()}
    damaged = damaged_scores(folder.text(ROUNDS), own)
    if own and damaged:
        problems.append(f"{CLIENTS} does not match its checksum in {len(damaged)} rounds")
    found: dict[int, Floats] = {}
    skipped = 0
    for key, lines in own.items():
        if key in damaged:
            continue
        rows, unreadable = _parsed(lines)
        client, accuracy = rows[:, 1], rows[:, 2]
        plausible = (client >= 0) & (client < most_clients) & (client == np.floor(client))
        if score_kind_of(records) == ACCURACY_SCORE:
            plausible &= np.isnan(accuracy) | ((accuracy >= 0) & (accuracy <= _MOST_PERCENT))
        skipped += unreadable + int(np.count_nonzero(~plausible))
        rows = rows[plausible]
        if rows.size and 1 <= rows[0, 0] <= last:
            found[int(rows[0, 0])] = rows[:, 1:]
    if skipped:
        amount = "1 line" if skipped == 1 else f"{skipped} lines"
        problems.append(f"{CLIENTS} has {amount} that cannot be read")
    if not own and last:
        problems.append(f"{CLIENTS} is missing or empty, so single clients' accuracies are unknown")
    return _aligned(found)


def _lines_of_rounds(text: str) -> dict[str, list[str]]:
    """Return the lines of every round, whole, by the text of its number."""
    own: dict[str, list[str]] = {}
    start = text.find("\n") + 1
    end = text.rfind("\n") + 1  # a last line without an end is cut off
    while 0 < start < end:
        key = text[start : text.find("\n", start)].partition(",")[0]
        stop = start
        while stop < end and text.startswith(f"{key},", stop):
            stop = text.find("\n", stop) + 1
        if stop == start:  # a line without a comma
            stop = text.find("\n", start) + 1
        own.setdefault(key, []).append(text[start:stop])
        start = stop
    return own


def _parsed(lines: str) -> tuple[Floats, int]:
    """Return round, client and accuracy of some lines, and how many cannot be read."""
    try:
        columns = (0, 1, 2)
        table: Floats = np.loadtxt(
            io.StringIO(lines), delimiter=",", usecols=columns, comments=None, ndmin=2
        )
        return table, 0
    except ValueError:
        pass
    rows, unreadable = [], 0
    for line in lines.split("\n")[:-1]:
        try:
            number, client, accuracy, _ = line.split(",", 3)
            rows.append((int(number), int(client), float(accuracy)))
        except ValueError:
            unreadable += 1
    return np.array(rows, dtype=np.float64).reshape(-1, 3), unreadable


def _aligned(found: dict[int, Floats]) -> ScoreTable:
    if not found:
        return ScoreTable()
    clients = np.unique(np.concatenate([rows[:, 0] for rows in found.values()]))
    rounds = {}
    for number, rows in sorted(found.items()):
        rounds[number] = np.full(clients.size, math.nan)
        rounds[number][np.searchsorted(clients, rows[:, 0])] = rows[:, 1]
    return ScoreTable(clients.astype(np.int64), rounds)


# A directory that is there as long as somebody holds on to it.


class ScratchFolder:
    """A temporary directory that is removed with the last reference to this object.

    A forked process does not remove the directory of its parent.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="flamma-"))
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())


def output_directory(out: str | Path | None, name: str) -> tuple[Path, ScratchFolder | None]:
    """Return where to write: where it was asked for, or else in a scratch folder."""
    if out is not None:
        return Path(out), None
    scratch = ScratchFolder()
    return scratch.path / name, scratch


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


# Results as people look at them: one line, a small table in a notebook, a frame, a picture.

_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_POINTS = 120, 24, 60
_MOST_SHOWN_ROWS = 40
"""Lines of a table in a notebook; the report has all."""


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
        parts += [_html_table(*table) for table in self._tables()]
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
        from flamma.reports.pictures import draw_result

        figure = draw_result(self)
        if in_notebook():
            # A notebook is let show figures made without pyplot, unless it can already.
            shell: Any = import_module("IPython").get_ipython()
            formatter = shell.display_formatter.formatters["image/png"]
            if type(figure) not in formatter.type_printers and not formatter.deferred_printers:
                import_module("IPython.core.pylabtools").select_figure_formats(shell, {"png"})
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
        from flamma.reports.document import write_report

        written = write_report(self.path, None if path is None else Path(path))
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


def _html_table(caption: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table for a notebook; cells that are SVG stay as they are."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    rows = []
    for line in lines[:_MOST_SHOWN_ROWS]:
        cells = [cell if cell.startswith("<svg ") else html.escape(cell) for cell in line]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    if len(lines) > _MOST_SHOWN_ROWS:
        rows.append(f"<tr><td>and {len(lines) - _MOST_SHOWN_ROWS} more</td></tr>")
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
    step = max(1, len(known) // _SPARK_POINTS)
    shown = [*known[:-1:step], known[-1]]
    low, high = min(shown), max(shown)
    points = " ".join(
        f"{2 + (_SPARK_WIDTH - 4) * k / (len(shown) - 1):.0f},"
        f"{_SPARK_HEIGHT - 2 - (_SPARK_HEIGHT - 4) * (v - low) / ((high - low) or 1):.1f}"
        for k, v in enumerate(shown)
    )
    return (
        f'<svg width="{_SPARK_WIDTH}" height="{_SPARK_HEIGHT}" role="img" aria-label="from '
        f'{shown[0]:.1f} to {shown[-1]:.1f}"><polyline fill="none" stroke="#0072B2" '
        f'stroke-width="1.5" points="{points}"/></svg>'
    )


# A run directory as an object: what it holds, what it came to, and its model.

DEPLOYMENT = "deployment.json"
"""The server of a deployed run, which may have moved, and Flower's id of it."""


@dataclass(frozen=True, eq=False, repr=False)
class Run(PresentedResult):
    """A run directory, finished or not.

    ``known_scores`` are the clients' scores, where they have been read already, and
    ``known_model`` makes the user's own model, where it was given. A run that was given no
    directory is in ``scratch``, which is removed with the last that refers to it.
    """

    path: Path
    config: Config
    history: list[RoundRecord]
    about: dict[str, Any]
    problems: tuple[str, ...] = ()
    known_scores: ScoreTable | None = None
    known_model: Callable[..., Any] | None = None
    scratch: ScratchFolder | None = None

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run directory; ``problems`` names what is damaged or cannot be read.

        Its strategy need not be registered; resuming it, or a client's own model, needs that.

        Raises
        ------
        RunError
            If there is no run, or its configuration is not the one it was begun with.
        """
        if not isinstance(path, str | PathLike):
            raise RunError(f"a run is loaded by the path of its directory, not {quoted(path)}.")
        folder = RunFolder(Path(path))
        if not folder.exists:
            raise RunError(f"{path} holds no run: there is no {CONFIG} in it.")
        config = make_config(_tables(folder), needs_strategy=False)
        manifest = Manifest.read(folder.path)
        if manifest is not None:
            manifest.check(folder.path)
        history, problems = folder.rounds(), folder.read_rounds()[1]
        about = folder.read_json(ABOUT)
        if not about and history:
            problems.append(f"{ABOUT} is missing or damaged")
        problems += folder.changed_tables("params_sha256" in about)
        run = cls(folder.path, config, history, about, tuple(problems))
        if run.finished and not run.has_last_round:
            lost = "rounds.jsonl ends before the last round"
            return replace(run, problems=(*run.problems, lost))
        return run

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, even if the record of one is damaged, or it was stopped."""
        return self.has_last_round or "params_sha256" in self.about

    @property
    def has_last_round(self) -> bool:
        """Whether the last round is recorded: that after which it was stopped, if it was."""
        last = self.config.rounds if self.stopped is None else self.stopped.round
        return bool(self.history) and self.history[-1].round >= last

    @property
    def stopped(self) -> StoppedEarly | None:
        """After which round a callback ended the run, and why; None if none did."""
        return read_stopped(self.about)

    @property
    def params_sha256(self) -> str | None:
        """The SHA-256 of the final weights; None before the end."""
        return self.about.get("params_sha256") if self.finished else None

    @property
    def diverged(self) -> str:
        """In what the run has diverged, and the likely cause; empty if it has not."""
        finite = self.about.get(FINITE) is not False
        return why_diverged(self.history, self.config.training.learning_rate, finite)

    @cached_property
    def scores(self) -> ScoreTable:
        """The accuracies of single clients; those that cannot be read are left out."""
        if self.known_scores is not None:
            return self.known_scores
        folder, clients = RunFolder(self.path), self.config.data.clients
        return read_score_table(folder, self.history, [], clients)

    def summary(self) -> Summary:
        """Return every metric of the run, those of its last round, and its totals."""
        found = _summarise_run(self.history, self.config.data.clients, self.config.clock.targets)
        return replace(found, diverged=self.diverged)

    def model(
        self,
        *,
        model: Any = None,
        client: int | None = None,
        round: int | None = None,
    ) -> nn.Module:
        """Return the trained module, in evaluation mode.

        Parameters
        ----------
        model : torch.nn.Module, class, callable or str, optional
            The model of the run, where it is your own and this object is not what
            :func:`flamma.run` returned.
        client : int, optional
            Whose own model it is, of strategies that give clients their own.
        round : int, optional
            After which round, if its checkpoint is kept; the last one by default.

        Raises
        ------
        FlammaError
            If there is no such model.
        """
        from flamma.experiments.trained import trained_module

        return trained_module(self, model, client, round)

    def save(
        self,
        path: str | Path,
        *,
        model: Any = None,
        client: int | None = None,
        round: int | None = None,
    ) -> Path:
        """Write the trained weights by name (.safetensors, .npz), or the model (.onnx).

        The parameters are those of :meth:`model`; weights need no ``model``.
        """
        from flamma.experiments.trained import save_trained

        return save_trained(self, path, model, client, round)

    def predict(self, x: Any, *, model: Any = None, client: int | None = None) -> NDArray[Any]:
        """Return what the trained model says of each sample.

        These are the labels as they were given with the data, or numbers for a regression. The
        parameters are those of :meth:`model`.
        """
        from flamma.experiments.trained import predictions

        return predictions(self, x, model, client)

    def predict_proba(
        self, x: Any, *, model: Any = None, client: int | None = None
    ) -> NDArray[Any]:
        """Return the probability of each class for each sample."""
        from flamma.experiments.trained import predictions

        return predictions(self, x, model, client, shares=True)

    def _headline(self) -> str:
        data, rounds = self.config.data, len(self.history)
        where = "not kept" if self.scratch is not None else str(self.path)
        return (
            f"{label_of(self.config.strategy.name)} on {data.dataset} ({data.split.name}), "
            f"{data.clients} clients, {rounds} of {self.config.rounds} rounds, "
            f"{'DIVERGED, ' * bool(self.diverged)}{where}"
        )

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        summary = self.summary()
        digits = 4 if summary.less_is_better else 2
        header = ["metric", "last round", summary.averaged_title, "over the rounds"]
        lines = []
        for name, metric in shown_in("table", summary.score_kind).items():
            values = [] if isinstance(metric, ComparedMetric) else self.of_rounds(name)
            known = [value for value in values if value is not None]
            if known:
                mean = summary[name]
                unit = f" ({metric.unit})" if metric.unit else ""
                told = "" if mean is None else f"{mean:.{digits}f}"
                last = f"{known[-1]:.{digits}f}"
                lines.append([f"{metric.label}{unit}", last, told, sparkline(values)])
        return [("", header, lines)]

    def of_rounds(self, name: str) -> list[float | None]:
        """Return a metric of every finished round, None where it has none."""
        return [METRICS[name].of_round(name, record) for record in self.history]

    def _records(self) -> list[dict[str, Any]]:
        return self.rows()

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per round: what was done in it, and every metric that it has."""
        columns = {
            name: self.of_rounds(name)
            for name, metric in usable().items()
            if not isinstance(metric, ComparedMetric)
        }
        told = {n: values for n, values in columns.items() if any(v is not None for v in values)}
        return [
            {
                "round": record.round,
                "decay_factor": record.offer.decay_factor,
                "selected": len(record.selected),
                "epochs": sum(record.outcome.local_epochs),
                **{name: values[place] for name, values in told.items()},
            }
            for place, record in enumerate(self.history)
        ]


def _tables(folder: RunFolder) -> dict[str, Any]:
    """Return the configuration of a run; the server of a deployed one is where it is now."""
    tables = read_config(folder.path / CONFIG, regular=True)
    if server := folder.read_json(DEPLOYMENT).get("server"):
        return with_settings(tables, {"engine.name": "deployment", "engine.server": server})
    return tables
