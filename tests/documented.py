"""The commands in the documentation and what they print.

A page is a session: its ``console`` blocks are run in order, in one folder, and must print what
the page shows. Datasets that it fetches are in that folder too, in ``.data``. ``...`` stands for
anything, within a line or for many lines. A command may fail only where the page shows its error, a
line that starts with ``flamma:``. Comments steer it:

``<!-- docs: skip REASON -->``      the next block is not run
``<!-- docs: figures -->``          numbers in the next block depend on the processor, the marks of
                                    the best with them: any number will do
``<!-- docs: needs EXTRA ... -->``  the next block, and commands named between, need these extras;
                                    `make installed` leaves them out where they are missing
``<!-- docs: file NAME -->``        the next block, of any language, is written to that file first
``<!-- docs: run COMMAND -->``      a command that the page does not show
``<!-- docs: finally COMMAND -->``  a command that runs at the end, even if one before it failed

``python tests/documented.py [PAGE ...]`` runs pages and writes the real output into them, except
where they show ``...``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "flower-app" / "README.md",
    ROOT / "examples" / "shapley_laboratory" / "README.md",
]
QUICK = ("flamma game ", "flamma list")
"""Commands that need neither a dataset nor more than a moment: these run in every test run."""

COMMENT = re.compile(r"<!-- docs: (skip|figures|needs|file|run|finally)\b ?(.*?) ?-->")
PART = re.compile(
    rf"^{COMMENT.pattern}$|^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
FIGURE = re.compile(r"[*~]?-?\b(?:[0-9a-f]{64}|\d+(?:[.,]\d+)*(?:e[+-]?\d+)?)\b")
LONGEST_COMMAND_SECONDS = 900


@dataclass(frozen=True)
class Step:
    """One thing to do on the way through a page: a file to write, or a command to run."""

    page: Path
    line: str
    printed: str = ""
    file: str = ""
    figures: bool = False
    last: bool = False
    needs: tuple[str, ...] = ()

    @property
    def quick(self) -> bool:
        return self.line.startswith(QUICK) and bool(self.printed) and not self.file

    def holds(self, real: str, code: int) -> bool:
        """Return whether a command did what the page shows."""
        shown = re.search(r"^flamma: ", self.printed, re.MULTILINE)
        if code != 0 and not shown:
            return False
        return not self.printed or matches(self.printed, real, self.figures)


def steps(page: Path) -> list[Step]:
    """Return what a page does, in order."""
    found: list[Step] = []
    skip, figures, file = False, False, ""
    needs: tuple[str, ...] = ()
    for part in PART.finditer(page.read_text(encoding="utf-8")):
        verb, word, body = part[1], part[2], part["body"]
        if verb == "skip":
            skip = True
        elif verb == "figures":
            figures = True
        elif verb == "needs":
            needs = tuple(word.split())
        elif verb == "file":
            file = word
        elif verb:
            found.append(Step(page, word, last=verb == "finally", needs=needs))
        else:
            if file:
                found.append(Step(page, "", body, file))
            elif part["language"] == "console" and not skip:
                found += [replace(s, needs=needs) for s in _commands(page, body, figures)]
            skip, figures, file, needs = False, False, "", ()
    return sorted(found, key=lambda step: step.last)


def python_examples(page: Path, extras: Collection[str]) -> str:
    """Return the Python blocks of a page that need no other extras than these."""
    found, needs = [], ""
    for part in PART.finditer(page.read_text(encoding="utf-8")):
        if part[1] == "needs":
            needs = part[2]
        elif not part[1]:
            if part["language"] == "python" and set(needs.split()) <= set(extras):
                found.append(part["body"])
            needs = ""
    return "\n".join(found)


def _commands(page: Path, block: str, figures: bool) -> list[Step]:
    found = []
    for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = text.splitlines(keepends=True)
        count = 1
        while lines[count - 1].endswith("\\\n"):
            count += 1
        line = "".join(lines[:count]).rstrip("\n")
        found.append(Step(page, line, "".join(lines[count:]), figures=figures))
    return found


def perform(step: Step, folder: Path) -> tuple[str, int]:
    """Do a step in a folder; return what it printed and its exit code."""
    if step.file:
        (folder / step.file).write_text(step.printed, encoding="utf-8")
        return step.printed, 0
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "BROWSER": "true",
        "COLUMNS": "100",
        "FLAMMA_DATA": str(folder / ".data"),
        "PYTHONUNBUFFERED": "1",  # so that output and errors come in the order of a terminal
    }
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        done = subprocess.run(
            ["bash", "-c", step.line],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_COMMAND_SECONDS,
        )
        output.seek(0)
        printed = "".join(f"{line.rstrip()}\n" for line in output.read().splitlines())
    return printed, done.returncode


@contextmanager
def session(
    page: Path, folder: Path, extras: Collection[str] | None = None
) -> Iterator[Iterator[tuple[Step, str, int]]]:
    """Follow a page: each step with what it printed and its exit code.

    Steps that are to run at the end do so however the session ends. Steps that need other
    ``extras`` than these are left out; by default all are there.
    """
    todo = [step for step in steps(page) if extras is None or set(step.needs) <= set(extras)]
    try:
        yield ((step, *perform(step, folder)) for step in todo if not step.last)
    finally:
        for step in todo:
            if step.last:
                perform(step, folder)


def matches(shown: str, real: str, figures: bool = False) -> bool:
    """Return whether a command printed what a page shows; ``...`` stands for anything.

    Examples
    --------
    >>> matches("a\\n...\\nd 1... s\\n", "a\\nb\\nc\\nd 1.7 s\\n"), matches("a\\n", "a\\nb\\n")
    (True, False)
    >>> matches("accuracy  91.9\\n", "accuracy  100\\n", figures=True)
    True
    """
    if figures:
        shown, real = _without_figures(shown), _without_figures(real)
    pattern = re.escape(shown)
    pattern = re.sub(r"(?m)^\\\.\\\.\\\.\\?\n", "(?:.*\n)*", pattern)
    pattern = pattern.replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, real) is not None


def _without_figures(text: str) -> str:
    """Return a text with one sign for every number, and without the widths of its columns."""
    return re.sub(r"-{3,}", "---", re.sub(r" +", " ", FIGURE.sub("#", text)))


def rewrite(page: Path) -> None:
    """Run a page and write what its commands print into it."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, session(page, Path(folder)) as done:
        for step, real, _ in done:
            if step.printed and not step.file and not matches(step.printed, real):
                text = text.replace(f"$ {step.line}\n{step.printed}", f"$ {step.line}\n{real}")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for named in sys.argv[1:] or PAGES:
        rewrite(Path(named))
