"""The command line: ``flamma ...``. Parsing is light; the work is imported when it is done."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from flamma.errors import FlammaError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 with one sentence on what is wrong."""
    from flamma.cli.parser import command_line

    options = command_line().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            options.run(options)
        sys.stdout.flush()
    except FlammaError as error:
        print(f"flamma: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("flamma: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        print("flamma: too many files are open; allow more by `ulimit -n`.", file=sys.stderr)
        return 2
    return 0


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning as one line, without the place in the code that a user has no use for."""
    print(f"flamma: {message}", file=file or sys.stderr)
