"""The precision of training: float32, or mixed with 16-bit numbers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import get_args

import torch

from flamma.errors import ConfigError
from flamma.names import unknown
from flamma.training.jobs import PrecisionName

FLOAT16_LOSS_SCALE = 2.0**12
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
        raise ConfigError(f"training.precision float16 needs CUDA; on {device} use bfloat16.")
    return Precision(torch.float16, FLOAT16_LOSS_SCALE)
