"""How far a run or a comparison is that has not finished, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from flamma.errors import FlammaError
from flamma.experiments.site_states import SITES, SiteStates
from flamma.experiments.suite import SUITE, Suite, read_suite
from flamma.metrics.kinds import LAST_ROUNDS
from flamma.reports.confined import ConfinedRunFolder
from flamma.reports.document import Document, PageProgress
from flamma.reports.reading import RunView, finite
from flamma.toml import parse_toml


def run_progress(run: RunView) -> PageProgress | None:
    """Return how far a run is; None if it is finished, or if its length is not known.

    The time left is told at the pace of the last rounds; of a run that waits for sites, what it
    waits for.
    """
    if run.finished or not run.planned_rounds:
        return None
    paces = [record.seconds for record in run.rounds[-LAST_ROUNDS:]]
    left = run.planned_rounds - len(run.rounds)
    seconds = finite(left * sum(paces) / len(paces)) if any(paces) else None
    progress = _progress(len(run.rounds), run.planned_rounds, "rounds", seconds)
    states = SiteStates.parse(ConfinedRunFolder(run.path, []).text(SITES))
    if states is None or not states.waiting_since:
        return progress
    return replace(progress, text=f"{progress.text}; {states.sentence()}", seconds_left=None)


def comparison_progress(path: Path, runs: Iterable[RunView]) -> PageProgress | None:
    """Return how far the runs of a comparison are together; None if all are finished.

    Of a comparison that does not tell its suite, only the runs that have begun are known.
    """
    begun, suite = list(runs), read_planned_suite(path)
    done = sum(min(len(run.rounds), run.planned_rounds) for run in begun)
    if suite is None:
        planned, unit = sum(run.planned_rounds for run in begun), "rounds of the runs that began"
    else:
        planned, unit = sum(cell.config.rounds for cell in suite.cells()), "rounds of all runs"
    return _progress(done, planned, unit) if done < planned else None


def _progress(done: int, of: int, what: str, seconds: float | None = None) -> PageProgress:
    return PageProgress(done, of, f"{done:,} of {of:,} {what} are finished", seconds)


def read_planned_suite(path: Path) -> Suite | None:
    """Return what a comparison is to run, None if that is not there or cannot be used."""
    text = ConfinedRunFolder(path, []).text(SUITE)
    try:
        suite = read_suite(parse_toml(text, SUITE)) if text else None
        return suite if suite and suite.cells() else None
    except FlammaError:
        return None


@dataclass
class Pace:
    """Tells the time left from what was done since one began to look, as of runs side by side."""

    since: float | None = None
    before: int = 0

    def timed(self, document: Document) -> Document:
        """Return a document whose progress has a time left, if the pace is known by now."""
        progress = document.progress
        if progress is None or progress.seconds_left is not None:
            return document
        now = time.monotonic()
        if self.since is None or progress.done < self.before:
            self.since, self.before = now, progress.done
        made = progress.done - self.before
        if not made:
            return document
        left = (progress.of - progress.done) * (now - self.since) / made
        return replace(document, progress=replace(progress, seconds_left=left))
