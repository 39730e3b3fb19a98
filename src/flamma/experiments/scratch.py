"""A directory that is there as long as somebody holds on to it."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path


class ScratchFolder:
    """A temporary directory that is removed with the last reference to this object.

    A forked process does not remove the directory of its parent.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="flamma-"))
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())


def place_for(out: str | Path | None, name: str) -> tuple[Path, ScratchFolder | None]:
    """Return where to write: where it was asked for, or else in a scratch folder."""
    if out is not None:
        return Path(out), None
    scratch = ScratchFolder()
    return scratch.path / name, scratch


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
