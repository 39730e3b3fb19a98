"""Processes that end with their work or with their parent, whatever happens."""

from __future__ import annotations

import math
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

_PARENT_CHECK_SECONDS = 0.5
"""Seconds between two checks whether the parent process still lives."""

_PR_SET_PDEATHSIG = 1
"""What ``prctl`` of Linux is asked for: a signal when the parent ends."""

MOST_PROCESSES = 1024
"""The most worker processes; more than there are cores gain nothing."""


def exit_with_parent(parent: int, clean_up: Callable[[], object] | None = None) -> None:
    """End this process soon after its parent is gone, even in the middle of a long computation.

    Parameters
    ----------
    parent : int
        The parent's process id, as of when this process was started.
    clean_up : callable, optional
        Called before the process ends.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_SECONDS)
        try:
            if clean_up is not None:
                clean_up()
        finally:
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def killed_with_parent(parent: int) -> bool:
    """Let the system kill this process when its parent ends; return whether the system can.

    Linux can, and it needs no thread for it, so that the process may still fork. The parent must
    not end the thread that started this process before itself.

    Parameters
    ----------
    parent : int
        The parent's process id, as of when this process was started.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return False
    if os.getppid() != parent:  # it has ended just before
        os._exit(1)
    return True


def exit_after(job: Callable[[], int]) -> NoReturn:
    """End this process with the exit status that a job returns; 1, and a traceback, if it raises.

    No thread goes on, and what the parent process would do at its end is not done.
    """
    code = 1
    try:
        code = job()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# Memory that a process shares with those it forks.

_Number = TypeVar("_Number", bound=np.generic)


def shared_zeros(shape: int | tuple[int, ...], dtype: type[_Number]) -> NDArray[_Number]:
    """Return an array that forked processes share; its memory is freed with the last of them.

    A forked process only counts the pages of it that it uses.
    """
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    memory = mmap.mmap(-1, max(1, size * np.dtype(dtype).itemsize))
    return np.frombuffer(memory, dtype=dtype, count=size).reshape(shape)
