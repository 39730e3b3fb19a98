"""A directory from outside, of which nothing is read that does not lie in it."""

from __future__ import annotations

from pathlib import Path

from flamma.errors import RunError
from flamma.experiments.folder import RunFolder

MAX_FILE_BYTES = 1 << 30
"""A larger file is not read; its report could not be opened."""


class ConfinedRunFolder(RunFolder):
    """A run directory of which only regular files inside it are read.

    Links that lead out of it are not followed. What is not read is added to ``problems``.
    """

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__(path)
        self.problems = problems

    def text(self, name: str) -> str:
        """Return the text of a file of the directory, empty if it is missing or not read."""
        file = self.path / name
        if not file.exists():
            return ""
        problem = ""
        if not is_inside(file, self.path) or not file.is_file():
            problem = f"{name} is not a file of this directory and is not read"
        elif file.stat().st_size > MAX_FILE_BYTES:
            problem = f"{name} is larger than {MAX_FILE_BYTES >> 20} MB and is not read"
        if not problem:
            try:
                return super().text(name)
            except RunError as error:
                problem = str(error).rstrip(".")
        if problem not in self.problems:
            self.problems.append(problem)
        return ""


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path, its links followed, lies in a folder."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links in a circle
        return False
