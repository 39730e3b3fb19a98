"""The commands in the documentation and what they print.

A page is a session: its ``console`` blocks are run in order, in one folder, and must print what
the page shows. ``...`` stands for anything, within a line or for many lines. Comments steer it:

``<!-- docs: skip REASON -->``    the next block is not run
``<!-- docs: file NAME -->``      the next block, of any language, is written to that file first
``<!-- docs: run COMMAND -->``    a command that the page does not show

``python tests/documented.py [PAGE ...]`` runs pages and writes the real output into them, except
where they show ``...``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUICK = ("flamma game ", "flamma list")
"""Commands that need neither a dataset nor more than a moment: these run in every test run."""

PART = re.compile(
    r"^<!-- docs: (?P<verb>skip|file|run) ?(?P<word>.*?) -->$"
    r"|^```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LONGEST_COMMAND_SECONDS = 900


@dataclass(frozen=True)
class Step:
    """One thing to do on the way through a page: a file to write, or a command to run."""

    page: Path
    line: str
    printed: str = ""
    file: str = ""
    hidden: bool = False

    @property
    def quick(self) -> bool:
        return self.line.startswith(QUICK) and bool(self.printed) and not self.file


def steps(page: Path) -> list[Step]:
    """Return what a page does, in order."""
    found: list[Step] = []
    skip, file = False, ""
    for part in PART.finditer(page.read_text(encoding="utf-8")):
        verb, word, body = part["verb"], part["word"], part["body"]
        if verb == "skip":
            skip = True
        elif verb == "file":
            file = word
        elif verb == "run":
            found.append(Step(page, word, hidden=True))
        else:
            if file:
                found.append(Step(page, "", body, file))
            elif part["language"] == "console" and not skip:
                found += _commands(page, body)
            skip, file = False, ""
    return found


def _commands(page: Path, block: str) -> list[Step]:
    found = []
    for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = text.splitlines(keepends=True)
        count = 1
        while lines[count - 1].endswith("\\\n"):
            count += 1
        line = "".join(lines[:count]).rstrip("\n")
        found.append(Step(page, line, "".join(lines[count:])))
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
    }
    done = subprocess.run(
        ["bash", "-c", step.line],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_COMMAND_SECONDS,
    )
    printed = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
    return printed, done.returncode


def matches(shown: str, real: str) -> bool:
    """Return whether a command printed what a page shows; ``...`` stands for anything.

    Examples
    --------
    >>> matches("a\\n...\\nd 1... s\\n", "a\\nb\\nc\\nd 1.7 s\\n"), matches("a\\n", "a\\nb\\n")
    (True, False)
    """
    pattern = re.escape(shown)
    pattern = re.sub(r"(?m)^\\\.\\\.\\\.\\?\n", "(?:.*\n)*", pattern)
    pattern = pattern.replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, real) is not None


def rewrite(page: Path) -> None:
    """Run a page and write what its commands print into it."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for step in steps(page):
            real, _ = perform(step, Path(folder))
            if step.printed and not step.file and not matches(step.printed, real):
                text = text.replace(f"$ {step.line}\n{step.printed}", f"$ {step.line}\n{real}")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for named in sys.argv[1:] or PAGES:
        rewrite(Path(named))
