"""Loads the compiled kernels and declares their functions."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np

from flamma.errors import FlammaError
from flamma.io import quoted

INSTRUCTION_SETS = ("portable", "avx2", "avx512")
"""The instruction sets, in the kernels' order. All of them give the same bits."""

_CHOICE = "FLAMMA_LANES"
"""The environment variable that names the instruction set to use instead of the fastest."""

_INTERFACE = 9
"""The version of the kernels' functions that :func:`declare` describes."""

WRONG_SAMPLE = -4
"""The status of a label that is not one of the classes."""

_REFUSALS = {
    -1: "an argument of the kernels is out of its range",
    -2: "the plan is not one of a net that the kernels can compute",
    -3: "the net or its mini-batches need more memory than there is",
    WRONG_SAMPLE: "a label is not one of the classes",
}
"""Why the kernels refuse what they are given, by the status they return."""

JOB = np.dtype(
    [
        *((name, np.uintp) for name in ("x", "y", "order", "shown", "trained")),
        *((name, np.uintp) for name in ("received", "start", "correction")),
        *((name, np.int64) for name in ("vector", "numbers", "samples", "left", "place")),
        *((name, np.int64) for name in ("more", "wants_loss", "wants_trained_loss", "state")),
        *((name, np.float64) for name in ("loss", "begun", "seconds")),
        *((name, np.float64) for name in ("learning_rate", "momentum", "proximal")),
        *((name, np.float64) for name in ("loss_bound", "tilt", "weight_decay", "clip")),
    ]
)
"""The training of one client: the kernels' ``Job``."""

NEEDS_ORDER, FINISHED, LATE = 2, 3, 4
"""States of a job that Python reacts to; a negative state is the reason of a refusal."""


def available() -> bool:
    """Return whether the kernels are compiled and can be loaded."""
    return not unavailable_reason()


def unavailable_reason() -> str:
    """Return why the kernels cannot be used, empty if they can."""
    try:
        library()
    except FlammaError as error:
        return str(error)
    return ""


def compiled_file() -> Path | None:
    """Return the file of the compiled kernels, None if they were not compiled."""
    folder = Path(__file__).parent
    files = [folder / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES]
    return next((file for file in files if file.exists()), None)


@cache
def library() -> ctypes.CDLL:
    """Return the loaded kernels."""
    found = compiled_file()
    if found is None:
        raise FlammaError(
            "training in lanes was not compiled: install the package where there is a C++ compiler."
        )
    try:
        kernels = _declare(ctypes.CDLL(str(found)))
        if kernels.lanes_interface() != _INTERFACE:
            raise OSError(f"{found.name} has interface {kernels.lanes_interface()}")
        return kernels
    except (OSError, AttributeError) as error:
        raise FlammaError(
            f"training in lanes was compiled for another machine or version, install the package "
            f"again: {error}"
        ) from error


def _declare(kernels: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the types of the functions to ctypes."""
    trainer, array, count = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    number, real = ctypes.c_int, ctypes.c_double
    made = ctypes.POINTER(trainer)
    signatures = {
        "lanes_interface": (number, []),
        "lanes_seats": (number, [number]),
        "lanes_delete": (None, [trainer]),
        "lanes_new": (count, [number, array, count, count, count, made]),
        "lanes_params": (count, [trainer]),
        "lanes_begin": (count, [trainer, array, count, array, count]),
        "lanes_run": (count, [trainer, real, real]),
        "lanes_end": (count, [trainer]),
        "lanes_load": (count, [trainer, array, count]),
        "lanes_score": (count, [trainer, array, count, array, count, array, array]),
        "lanes_orders": (count, [array, array, array, count, array, count]),
        "lanes_peak": (count, [number, count, array]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(kernels, name)
        function.restype, function.argtypes = result, arguments
    return kernels


def accepted(status: int) -> int:
    """Return the status of a function of the kernels, or raise an error if it refused."""
    if status < 0:
        raise refusal(status)
    return status


def refusal(status: int) -> FlammaError:
    """Return the error of a negative status."""
    return FlammaError(f"training in lanes: {_REFUSALS[status]}.")


def memory_of_machine() -> int:
    """Return the bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that this processor has, the widest last."""
    return tuple(
        name for number, name in enumerate(INSTRUCTION_SETS) if library().lanes_seats(number)
    )


def chosen_set() -> str:
    """Return the instruction set that ``FLAMMA_LANES`` names, by default the widest."""
    usable = instruction_sets()
    chosen = os.environ.get(_CHOICE, "") or usable[-1]
    if chosen not in usable:
        raise FlammaError(
            f"{_CHOICE} is {quoted(chosen)}, which this processor cannot use: "
            f"unset it or set it to one of {', '.join(usable)}."
        )
    return chosen
