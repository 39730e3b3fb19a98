"""What Ctrl-C tells: the command that goes on with the work."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a command that can be gone on with; the text says how."""


@contextlib.contextmanager
def goes_on_by(how: str | Callable[[], str]) -> Iterator[None]:
    """Say after Ctrl-C how to go on with what happens inside; a function is asked at that time."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(how if isinstance(how, str) else how()) from None


def same_command(options: argparse.Namespace) -> str:
    """Return the sentence that says that the same command goes on, with that command."""
    return f"the same command goes on: {command(*getattr(options, 'arguments', ()))}"


def resuming(folder: Path, options: argparse.Namespace) -> Callable[[], str]:
    """Return a function that says how to go on with a run: anew if it has not begun."""

    def how() -> str:
        from flamma.experiments.folder import RunFolder

        if not RunFolder(folder).exists:
            again = command(*getattr(options, "arguments", ()))
            return f"nothing was written yet; the same command starts again: {again}"
        data = getattr(options, "data_dir", None)
        where = () if data is None else ("--data-dir", str(data))
        return f"go on with: {command('resume', str(folder), *where)}"

    return how


def command(*words: str) -> str:
    """Return a command as one types it.

    Examples
    --------
    >>> command("resume", "runs/my first")
    "flamma resume 'runs/my first'"
    """
    return shlex.join(["flamma", *words])
