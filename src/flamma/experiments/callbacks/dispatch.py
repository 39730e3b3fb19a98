"""Telling the callbacks of a run, and what becomes of their errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from flamma.errors import ConfigError, RunError
from flamma.experiments.callbacks.base import Callback, OnRound, RoundFunction, RunStart, StopRun
from flamma.names import quoted
from flamma.records import RoundRecord

if TYPE_CHECKING:
    from flamma.experiments.config import Config
    from flamma.experiments.folder import RunFolder
    from flamma.experiments.run import Run


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
        own = [] if on_round is None else [RoundFunction(on_round)]
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
