"""What torch knows of the devices of this machine, for people who look for a fault."""

from __future__ import annotations

from typing import Any

import torch

from flamma.training.torch_trainer import pick_device


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
