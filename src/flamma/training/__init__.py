"""Trains clients on their own data: one by one, stacked, or in lanes of vector registers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flamma.training.jobs import TooSlow as TooSlow

if TYPE_CHECKING:
    from flamma.training.stacked_trainer import StackedTrainer as StackedTrainer
    from flamma.training.torch_trainer import TorchTrainer as TorchTrainer


def __getattr__(name: str) -> Any:
    # torch takes seconds to import and is not needed to train in lanes.
    if name == "StackedTrainer":
        return import_module("flamma.training.stacked_trainer").StackedTrainer
    if name == "TorchTrainer":
        return import_module("flamma.training.torch_trainer").TorchTrainer
    raise AttributeError(f"module 'flamma.training' has no attribute {name!r}")
