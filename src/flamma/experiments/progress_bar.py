"""A progress bar, in a terminal and in a notebook."""

from __future__ import annotations

import html
import shutil
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from flamma.experiments.jobs import Progress
    from flamma.records import RoundRecord

_BAR_CELLS = 24
_LIVE_LINE = ("flamma.cli.console", "LiveLine")
"""What keeps a line of a terminal up to date; a room above, so it is loaded by name."""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell: Any = sys.modules.get("IPython")
    with suppress(Exception):
        return type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
    return False


def wants_bar(progress: bool | None) -> bool:
    """Return whether a bar is shown: as asked for, else in terminals and notebooks."""
    if progress is not None:
        return progress
    return in_notebook() or bool(sys.stderr and sys.stderr.isatty())


class ProgressBar:
    """Shows how much is done; a context manager that leaves a terminal as it was.

    Parameters
    ----------
    shown : bool
        Whether anything is shown at all.
    total : int
        How much there is to do.
    unit : str
        What is counted.
    """

    def __init__(self, shown: bool, total: int, unit: str) -> None:
        self.total = total
        self.unit = unit
        self.handle: Any = None
        self.line: Any = None
        if not shown:
            return
        module, name = _LIVE_LINE
        self.line = getattr(import_module(module), name)()
        if in_notebook():
            display = import_module("IPython.display").display
            self.handle = display(NotebookHtml(self._html(0, "preparing")), display_id=True)

    def __enter__(self) -> Self:
        if self.line is not None and self.handle is None:
            self.line.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.handle is not None:
            self.handle.update(NotebookHtml(""))
        elif self.line is not None:
            self.line.__exit__(*error)

    def update(self, done: int, note: str = "") -> None:
        """Show that so much is done."""
        if self.line is None:
            return
        note = f"{note}{self.line.left(done, self.total - done)}"
        if self.handle is not None:
            self.handle.update(NotebookHtml(self._html(done, note)))
        else:
            full = round(_BAR_CELLS * done / max(1, self.total))
            bar = f"[{'#' * full}{'.' * (_BAR_CELLS - full)}]"
            text = f"{bar} {done}/{self.total} {self.unit}  {note}"
            width = shutil.get_terminal_size().columns - 1
            self.line.show(text[:width] if self.line.live else text, force=done == self.total)

    def on_round(self, record: RoundRecord) -> None:
        """Show a finished round of a run."""
        from flamma.types import ACCURACY_SCORE

        score = record.metric("accuracy")
        kind = ACCURACY_SCORE if record.evaluation is None else record.evaluation.score_kind
        self.update(record.round, "" if score is None else f"{kind.name} {kind.text(score)}")

    def on_progress(self, progress: Progress) -> None:
        """Show how far many runs are."""
        self.total = progress.rounds
        runs = f"{progress.runs_done} of {progress.runs} runs"
        self.update(progress.rounds_done, f"{runs} ({progress.latest})")

    def _html(self, done: int, note: str) -> str:
        return (
            f'<progress max="{self.total}" value="{done}"></progress> {done}/{self.total} '
            f"{self.unit} {html.escape(note)}"
        )


class NotebookHtml:
    """What a notebook shows as HTML; elsewhere it is its plain text."""

    def __init__(self, text: str, plain: str = "") -> None:
        self.text = text
        self.plain = plain

    def _repr_html_(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.plain
