"""Standard output and standard error that may lose their reader without ending the work."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class ReaderMayLeave:
    """A stream that goes on into nothing once its reader, such as ``head``, has seen enough."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, or nothing if nobody reads any more."""
        with self._reader_may_leave():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        with self._reader_may_leave():
            self._stream.flush()

    @contextlib.contextmanager
    def _reader_may_leave(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            try:
                # What is still in the buffer goes there too, also when Python flushes at its exit.
                os.dup2(null, self._stream.fileno())
            finally:
                os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """Let a closed pipe end neither the work nor, with its traceback, the patience of a user."""
    out = cast(TextIO, ReaderMayLeave(sys.stdout))
    error = cast(TextIO, ReaderMayLeave(sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            yield
        finally:
            out.flush()
