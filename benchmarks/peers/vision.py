"""Lets torchvision be imported beside a torch that its compiled part was not built for.

FedLab and fluke import it, though nothing of it is used here. Its wheels on PyPI are for torch
with CUDA; beside the CPU build their operators are missing, and the import fails.
"""

from __future__ import annotations

import torch

try:
    import torchvision
except RuntimeError:
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
