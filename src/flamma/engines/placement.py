"""Which device each worker process trains on."""

from __future__ import annotations

import torch


def wants_cuda(device: str) -> bool:
    """Return whether a device of the configuration is an NVIDIA or AMD GPU of this machine.

    Unlike ``torch.cuda.is_available``, this does not start CUDA, which no forked process could
    use any more.
    """
    if device == "auto":
        return gpu_count() > 0
    return device.partition(":")[0] == "cuda"


def gpu_count() -> int:
    """Return how many GPUs this process may use, without starting CUDA."""
    return torch.cuda.device_count()


def worker_device(worker: int, device: str, gpus: int) -> str:
    """Return the device of a worker: with several GPUs, workers take them in turn.

    Parameters
    ----------
    worker : int
        The number of the worker process, from 0.
    device : str
        The device of the configuration; one with a number is that of all workers.
    gpus : int
        How many GPUs there are.

    Examples
    --------
    >>> [worker_device(worker, "cuda", gpus=2) for worker in range(3)]
    ['cuda:0', 'cuda:1', 'cuda:0']
    >>> worker_device(1, "cuda:0", gpus=2)
    'cuda:0'
    """
    if device == "cuda":
        return f"cuda:{worker % max(1, gpus)}"
    return device


def workers_per_device(processes: int, device: str, gpus: int) -> int:
    """Return how many workers share the busiest device."""
    return -(-processes // max(1, gpus)) if device == "cuda" else processes
