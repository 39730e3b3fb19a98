"""How much memory the training of one client takes, and how much a device has left."""

from __future__ import annotations

from collections.abc import Sequence

import psutil
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from flamma.models.flat import FlatModel
from flamma.training.precision import Precision

FREE_MEMORY_SHARE = 0.7
"""The share of the free memory that a stack may take; estimates and allocators are not exact."""


def activation_bytes(
    model: FlatModel, shape: Sequence[int], batch_size: int, precision: Precision
) -> int:
    """Return the memory that one mini-batch keeps between its forward and its backward pass.

    It is measured by a forward pass of one client: what autograd saves, each storage counted
    once, the weights left out.
    """
    own = model.flat.untyped_storage().data_ptr()
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)  # else the next tensor may take its address
        return tensor

    kept: list[Tensor] = []
    samples = torch.zeros(batch_size, *shape, device=model.device)
    labels = torch.zeros(batch_size, dtype=torch.int64, device=model.device)
    with saved_tensors_hooks(note, lambda tensor: tensor):
        with precision.autocast(model.device):
            logits = model.module(samples)
        cross_entropy(logits.float(), labels)
    saved.pop(own, None)
    return sum(saved.values())


def bytes_per_client(
    model: FlatModel,
    shape: Sequence[int],
    batch_size: int,
    momentum: float,
    precision: Precision,
) -> int:
    """Return an estimate of the memory that one more client of a stack takes, without its data.

    Weights and, with momentum, velocity stay from step to step. A step adds the gradient, one
    more vector for the update, and the activations, to which the backward pass adds about as much
    again.
    """
    vectors = 4 if momentum else 3
    weights = model.flat.nbytes + model.weights.nbytes * (vectors - 1)
    return weights + 2 * activation_bytes(model, shape, batch_size, precision)


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
