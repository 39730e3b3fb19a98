"""The registry of trainers, and choosing the one that suits a model and a device.

Another package adds a trainer by an entry point of the group ``flamma.trainers`` that names a
function ``(model, wanted) -> Trainer``, where ``wanted`` is a :class:`TrainerSettings`. It raises
:class:`~flamma.errors.ConfigError` if it cannot train the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flamma.errors import ConfigError
from flamma.names import unknown
from flamma.registry import Registry
from flamma.tasks.measures import PLAIN_MEASURES, Measures
from flamma.training.augmentations import Augment
from flamma.training.jobs import Trainer
from flamma.training.lanes import LanesTrainer, why_not
from flamma.training.optimisers import PLAIN_RULE, UpdateRule

if TYPE_CHECKING:
    from flamma.models.flat import FlatModel

AUTO = "auto"
"""What a configuration calls the choice of :func:`pick_trainer`."""


@dataclass(frozen=True)
class TrainerSettings:
    """What a trainer is made for.

    Parameters
    ----------
    shape : sequence of int
        The shape of one sample.
    batch_size, momentum
        Of SGD.
    rule : UpdateRule
        What is done with gradients besides.
    augment : callable, optional
        Changes the samples of a mini-batch at random before they are trained on.
    precision : {"float32", "bfloat16", "float16"}
        In which numbers layers compute.
    sharing : int
        How many processes share the memory of the device.
    measures : Measures
        The loss to train by, and the metric to mark samples for.
    """

    shape: Sequence[int]
    batch_size: int
    momentum: float = 0.0
    precision: str = "float32"
    sharing: int = 1
    measures: Measures = PLAIN_MEASURES
    rule: UpdateRule = PLAIN_RULE
    augment: Augment | None = None

    @property
    def optimiser_name(self) -> str:
        """What the optimiser is called."""
        return type(self.rule.optimiser).__name__


def torch_trainer(model: FlatModel, wanted: TrainerSettings) -> Trainer:
    """Return a trainer of any model on any device, one client after the other, with PyTorch."""
    from flamma.training.precision import pick_precision
    from flamma.training.torch_trainer import TorchTrainer

    precision = pick_precision(wanted.precision, model.device.type)
    return TorchTrainer(
        model,
        wanted.batch_size,
        wanted.momentum,
        precision=precision,
        measures=wanted.measures,
        rule=wanted.rule,
        augment=wanted.augment,
    )


def stacked_trainer(model: FlatModel, wanted: TrainerSettings) -> Trainer:
    """Return a trainer of many clients at once with PyTorch, for GPUs."""
    from flamma.training.precision import pick_precision
    from flamma.training.stacked_trainer import StackedTrainer

    if wanted.augment is not None:
        raise ConfigError("the trainer stacked cannot be used: it does not augment samples.")
    return StackedTrainer(
        model,
        wanted.shape,
        wanted.batch_size,
        wanted.momentum,
        precision=pick_precision(wanted.precision, model.device.type),
        sharing=wanted.sharing,
        measures=wanted.measures,
        rule=wanted.rule,
    )


def lanes_trainer(model: FlatModel, wanted: TrainerSettings) -> Trainer:
    """Return a trainer of small sequential nets on the CPU, in the lanes of vector registers."""
    from torch import nn

    if reason := why_not_lanes(model, wanted) or why_not():
        raise ConfigError(f"the trainer lanes cannot be used: {reason}")
    module = model.module
    assert isinstance(module, nn.Sequential)
    return LanesTrainer(
        module,
        wanted.shape,
        wanted.batch_size,
        wanted.momentum,
        rule=wanted.rule,
        mark=wanted.measures.metric.from_losses,
        augment=wanted.augment,
    )


TrainerFactory = Callable[["FlatModel", TrainerSettings], Trainer]

TRAINERS: Registry[TrainerFactory] = Registry(
    "trainer",
    "flamma.trainers",
    {"torch": torch_trainer, "lanes": lanes_trainer, "stacked": stacked_trainer},
)
"""All trainers by name."""


def pick_trainer(
    kind: str, model: FlatModel, wanted: TrainerSettings, device: str | None = None
) -> Trainer:
    """Return a trainer for a model.

    Parameters
    ----------
    kind : str
        A name of :data:`TRAINERS`, or ``auto``: on the CPU lanes where they support the model, on
        a GPU stacked where it does, else torch. A warning says why torch is taken, unless it is
        because lanes are not made for such a model.
    model : FlatModel
        The model and its device.
    wanted : TrainerSettings
        What the trainer is made for.
    device : str, optional
        The type of the device to choose for, if the model will be moved to another one later.

    Raises
    ------
    ConfigError
        If there is no such trainer, or it cannot train the model.
    """
    check_trainer(kind)
    if kind != AUTO:
        return TRAINERS[kind](model, wanted)
    if (device or model.device.type) == "cpu":
        if why_not_lanes(model, wanted):
            return torch_trainer(model, wanted)
        if not (missing := why_not()):
            return lanes_trainer(model, wanted)
    else:
        try:
            return stacked_trainer(model, wanted)
        except ConfigError as error:
            missing = str(error)
    warnings.warn(f"training with torch, which is slower: {missing}", stacklevel=2)
    return torch_trainer(model, wanted)


def check_trainer(kind: str) -> None:
    """Refuse a trainer that there is not.

    Raises
    ------
    ConfigError
        If there is no such trainer; the nearest match is named.
    """
    if kind not in (known := (AUTO, *TRAINERS)):
        raise ConfigError(unknown("trainer", kind, known))


def why_not_lanes(model: FlatModel, wanted: TrainerSettings) -> str:
    """Return why a model cannot be trained in lanes, empty if it can."""
    from torch import nn

    from flamma.training.lanes.plan import plan_of

    if reason := wanted.measures.why_not_lanes():
        return reason
    if model.device.type != "cpu":
        return f"they train on the CPU, not on {model.device.type}."
    if wanted.precision != "float32":
        return f"they train in float32, not in {wanted.precision}."
    if not wanted.rule.is_sgd:
        return f"they train with sgd, not with {wanted.optimiser_name}."
    if not isinstance(model.module, nn.Sequential):
        return "the model is not a torch.nn.Sequential."
    plan, reason = plan_of(model.module, wanted.shape)
    return "" if plan is not None else f"{reason}."
