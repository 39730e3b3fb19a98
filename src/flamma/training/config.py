"""The registry of trainers, and choosing the one that suits a model and a device.

Another package adds a trainer by an entry point of the group ``flamma.trainers`` that names a
function ``(model, wanted) -> Trainer``, where ``wanted`` is a :class:`TrainerSettings`. It raises
:class:`~flamma.errors.ConfigError` if it cannot train the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from flamma.errors import ConfigError, Key
from flamma.io import JsonTable, unknown
from flamma.registry import Between, Choice, Registry, above, at_least
from flamma.tasks import PLAIN_MEASURES, Measures
from flamma.training import PrecisionName, Trainer
from flamma.training.augmentations import (
    OWN_AUGMENTATION,
    Augment,
    AugmentationReader,
    augmentation_of,
)
from flamma.training.lanes import LanesTrainer, unavailable_reason
from flamma.training.optimisers import DECAY_BOUNDS, OPTIMISERS, PLAIN_RULE, SCHEDULES, UpdateRule
from flamma.types import Schedule

if TYPE_CHECKING:
    from flamma.models.flat import FlatModel


AUTO = "auto"
"""The name in a configuration for the choice of :func:`pick_trainer`."""


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of a trainer.

    Parameters
    ----------
    shape : sequence of int
        The shape of one sample.
    batch_size, momentum
        Of SGD.
    rule : UpdateRule
        The optimiser, weight decay and clipping.
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


def _torch_trainer(model: FlatModel, wanted: TrainerSettings) -> Trainer:
    """Return a trainer of any model on any device, one client after the other, with PyTorch."""
    from flamma.training.devices import pick_precision
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


def _stacked_trainer(model: FlatModel, wanted: TrainerSettings) -> Trainer:
    """Return a trainer of many clients at once with PyTorch, for GPUs."""
    from flamma.training.devices import pick_precision
    from flamma.training.stacked import StackedTrainer

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


def _lanes_trainer(model: FlatModel, wanted: TrainerSettings) -> Trainer:
    """Return a trainer of small sequential nets on the CPU, in the lanes of vector registers."""
    from torch import nn

    if reason := unsupported_reason(model, wanted) or unavailable_reason():
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


_TrainerFactory = Callable[["FlatModel", TrainerSettings], Trainer]

TRAINERS: Registry[_TrainerFactory] = Registry(
    "trainer",
    "flamma.trainers",
    {"torch": _torch_trainer, "lanes": _lanes_trainer, "stacked": _stacked_trainer},
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
    """
    _check_trainer(kind)
    if kind != AUTO:
        return TRAINERS[kind](model, wanted)
    if (device or model.device.type) == "cpu":
        if unsupported_reason(model, wanted):
            return _torch_trainer(model, wanted)
        if not (missing := unavailable_reason()):
            return _lanes_trainer(model, wanted)
    else:
        try:
            return _stacked_trainer(model, wanted)
        except ConfigError as error:
            missing = str(error)
    warnings.warn(f"training with torch, which is slower: {missing}", stacklevel=2)
    return _torch_trainer(model, wanted)


def _check_trainer(kind: str) -> None:
    """Refuse an unknown trainer; the nearest match is named."""
    if kind not in (known := (AUTO, *TRAINERS)):
        raise ConfigError(unknown("trainer", kind, known))


def unsupported_reason(model: FlatModel, wanted: TrainerSettings) -> str:
    """Return why a model cannot be trained in lanes, empty if it can."""
    from torch import nn

    from flamma.training.lanes.plan import plan_of

    if reason := wanted.measures.unsupported_reason():
        return reason
    if model.device.type != "cpu":
        return f"they train on the CPU, not on {model.device.type}."
    if wanted.precision != "float32":
        return f"they train in float32, not in {wanted.precision}."
    if not wanted.rule.is_sgd:
        return f"they train with sgd, not with {type(wanted.rule.optimiser).__name__}."
    if not isinstance(model.module, nn.Sequential):
        return "the model is not a torch.nn.Sequential."
    plan, reason = plan_of(model.module, wanted.shape)
    return "" if plan is not None else f"{reason}."


# The table ``[training]`` of a configuration.

_DEFAULT_OPTIMISER, _DEFAULT_SCHEDULE = Choice("sgd"), Choice("constant")

_ADDED_TO_TRAINING = (
    "loss",
    "optimiser",
    "weight_decay",
    "clip",
    "schedule",
    "augmentation",
)
"""Keys of the table that the first runs did not have."""


@dataclass(frozen=True)
class TrainingConfig:
    """How a client trains.

    Parameters
    ----------
    epochs : int
        Local epochs of strategies that fix them.
    batch_size : int
        Samples in a mini-batch.
    learning_rate : float
        The step size η.
    momentum : float
        The momentum of SGD, from zero velocity in every round.
    optimiser : name or table
        What makes a step of a gradient, a name of ``flamma list`` (``optimizer`` is understood as
        well); a table gives its options too. It remembers nothing from one round to the next.
    weight_decay : float
        λ, which adds λ w to the gradient (L2) of sgd and adam, and shrinks the weights by η λ in
        every step of adamw.
    clip : float
        The largest norm of a mini-batch's gradient over all weights; not clipped if left out.
    schedule : name or table
        How the step size changes over the rounds, a name of ``flamma list``.
    augmentation : name, table or list of them
        How training samples are changed at random, in turn; ``own`` for a function given from
        Python.
    trainer : str
        How clients are trained, a name of ``flamma list``. ``auto`` takes lanes on the CPU and
        stacked on a GPU where the model allows it, else torch.
    device : str
        ``auto`` is the GPU if there is one, else the CPU; ``cuda``, ``cuda:1``, ``mps`` or ``cpu``.
    precision : {"float32", "bfloat16", "float16"}
        In which numbers layers compute; weights and evaluation stay float32. ``float16`` needs
        CUDA, and lanes are float32 only.
    loss : str
        What training minimises: that of the task if left out; ``own`` for one given from Python.
    """

    epochs: Annotated[int, at_least(1)] = 5
    batch_size: Annotated[int, at_least(1)] = 32
    learning_rate: Annotated[float, above(0)] = 0.05
    momentum: Annotated[float, Between(0, 1, without="high")] = 0.0
    trainer: str = AUTO
    device: str = "auto"
    precision: PrecisionName = "float32"
    loss: str = ""
    optimiser: Annotated[Choice, OPTIMISERS] = _DEFAULT_OPTIMISER
    weight_decay: Annotated[float, DECAY_BOUNDS] = 0.0
    clip: Annotated[float | None, above(0)] = None
    schedule: Annotated[Choice, SCHEDULES] = _DEFAULT_SCHEDULE
    augmentation: Annotated[tuple[Choice, ...], AugmentationReader()] = ()

    @property
    def rule(self) -> UpdateRule:
        """What is done with the gradient of a mini-batch."""
        optimiser = OPTIMISERS[self.optimiser.name](**self.optimiser.options)
        return UpdateRule(self.weight_decay, self.clip, optimiser)

    @property
    def has_own_augmentation(self) -> bool:
        """Whether samples are augmented by a function given from Python."""
        return Choice(OWN_AUGMENTATION) in self.augmentation

    def check(self) -> None:
        """Refuse values that cannot be used, alone or together."""
        rule = self.rule
        rule.check_momentum(self.momentum)
        if rule.optimiser.decouples_decay and not rule.weight_decay:
            raise ConfigError(
                f"{self.optimiser.name} without weight decay is adam: set ",
                Key("training.weight_decay"),
                " (0.01 is usual), or use adam.",
            )
        if not self.has_own_augmentation:
            augmentation_of(self.augmentation)
        _check_trainer(self.trainer)

    def make_schedule(self) -> Schedule | None:
        """Return how the step size changes over the rounds, None if it does not."""
        if self.schedule == _DEFAULT_SCHEDULE:
            return None
        return SCHEDULES[self.schedule.name](**self.schedule.options)

    def as_table(self) -> JsonTable:
        """Return the table; what was added since version 0.1 only where it is not the default.

        So the ids of runs stay what they were.
        """
        table = {f.name: getattr(self, f.name) for f in fields(self)}
        for f in fields(self):
            if f.name in _ADDED_TO_TRAINING and table[f.name] == f.default:
                del table[f.name]
        for name, value in table.items():
            if isinstance(value, Choice):
                table[name] = value.as_value()
        if "augmentation" in table:
            table["augmentation"] = [one.as_value() for one in self.augmentation]
        return table
