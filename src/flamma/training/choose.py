"""Chooses the trainer: lanes where they support the model, else torch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import nn

from flamma.errors import ConfigError
from flamma.models.flat import FlatModel
from flamma.names import unknown
from flamma.training.jobs import Trainer
from flamma.training.lanes import LanesTrainer, why_not
from flamma.training.lanes.plan import plan_of
from flamma.training.torch_trainer import TorchTrainer

TRAINERS = ("auto", "torch", "lanes")


def pick_trainer(
    kind: str,
    model: FlatModel,
    shape: Sequence[int],
    batch_size: int,
    momentum: float,
) -> Trainer:
    """Return a trainer for a model.

    Parameters
    ----------
    kind : {"auto", "torch", "lanes"}
        ``torch`` trains any model on any device, ``lanes`` small sequential nets on the CPU.
        ``auto`` takes lanes where they support the model; if only the compiled kernels are
        missing, it warns and takes torch.
    model : FlatModel
        The model and its device.
    shape : sequence of int
        The shape of one sample.
    batch_size, momentum
        Of SGD.

    Raises
    ------
    ConfigError
        If there is no such trainer, or ``lanes`` cannot be used.
    """
    if kind not in TRAINERS:
        raise ConfigError(unknown("trainer", kind, TRAINERS))
    if kind != "torch":
        unfit, missing = _unfit(model, shape), why_not()
        if not unfit and not missing:
            module = model.module
            assert isinstance(module, nn.Sequential)
            return LanesTrainer(module, shape, batch_size, momentum)
        if kind == "lanes":
            raise ConfigError(f"the trainer lanes cannot be used: {unfit or missing}")
        if not unfit:
            warnings.warn(f"training with torch, which is slower: {missing}", stacklevel=2)
    return TorchTrainer(model, batch_size, momentum)


def _unfit(model: FlatModel, shape: Sequence[int]) -> str:
    """Return why a model cannot be trained in lanes, empty if it can."""
    if model.device.type != "cpu":
        return f"they train on the CPU, not on {model.device.type}."
    if not isinstance(model.module, nn.Sequential):
        return "the model is not a torch.nn.Sequential."
    plan, reason = plan_of(model.module, shape)
    return "" if plan is not None else f"{reason}."
