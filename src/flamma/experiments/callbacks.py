"""Callbacks: what hears of a run's start, of every finished round and of its end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from flamma._renamed import renamed
from flamma.errors import ConfigError, RunError
from flamma.experiments.folder import CALLBACKS_FILE, RunFolder
from flamma.io import (
    DamagedTensorsError,
    quoted,
    read_tensors,
    unknown,
    write_atomically,
)
from flamma.metrics import METRICS, ScoreMetric
from flamma.records import RoundRecord
from flamma.registry import Registry
from flamma.types import ACCURACY_SCORE, Params, ScoreKind

if TYPE_CHECKING:
    from flamma.experiments.config import Config
    from flamma.experiments.run import Run
else:
    __getattr__ = renamed(__name__)


# What a callback is, and how one ends a run early.

OnRound = Callable[[RoundRecord], None]
"""Called with the record of every finished round."""


class StopRun(RunError):  # noqa: N818 - a signal, as StopIteration is
    """Raised by a callback that wants the run to end after the round it was told of.

    The message is the reason; it is written down with the run. The run is then finished: its
    weights are those of that round.
    """


@dataclass(frozen=True, eq=False)
class RunStart:
    """What a callback is told before the first round that it will hear of.

    Attributes
    ----------
    config : Config
        What is run.
    path : Path
        The run directory.
    history : tuple of RoundRecord
        The rounds that are done already, where a run goes on; they are not told again.
    weights : callable or None
        Returns the weights after the round that was told last, as a flat vector that is not to be
        changed. None where the rounds happen in another process.
    """

    config: Config
    path: Path
    history: tuple[RoundRecord, ...] = ()
    weights: Callable[[], Params] | None = None


class Callback:
    """What hears of a run; derive from it and define what you need.

    Attributes
    ----------
    name : str
        Its name among :data:`~flamma.experiments.callbacks.CALLBACKS`, if it has one. Those that
        have are written down with the run, and run where its rounds happen.
    essential : bool
        Whether an error of it ends the run. Otherwise a warning tells of the error, and the run
        goes on without the callback.
    """

    name: ClassVar[str] = ""
    essential: ClassVar[bool] = True

    def on_start(self, start: RunStart) -> None:
        """Hear what is run, before the first round.

        An object may serve several runs, one after the other: what it remembers begins here.
        """

    def on_round(self, record: RoundRecord) -> None:
        """Hear of a finished round, once; raise :class:`StopRun` to make it the last one."""

    def on_notice(self, text: str) -> None:
        """Hear, in a sentence, what a run waits for or does by itself; the round goes on."""

    def on_end(self, run: Run) -> None:
        """Hear of the end: of the last round, of a stop, or of an error (``run.finished``)."""


class _RoundFunction(Callback):
    """A function that is called with every finished round's record."""

    def __init__(self, function: OnRound) -> None:
        self._function = function

    def on_round(self, record: RoundRecord) -> None:
        """Call the function."""
        self._function(record)


class Notices(Callback):
    """A function that is called with every sentence on what a run waits for."""

    def __init__(self, function: Callable[[str], None]) -> None:
        self._function = function

    def on_notice(self, text: str) -> None:
        """Call the function."""
        self._function(text)


# A metric of the evaluations that a callback watches, and the best round by it.

Mode = Literal["auto", "max", "min"]


@dataclass(frozen=True)
class _WatchedMetric:
    """A metric of the evaluations and which way is better.

    ``mode`` is "auto" for what the table of metrics says of what clients are scored by. A change of
    up to ``min_delta`` is none.

    Raises
    ------
    ConfigError
        If there is no such metric of an evaluation, or it does not say which way is better.
    """

    name: str
    mode: Mode = "auto"
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        metrics = [name for name in METRICS if isinstance(METRICS[name], ScoreMetric)]
        if self.name not in metrics:
            raise ConfigError(unknown("metric of an evaluation", self.name, metrics))
        if self.mode not in ("auto", "max", "min"):
            raise ConfigError(f"mode must be auto, max or min, not {self.mode!r}.")
        if self.mode == "auto" and METRICS[self.name].better == "neither":
            raise ConfigError(f"neither way of {self.name} is better: set mode to max or min.")
        if not self.min_delta >= 0:
            raise ConfigError(f"min_delta must be at least 0, not {self.min_delta:g}.")

    def sign(self, kind: ScoreKind) -> int:
        """Return whether larger (1) or smaller values (-1) are better of clients scored so."""
        if self.mode == "auto":
            return 1 if METRICS[self.name].scored_by(kind).better == "higher" else -1
        return 1 if self.mode == "max" else -1

    def improves(self, record: RoundRecord, best: float | None) -> bool:
        """Return whether a round is better than the best value before it."""
        value = record.metric(self.name)
        if value is None or record.evaluation is None:
            return False
        sign = self.sign(record.evaluation.score_kind)
        return best is None or sign * (value - best) > self.min_delta


# Ending a run when a metric no longer improves.


@dataclass
class EarlyStopping(Callback):
    """End the run when a metric has not improved for some evaluations.

    Only evaluated rounds count; one in which the metric is not defined is no improvement. A run
    that was killed and goes on stops after the same round, with the same weights.

    Parameters
    ----------
    metric : str
        A metric of the evaluations, such as ``accuracy`` or ``worst_10``.
    patience : int
        Evaluations without an improvement after which the run ends.
    min_delta : float
        How much more than this the metric must change for an improvement, in its own unit.
    mode : {"auto", "max", "min"}
        Which way is better; by default as the table of metrics says.
    """

    metric: str = "accuracy"
    patience: int = 10
    min_delta: float = 0.0
    mode: Mode = "auto"
    _best: RoundRecord | None = field(default=None, init=False, repr=False)
    _without: int = field(default=0, init=False, repr=False)
    _kind: ScoreKind = field(default=ACCURACY_SCORE, init=False, repr=False)

    name: ClassVar[str] = "early-stopping"

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigError(f"patience must be at least 1, not {self.patience}.")
        self._watched = _WatchedMetric(self.metric, self.mode, self.min_delta)

    def on_start(self, start: RunStart) -> None:
        """Begin anew with the rounds that are done; they may be enough."""
        self._best, self._without = None, 0
        for record in start.history:
            self._hear(record)
        self._check()

    def on_round(self, record: RoundRecord) -> None:
        """End the run if the patience is over."""
        self._hear(record)
        self._check()

    def _hear(self, record: RoundRecord) -> None:
        if record.evaluation is None:
            return
        self._kind = record.evaluation.score_kind
        best = None if self._best is None else self._best.metric(self.metric)
        if self._watched.improves(record, best):
            self._best, self._without = record, 0
        else:
            self._without += 1

    def _check(self) -> None:
        if self._without < self.patience:
            return
        label = METRICS[self.metric].scored_by(self._kind).label
        best = (
            "it was never defined"
            if self._best is None
            else f"the best was {self._best.metric(self.metric):.4g} in round {self._best.round}"
        )
        raise StopRun(f"{label} has not improved for {self._without} evaluations, {best}")


# Keeping the weights of the best round of a run.

BEST_CHECKPOINT = "best.safetensors"
"""The file of a run directory that has the weights of its best round."""


@dataclass(frozen=True, eq=False)
class _BestRound:
    """The best round of a run by a metric, and the weights after it as one flat vector."""

    round: int
    metric: str
    value: float
    params: Params


@dataclass
class BestCheckpoint(Callback):
    """Keep the weights of the best round in the run directory.

    :func:`best_round` reads them. Where clients have models of their own, the metric is of those
    and the weights are the global ones.

    Parameters
    ----------
    metric : str
        A metric of the evaluations, such as ``accuracy`` or ``worst_10``.
    mode : {"auto", "max", "min"}
        Which way is better; by default as the table of metrics says.
    """

    metric: str = "accuracy"
    mode: Mode = "auto"
    _best: float | None = field(default=None, init=False, repr=False)
    _start: RunStart | None = field(default=None, init=False, repr=False)

    name: ClassVar[str] = "best-checkpoint"

    def __post_init__(self) -> None:
        self._watched = _WatchedMetric(self.metric, self.mode)

    def on_start(self, start: RunStart) -> None:
        """Go on from the best of the rounds that are done, if its weights were kept."""
        self._start, self._best = start, None
        kept = best_round(start.path, missing_ok=True)
        done = start.history[-1].round if start.history else 0
        # What was kept in a round that is done again is kept again then.
        if kept is not None and kept.metric == self.metric and kept.round <= done:
            self._best = kept.value

    def on_round(self, record: RoundRecord) -> None:
        """Keep the weights if the round is the best so far."""
        if not self._watched.improves(record, self._best):
            return
        assert self._start is not None
        if self._start.weights is None:
            raise RunError("there are no weights to keep where rounds happen in another process.")
        value = record.metric(self.metric)
        assert value is not None
        best = _BestRound(record.round, self.metric, value, self._start.weights())
        _write(self._start.path, best)
        self._best = value


def best_round(path: Path, *, missing_ok: bool = False) -> _BestRound | None:
    """Return the best round that :class:`BestCheckpoint` kept in a run directory.

    Parameters
    ----------
    path : Path
        The run directory.
    missing_ok : bool
        Whether to return None where there is none.

    Raises
    ------
    RunError
        If there is none, or it is damaged or of another run.
    """
    file = path / BEST_CHECKPOINT
    try:
        content = read_tensors(file)
    except DamagedTensorsError as error:
        if missing_ok:
            return None
        raise RunError(f"{file} is damaged or of another run: remove it.") from error
    except OSError as error:
        if missing_ok:
            return None
        raise RunError(
            f"{path} has no weights of its best round: run it with callbacks=[BestCheckpoint()]."
        ) from error
    try:
        return _parsed(content, RunFolder(path).run_id)
    except (ValueError, KeyError, TypeError) as error:
        if missing_ok:
            return None
        raise RunError(f"{file} is damaged or of another run: remove it.") from error


def _write(path: Path, best: _BestRound) -> None:
    from safetensors.numpy import save

    about = {
        "round": best.round,
        "metric": best.metric,
        "value": best.value,
        "run": RunFolder(path).run_id,
        "params_sha256": hashlib.sha256(best.params.tobytes()).hexdigest(),
    }
    arrays = {"params": np.ascontiguousarray(best.params)}
    write_atomically(path / BEST_CHECKPOINT, save(arrays, metadata={"best": json.dumps(about)}))


def _parsed(content: bytes, run_id: str) -> _BestRound:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        params: Params = load(content)["params"]
    except SafetensorError as error:
        raise ValueError("not safetensors") from error
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    about = json.loads(header["__metadata__"]["best"])
    digest = hashlib.sha256(params.tobytes()).hexdigest()
    if about["params_sha256"] != digest or about["run"] != run_id:
        raise ValueError("checksum")
    return _BestRound(int(about["round"]), str(about["metric"]), float(about["value"]), params)


# Callbacks with a name: written down with a run, so that it goes on with them.

CALLBACKS: Registry[type[Callback]] = Registry(
    "callback",
    "flamma.callbacks",
    {
        "early-stopping": "flamma.experiments.callbacks:EarlyStopping",
        "best-checkpoint": "flamma.experiments.callbacks:BestCheckpoint",
    },
)
"""All callbacks by name: dataclasses, whose fields are what is written down of them."""


def record_callbacks(folder: Path, callbacks: Iterable[Callback]) -> None:
    """Write down those callbacks that have a name; a run without any has no such file."""
    named = [callback for callback in callbacks if callback.name]
    if named:
        tables = [{"name": c.name, **_options(c)} for c in named]
        RunFolder(folder).write_json(CALLBACKS_FILE, {"callbacks": tables})
    else:
        (folder / CALLBACKS_FILE).unlink(missing_ok=True)


def recorded_callbacks(folder: Path) -> list[Callback]:
    """Return the callbacks that a run was begun with, as far as they have a name.

    Raises
    ------
    RunError
        If the file is damaged, or names what is not there.
    """
    file = folder / CALLBACKS_FILE
    if not file.exists():
        return []
    try:
        table = RunFolder(folder).read_json(CALLBACKS_FILE)
        if not table:
            raise ConfigError("it is damaged")
        choices = [CALLBACKS.choose(entry, "callbacks") for entry in table["callbacks"]]
        return [CALLBACKS[choice.name](**choice.options) for choice in choices]
    except (KeyError, TypeError, ConfigError) as error:
        why = str(error).rstrip(".")
        raise RunError(
            f"{file} cannot be used ({why}): remove it to go on without these callbacks."
        ) from error


def resumed_callbacks(folder: Path, given: Iterable[Callback], leave_out: str) -> list[Callback]:
    """Return the callbacks that a run goes on with.

    Those that are given come instead of recorded ones of the same name, which is also how their
    options are changed; those of the name ``leave_out`` are not taken up again.
    """
    chosen = list(given)
    without = {callback.name for callback in chosen} | {leave_out}
    return [*chosen, *(c for c in recorded_callbacks(folder) if c.name not in without)]


def _options(callback: Callback) -> dict[str, Any]:
    with contextlib.suppress(TypeError):
        own = fields(callback)  # type: ignore[arg-type]
        return {field.name: getattr(callback, field.name) for field in own if field.init}
    raise ConfigError(f"the callback {callback.name} must be a dataclass to be written down.")


# Telling the callbacks of a run, and what becomes of their errors.


class Callbacks:
    """The callbacks of one run, told in their order.

    All of them hear of a round before any of them ends the run. An error of an essential one is
    raised; any other costs a warning, and its callback is told nothing more.

    Parameters
    ----------
    callbacks : iterable of Callback
        Whom to tell.
    on_round : callable, optional
        Called with every record, before the others.

    Attributes
    ----------
    stopped_by : str
        The name of the callback that raised :class:`StopRun`; its class if it has no name.
    """

    def __init__(self, callbacks: Iterable[Callback] = (), on_round: OnRound | None = None) -> None:
        own = [] if on_round is None else [_RoundFunction(on_round)]
        self._all: list[Callback] = [*own, *callbacks]
        for callback in self._all:
            if not isinstance(callback, Callback):
                raise ConfigError(
                    f"callbacks takes objects of classes derived from flamma.Callback, not "
                    f"{quoted(callback)}: a function goes to on_round."
                )
        self._started = False
        self._last = 0
        self.stopped_by = ""

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._all)

    def hand_over(self) -> list[Callback]:
        """Return those that run where the rounds happen; only the others are told from here."""
        named = [callback for callback in self._all if callback.name]
        self._all = [callback for callback in self._all if not callback.name]
        return named

    def start(self, start: RunStart) -> None:
        """Tell of the start.

        Raises
        ------
        StopRun
            If the rounds that are done already were enough for one of them.
        """
        self._started = True
        self._last = start.history[-1].round if start.history else 0
        self._tell(lambda callback: callback.on_start(start))

    def round(self, record: RoundRecord) -> None:
        """Tell of a finished round, unless it was told before.

        Raises
        ------
        StopRun
            If it is to be the last one.
        """
        if record.round > self._last:
            self._last = record.round
            self._tell(lambda callback: callback.on_round(record))

    def notice(self, text: str) -> None:
        """Tell, in a sentence, what the run waits for or does by itself."""
        self._tell(lambda callback: callback.on_notice(text))

    def following(self, config: Config, folder: RunFolder) -> OnRound:
        """Return what to call with every round that another process finishes.

        With the first of them the start is told, for then the directory is there. What is called
        raises a RunError if a callback wants to stop the run, which cannot be done from here.
        """
        start = RunStart(config, folder.path, tuple(folder.rounds()))

        def told(record: RoundRecord) -> None:
            try:
                if not self._started:
                    self.start(start)
                self.round(record)
            except StopRun as stop:
                raise RunError(
                    f"{self.stopped_by} cannot stop a run whose rounds happen in another process "
                    f"({str(stop).rstrip('.')}): use EarlyStopping or the local engine; flamma "
                    f"resume {folder.path} goes on."
                ) from stop

        return told

    @contextmanager
    def until_end(self, run: Callable[[], Run]) -> Iterator[None]:
        """Tell of the end, however it comes, those that were told of the start.

        ``run`` reads the run, if one of them wants to hear of it.
        """
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the first problem is the one to tell
                self._end(run)
            raise
        self._end(run)

    def _end(self, run: Callable[[], Run]) -> None:
        if self._started and any(type(c).on_end is not Callback.on_end for c in self._all):
            done = run()
            self._tell(lambda callback: callback.on_end(done))

    def _tell(self, tell: Callable[[Callback], None]) -> None:
        stops: list[tuple[Callback, StopRun]] = []
        for callback in tuple(self._all):
            try:
                tell(callback)
            except StopRun as stop:
                stops.append((callback, stop))
            except Exception as error:
                if callback.essential:
                    raise
                self._all = [other for other in self._all if other is not callback]
                warnings.warn(
                    f"{type(callback).__name__} failed and is left out, the run goes on: {error}",
                    stacklevel=2,
                )
        if stops:
            callback, first = stops[0]
            self.stopped_by = callback.name or type(callback).__name__
            raise first
