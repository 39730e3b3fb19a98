"""The devices of this machine on which torch can train."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import get_args

import psutil
import torch

from flamma.errors import ConfigError, Key
from flamma.io import quoted, unknown
from flamma.training import PrecisionName


def pick_device(device: str) -> str:
    """Return the device to use: ``auto`` is the GPU if there is one, else the CPU."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:  # torch asserts where it was compiled without a GPU, and worse
        raise _unusable(device) from error
    return device


def check_device(device: str) -> None:
    """Refuse a device that cannot be there, without using a GPU: workers can still be forked."""
    if device in ("auto", "cpu"):
        return
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise _unusable(device) from error
    if kind == "cuda" and not torch.cuda.device_count():
        raise _unusable(device)


def _unusable(device: str) -> ConfigError:
    """Return the error of an unusable device; torch's messages are about its internals."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if not kind:
        reason = "devices are called cpu, cuda, cuda:1 or mps"
    elif kind == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        reason = "torch was installed without CUDA"
    elif kind == "cuda":
        number = torch.cuda.device_count()
        reason = f"torch sees {number} GPU{'s' * (number != 1)}"
    else:
        reason = f"this machine, or torch as it is installed, has no {kind}"
    return ConfigError(
        Key("training.device"),
        f" {quoted(device)} cannot be used here ({reason}); use auto or cpu.",
    )


def device_facts() -> dict[str, str | int | bool | list[str] | None]:
    """Return the devices on which torch can train here, and the one that ``auto`` chooses."""
    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return {
        "auto": pick_device("auto"),
        "cuda": gpus,
        "cuda_version": torch.version.cuda,
        "mps": torch.backends.mps.is_available(),
        "threads": torch.get_num_threads(),
    }


# Memory, and the precision of training: float32, or mixed with 16-bit numbers.


def free_bytes(device: torch.device) -> int:
    """Return how much memory can still be allocated on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return int(psutil.virtual_memory().available)


_FLOAT16_LOSS_SCALE = 2.0**12
"""Keeps small gradients within float16's range; a power of two, so that scaling rounds nothing.

It does not adapt: a client whose gradients overflow returns weights that are not finite, which
the server refuses.
"""


@dataclass(frozen=True)
class Precision:
    """The type of numbers in which layers compute; weights, velocity and loss stay float32.

    Attributes
    ----------
    dtype : torch.dtype
        The type for the layers that torch's autocast considers safe in it.
    loss_scale : float
        The loss is multiplied by it and the gradient divided.
    """

    dtype: torch.dtype = torch.float32
    loss_scale: float = 1.0

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which the forward pass runs."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(device.type, self.dtype)


SINGLE_PRECISION = Precision()


def pick_precision(name: str, device: str) -> Precision:
    """Return a precision by name.

    Parameters
    ----------
    name : {"float32", "bfloat16", "float16"}
        ``bfloat16`` has float32's range and works on every device. ``float16`` has a small range,
        so the loss is scaled; it is for GPUs without bfloat16.
    device : str
        The type of the device that trains.
    """
    if name not in get_args(PrecisionName):
        raise ConfigError(unknown("precision", name, get_args(PrecisionName)))
    if name == "float32":
        return SINGLE_PRECISION
    if name == "bfloat16":
        return Precision(torch.bfloat16)
    if device != "cuda":
        raise ConfigError(
            Key("training.precision"), f" float16 needs CUDA; on {device} use bfloat16."
        )
    return Precision(torch.float16, _FLOAT16_LOSS_SCALE)
