"""The commands in the documentation and what they print.

``python tests/documented.py`` runs them all and writes the real output into the pages.
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
# Commands that need neither a dataset nor more than a moment.
QUICK = ("flamma game ", "flamma list")
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CSV = re.compile(r"^```csv\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    page: Path
    line: str
    printed: str


def commands(page: Path) -> list[Command]:
    found = []
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, printed = part.partition("\n")
            if line.startswith(QUICK) and printed:
                found.append(Command(page, line, printed))
    return found


def output(command: Command) -> str:
    """What the command prints, run in a folder that holds the page's CSV file."""
    with tempfile.TemporaryDirectory() as folder:
        for text in CSV.findall(command.page.read_text(encoding="utf-8"))[:1]:
            Path(folder, "clients.csv").write_text(text, encoding="utf-8")
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["bash", "-c", command.line],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for command in commands(page):
            if command.printed.rstrip().endswith("..."):
                continue
            old = f"$ {command.line}\n{command.printed}"
            text = text.replace(old, f"$ {command.line}\n{output(command)}")
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
