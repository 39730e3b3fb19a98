"""The command line. Parsing is light; each command imports what it needs."""

from __future__ import annotations

import argparse
import contextlib
import errno
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import TextIO

from flamma.cli.console import Interrupted, readers_may_leave
from flamma.errors import DivergedError, FlammaError
from flamma.experiments.settings import flag_of
from flamma.extras import extra_of, missing_extra, require
from flamma.io import printable

_MAX_MESSAGE = 2000
"""The most characters of a message on the terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    It is 0, 2 with one sentence on what is wrong with what was asked for, 1 with one sentence on
    what failed meanwhile or on what a check found to differ, or 130 after an interruption, with
    the command that goes on. A reader of the output that has seen enough, such as ``head``, is no
    failure: the work goes on, and its files are written.
    """
    from flamma.cli.parser import command_line

    given = list(sys.argv[1:] if arguments is None else arguments)
    options = argparse.Namespace()
    try:
        with readers_may_leave():
            try:
                options = command_line().parse_args(given)
                options.arguments = given
                with warnings.catch_warnings():
                    warnings.showwarning = _show_warning
                    require("this command", *getattr(options, "needs", ()))
                    code: int | None = options.run(options)
                return code or 0
            except (FlammaError, ImportError, KeyboardInterrupt, OSError, MemoryError) as error:
                return _end_with(error, options)
    except KeyboardInterrupt:  # while the reader was waited for
        return 130


def _end_with(error: BaseException, options: argparse.Namespace) -> int:
    """Say what ended a command, and return its exit code."""
    if getattr(options, "verbose", False) and not isinstance(error, KeyboardInterrupt):
        traceback.print_exc()
    # Settings of a file are named by its keys, and others by their flags.
    naming = None if getattr(options, "config", None) else flag_of
    code, sentence = _explained(error, naming)
    with contextlib.suppress(OSError):  # standard error may be closed
        print(f"flamma: {printable(sentence, _MAX_MESSAGE)}", file=sys.stderr, flush=True)
    return code


def _explained(error: BaseException, name_of: Callable[[str], str] | None) -> tuple[int, str]:
    """Return the exit code and the sentence for what ended a command."""
    match error:
        case DivergedError():
            return 1, error.sentence(name_of)
        case FlammaError():
            return 2, error.sentence(name_of)
        case ModuleNotFoundError(name=str(name)) if extra_of(name):
            return 2, str(missing_extra("this", name))
        case Interrupted():
            return 130, f"interrupted; {error}"
        case KeyboardInterrupt():
            return 130, "interrupted."
        case MemoryError():
            return 1, "this machine has not enough memory for that."
        case BrokenPipeError():
            return 1, f"a process or connection that is needed has ended: {error}."
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return 2, "too many files are open; allow more by `ulimit -n`."
        case OSError(filename=None):
            return 1, f"{error.strerror or error}."
        case OSError():
            return 2, f"{error.filename}: {error.strerror or error}."
    raise error


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning as one line, without the place in the code that a user has no use for."""
    print(f"flamma: {printable(str(message), _MAX_MESSAGE)}", file=file or sys.stderr)
