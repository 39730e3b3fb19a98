"""The command line: ``flamma ...``. Parsing is light; the work is imported when it is done."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from flamma.errors import FlammaError
from flamma.names import printable

MOST_MESSAGE = 2000
"""The most characters of a message on the terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    It is 0, 2 with one sentence on what is wrong with what was asked for, 1 with one sentence on
    what failed meanwhile or on what a check found to differ, or 130 after an interruption. A
    reader of the output that has seen enough, such as ``head``, is no failure.
    """
    from flamma.cli.parser import command_line

    options = command_line().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code: int | None = options.run(options)
        sys.stdout.flush()
    except FlammaError as error:
        return _failed(2, str(error))
    except KeyboardInterrupt:
        return _failed(130, "interrupted.")
    except BrokenPipeError as error:
        if _output_has_no_reader():
            return 0
        return _failed(1, f"a process or connection that is needed has ended: {error}.")
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return _failed(2, "too many files are open; allow more by `ulimit -n`.")
        place = "" if error.filename is None else f"{error.filename}: "
        return _failed(2 if place else 1, f"{place}{error.strerror or error}.")
    except MemoryError:
        return _failed(1, "this machine has not enough memory for that.")
    return code or 0


def _failed(code: int, sentence: str) -> int:
    with contextlib.suppress(OSError):  # standard error may be closed
        print(f"flamma: {printable(sentence, MOST_MESSAGE)}", file=sys.stderr, flush=True)
    return code


def _output_has_no_reader() -> bool:
    """Return whether standard output is a pipe without a reader; then nothing more goes there."""
    with contextlib.suppress(OSError, ValueError):  # output that is no file has no such pipe
        try:
            sys.stdout.flush()  # what could not be written is still there, so this fails again
            ends = select.poll()
            ends.register(sys.stdout.fileno(), 0)
            if not any(event & select.POLLERR for _, event in ends.poll(0)):
                return False
        except BrokenPipeError:
            pass
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # or Python fails on it once more when it exits
        os.close(null)
        return True
    return False


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning as one line, without the place in the code that a user has no use for."""
    print(f"flamma: {printable(str(message), MOST_MESSAGE)}", file=file or sys.stderr)
