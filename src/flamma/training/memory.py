"""How much memory the training of one client takes, and how much a device has left."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

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
