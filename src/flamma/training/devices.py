"""The devices of this machine on which torch can train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, get_args

import psutil
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from flamma.errors import ConfigError, Key
from flamma.io import quoted, unknown
from flamma.training import PrecisionName


def pick_device(device: str) -> str:
    """Return the device to use: ``auto`` is the GPU if there is one, else the CPU.

    Raises
    ------
    ConfigError
        If this machine, or torch as it is installed here, has no such device.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:  # torch asserts where it was compiled without a GPU, and worse
        raise _unusable(device) from error
    return device


def check_device(device: str) -> None:
    """Refuse a device that cannot be there, without using a GPU: workers can still be forked.

    Raises
    ------
    ConfigError
        If there is no such kind of device, or no GPU.
    """
    if device in ("auto", "cpu"):
        return
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise _unusable(device) from error
    if kind == "cuda" and not torch.cuda.device_count():
        raise _unusable(device)


def _unusable(device: str) -> ConfigError:
    return ConfigError(
        Key("training.device"),
        f" {quoted(device)} cannot be used here ({_why_not(device)}); use auto or cpu.",
    )


def _why_not(device: str) -> str:
    """Return why a device cannot be used; torch's own words are about its insides."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        return "devices are called cpu, cuda, cuda:1 or mps"
    if kind == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        return "torch was installed without CUDA"
    if kind == "cuda":
        number = torch.cuda.device_count()
        return f"torch sees {number} GPU{'s' * (number != 1)}"
    return f"this machine, or torch as it is installed, has no {kind}"


def device_facts() -> dict[str, Any]:
    """Return the devices on which torch can train here, and the one that ``auto`` chooses."""
    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return {
        "auto": pick_device("auto"),
        "cuda": gpus,
        "cuda_version": torch.version.cuda,
        "mps": torch.backends.mps.is_available(),
        "threads": torch.get_num_threads(),
    }


# How much memory the training of one client takes, and how much a device has left.

FREE_MEMORY_SHARE = 0.7
"""The share of the free memory that a stack may take; estimates and allocators are not exact."""


def saved_bytes(forward: Callable[[], object], leave_out: Iterable[Tensor]) -> int:
    """Return the memory that autograd keeps of a forward pass for the backward pass.

    Parameters
    ----------
    forward : callable
        The pass.
    leave_out : iterable of Tensor
        What is there anyway, such as the weights.
    """
    saved: dict[int, int] = {}
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)  # else the next tensor may take its address
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    for tensor in leave_out:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    del result
    return sum(saved.values())


def free_bytes(device: torch.device) -> int:
    """Return how much memory can still be allocated on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return int(psutil.virtual_memory().available)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory of a device is exhausted."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)  # the CPU's and Apple's allocators raise a plain RuntimeError
    return "out of memory" in text or "can't allocate memory" in text


def release_cache(device: torch.device) -> None:
    """Give memory that torch holds but does not use back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


# The precision of training: float32, or mixed with 16-bit numbers.

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

    Raises
    ------
    ConfigError
        If there is no such precision, or the device does not support it.
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


# How a module takes its samples: with the channels of images last.


def wants_channels_last(module: nn.Module) -> bool:
    """Return whether to store images with their channels last.

    That makes convolution and pooling much faster on CPUs, LeNet-5 as a whole by a third or more,
    and group norm slower. Modules of other packages may rely on the usual order (by ``view``), so
    they keep it.
    """
    parts = list(module.modules())
    known = all(type(part).__module__.startswith(("torch.nn.", "flamma.")) for part in parts)
    convolves = any(isinstance(part, nn.Conv2d) for part in parts)
    return known and convolves and not any(isinstance(part, nn.GroupNorm) for part in parts)
