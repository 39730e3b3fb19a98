"""The table ``[training]`` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from flamma.errors import ConfigError
from flamma.registry import Choice
from flamma.training.augmentations import (
    OWN_AUGMENTATION,
    AugmentationReader,
    augmentation_of,
)
from flamma.training.choose import AUTO, check_trainer
from flamma.training.jobs import PrecisionName
from flamma.training.optimisers import OPTIMISERS, UpdateRule
from flamma.training.schedules import SCHEDULES
from flamma.types import Schedule

DEFAULT_OPTIMISER, DEFAULT_SCHEDULE = Choice("sgd"), Choice("constant")

ADDED_TO_TRAINING = (
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

    epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.0
    trainer: str = AUTO
    device: str = "auto"
    precision: PrecisionName = "float32"
    loss: str = ""
    optimiser: Annotated[Choice, OPTIMISERS] = DEFAULT_OPTIMISER
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: Annotated[Choice, SCHEDULES] = DEFAULT_SCHEDULE
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
        """Refuse values that cannot be used, alone or together.

        Raises
        ------
        ConfigError
            Saying which.
        """
        if not self.learning_rate > 0:
            raise ConfigError("training.learning_rate must be positive.")
        if not 0 <= self.momentum < 1:
            raise ConfigError("training.momentum must lie in [0, 1).")
        rule = self.rule
        rule.check_momentum(self.momentum)
        if rule.optimiser.decouples_decay and not rule.weight_decay:
            raise ConfigError(
                f"{self.optimiser.name} without weight decay is adam: set training.weight_decay "
                f"(0.01 is usual), or use adam."
            )
        if not self.has_own_augmentation:
            augmentation_of(self.augmentation)
        check_trainer(self.trainer)

    def make_schedule(self) -> Schedule | None:
        """Return how the step size changes over the rounds, None if it does not."""
        if self.schedule == DEFAULT_SCHEDULE:
            return None
        return SCHEDULES[self.schedule.name](**self.schedule.options)

    def as_table(self) -> dict[str, Any]:
        """Return the table; what was added since version 0.1 only where it is not the default.

        So the ids of runs stay what they were.
        """
        table = {f.name: getattr(self, f.name) for f in fields(self)}
        for f in fields(self):
            if f.name in ADDED_TO_TRAINING and table[f.name] == f.default:
                del table[f.name]
        for name, value in table.items():
            if isinstance(value, Choice):
                table[name] = value.as_value()
        if "augmentation" in table:
            table["augmentation"] = [one.as_value() for one in self.augmentation]
        return table
