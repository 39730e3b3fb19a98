"""How a module takes its samples: as whole numbers, and with the channels of images last."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def takes_whole_numbers(module: nn.Module, sample: Tensor) -> bool:
    """Return whether a module takes whole numbers, as one that begins with an embedding does.

    Most layers refuse them: they multiply by real numbers.
    """
    try:
        with torch.inference_mode():
            module(sample)
    except Exception:  # whatever a module may raise
        return False
    return True


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
