"""Loads the compiled kernels and declares their functions."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from flamma.errors import FlammaError

PORTABLE, AVX2, AVX512 = 0, 1, 2
"""The instruction sets, as the kernels number them."""

INSTRUCTION_SETS = ("portable", "AVX2", "AVX-512")
"""Their names, by number."""


class SeatState(ctypes.Structure):
    """The mini-batches that one client does next: the kernels' ``Seat``."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
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
        return declare(ctypes.CDLL(str(found)))
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
        "lanes_width": (number, [number]),
        "lanes_new": (net, [number, array, count, number]),
        "lanes_delete": (None, [net]),
        "lanes_params": (count, [net]),
        "lanes_receive": (None, [net, array]),
        "lanes_put": (None, [net, number, array, real, real, real]),
        "lanes_take": (None, [net, number, array]),
        "lanes_run": (count, [net, ctypes.POINTER(SeatState), count]),
        "lanes_load": (None, [net, array]),
        "lanes_score": (None, [net, array, array, count, array, array]),
        "lanes_peak": (count, [number, count, array]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(kernels, name)
        function.restype, function.argtypes = result, arguments
    return kernels


def best_set() -> int:
    """Return the widest instruction set of this processor."""
    return max(kind for kind in (PORTABLE, AVX2, AVX512) if library().lanes_width(kind))
