"""The devices of this machine on which torch can train."""

from __future__ import annotations

from typing import Any

import torch

from flamma.errors import ConfigError
from flamma.names import quoted


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
        f"training.device {quoted(device)} cannot be used here ({_why_not(device)}); use auto or "
        f"cpu."
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
