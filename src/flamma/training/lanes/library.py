"""Loads the compiled kernels and declares their functions."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from flamma.errors import FlammaError

PORTABLE, AVX2, AVX512 = 0, 1, 2
"""The instruction sets, as the kernels number them."""

INTERFACE = 2
"""The version of the kernels' functions that :func:`declare` describes."""

REFUSALS = {
    -1: "an argument of the kernels is out of its range",
    -2: "the plan is not one of a net that the kernels can compute",
    -3: "the net or its mini-batches need more memory than there is",
    -4: "a label is not one of the classes",
}
"""Why the kernels refuse what they are given, by the status they return."""

INSTRUCTION_SETS = ("portable", "AVX2", "AVX-512")
"""Their names, by number."""


class SeatState(ctypes.Structure):
    """The mini-batches that one client does next: the kernels' ``Seat``."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("numbers", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("left", ctypes.c_int64),
    )


def available() -> bool:
    """Return whether the kernels are compiled and can be loaded."""
    return not why_not()


def why_not() -> str:
    """Return why the kernels cannot be used, empty if they can."""
    try:
        library()
    except FlammaError as error:
        return str(error)
    return ""


@cache
def library() -> ctypes.CDLL:
    """Return the loaded kernels.

    Raises
    ------
    FlammaError
        If they were not compiled or cannot be loaded.
    """
    folder = Path(__file__).parent
    files = [folder / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES]
    found = next((file for file in files if file.exists()), None)
    if found is None:
        raise FlammaError(
            "training in lanes was not compiled: install the package where there is a C++ compiler."
        )
    try:
        kernels = declare(ctypes.CDLL(str(found)))
        if kernels.lanes_interface() != INTERFACE:
            raise OSError(f"{found.name} has interface {kernels.lanes_interface()}")
        return kernels
    except (OSError, AttributeError) as error:
        raise FlammaError(
            f"training in lanes was compiled for another machine or version, install the package "
            f"again: {error}"
        ) from error


def declare(kernels: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the types of the functions to ctypes."""
    net, array, count = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    number, real = ctypes.c_int, ctypes.c_float
    signatures = {
        "lanes_interface": (number, []),
        "lanes_width": (number, [number]),
        "lanes_delete": (None, [net]),
        "lanes_new": (count, [number, array, count, count, number, count, ctypes.POINTER(net)]),
        "lanes_params": (count, [net]),
        "lanes_receive": (count, [net, array, count]),
        "lanes_put": (count, [net, number, array, count, real, real, real]),
        "lanes_take": (count, [net, number, array, count]),
        "lanes_run": (count, [net, ctypes.POINTER(SeatState), count, count]),
        "lanes_load": (count, [net, array, count]),
        "lanes_score": (count, [net, array, count, array, count, array, array]),
        "lanes_peak": (count, [number, count, array]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(kernels, name)
        function.restype, function.argtypes = result, arguments
    return kernels


def accepted(status: int) -> int:
    """Return what a function of the kernels returned.

    Raises
    ------
    FlammaError
        If it refused its arguments.
    """
    if status < 0:
        raise FlammaError(f"training in lanes: {REFUSALS[status]}.")
    return status


def memory_of_machine() -> int:
    """Return the bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def best_set() -> int:
    """Return the widest instruction set of this processor."""
    return max(kind for kind in (PORTABLE, AVX2, AVX512) if library().lanes_width(kind))
