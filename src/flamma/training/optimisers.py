"""How the gradient of a mini-batch moves a client's weights: SGD, Adam or AdamW.

Another package adds an optimiser by an entry point of the group ``flamma.optimisers`` that names
a frozen dataclass with the members of :class:`_Optimiser`. Its fields are the options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol, Union

from flamma.errors import ConfigError
from flamma.numerics import cosine_of_half_turns, power
from flamma.registry import Between, CheckedOptions, Registry, above, at_least
from flamma.types import Schedule

if TYPE_CHECKING:
    from torch import Tensor


# Schedules: the factor of the learning rate in each round.
#
# Another package adds one by an entry point of the group ``flamma.schedules`` that names a frozen
# dataclass with a method ``factor(round, rounds)``. Its fields are the options.


@dataclass(frozen=True)
class _ConstantSchedule:
    """The same step size in every round."""

    def factor(self, round: int, rounds: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class _WarmUpSchedule(CheckedOptions):
    """Rises in equal steps to the full step size, and stays there.

    Goyal et al., Accurate, large minibatch SGD, arXiv:1706.02677, section 2.2 (gradual warm-up).

    Parameters
    ----------
    warm_up : int
        Rounds below the full step size: round t of them has t / (warm_up + 1) of it.
    """

    warm_up: Annotated[int, at_least(0)] = 5

    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of the warm-up, and then that of :meth:`after`."""
        if round <= self.warm_up:
            return max(1, round) / (self.warm_up + 1)
        return self.after(max(1, round) - self.warm_up, max(1, rounds - self.warm_up))

    def after(self, round: int, rounds: int) -> float:
        """Return the factor of a round after the warm-up, counted from 1; here 1."""
        return 1.0


@dataclass(frozen=True)
class CosineSchedule(_WarmUpSchedule):
    """Falls along half a cosine, from the full step size towards a floor.

    The factor of round t of T is floor + (1 - floor) (1 + cos(π (t - 1) / T)) / 2, counted from the
    end of the warm-up: Loshchilov and Hutter, SGDR, ICLR 2017, equation 5, without restarts.

    Parameters
    ----------
    floor : float
        The share of the step size that it falls to after the last round.
    warm_up : int
        Rounds in which it rises first.
    """

    warm_up: Annotated[int, at_least(0)] = 0
    floor: Annotated[float, Between(0, 1)] = 0.0

    def after(self, round: int, rounds: int) -> float:
        """Return the cosine's share."""
        fallen = min(round - 1, rounds) / rounds
        return self.floor + (1 - self.floor) * (1 + cosine_of_half_turns(fallen)) / 2


@dataclass(frozen=True)
class _StepSchedule(_WarmUpSchedule):
    """Multiplies the step size by a factor every few rounds.

    Parameters
    ----------
    every : int
        After how many rounds.
    ratio : float
        The factor, above 0 and at most 1.
    warm_up : int
        Rounds in which it rises first.
    """

    warm_up: Annotated[int, at_least(0)] = 0
    every: Annotated[int, at_least(1)] = 10
    ratio: Annotated[float, Between(0, 1, without="low")] = 0.5

    def after(self, round: int, rounds: int) -> float:
        """Return ratio to the power of how often it was applied before this round."""
        return float(power(self.ratio, (round - 1) // self.every))


SCHEDULES: Registry[type[Schedule]] = Registry(
    "schedule",
    "flamma.schedules",
    {
        "constant": _ConstantSchedule,
        "cosine": CosineSchedule,
        "step": _StepSchedule,
        "warm-up": _WarmUpSchedule,
    },
)
"""All schedules by name."""


_Rate = Union[float, "Tensor"]
"""A learning rate, or one for each client of a stack."""

DECAY_BOUNDS = Between(0, 1000)
"""Of weight decay; useful ones are far below 1."""


class _Optimiser(Protocol):
    """Moves weights by a gradient.

    ``vectors`` is how many vectors of the length of the weights it remembers between mini-batches;
    they are zero when a client begins to train, in every round. ``decouples_decay`` is whether
    weight decay shrinks the weights beside the step, not through the gradient.
    """

    @property
    def vectors(self) -> int:
        """How many vectors it remembers."""
        ...

    @property
    def decouples_decay(self) -> bool:
        """Whether weight decay is no part of the gradient."""
        ...

    def move(
        self, weights: Tensor, gradient: Tensor, memory: Sequence[Tensor], steps: int, rate: _Rate
    ) -> None:
        """Take the step number ``steps`` (from 1) with the step size ``rate``, in place."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent, with ``training.momentum``."""

    vectors: ClassVar[int] = 0
    decouples_decay: ClassVar[bool] = False

    def move(
        self, weights: Tensor, gradient: Tensor, memory: Sequence[Tensor], steps: int, rate: _Rate
    ) -> None:
        """Set w ← w - η g."""
        if isinstance(rate, float):
            weights.sub_(gradient, alpha=rate)
        else:
            weights.sub_(gradient * rate)


@dataclass(frozen=True)
class Adam(CheckedOptions):
    """Adam: steps in units of the gradient's own running size; weight decay is in the gradient.

    Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015, Algorithm 1.

    Parameters
    ----------
    betas : (float, float)
        β₁ and β₂, how much of the running means of the gradient and of its square each step keeps.
    epsilon : float
        ε, added to the root of the latter.
    """

    betas: Annotated[tuple[float, float], Between(0, 1, without="high")] = (0.9, 0.999)
    epsilon: Annotated[float, Between(0, 1, without="low")] = 1e-8

    vectors: ClassVar[int] = 2
    decouples_decay: ClassVar[bool] = False

    def move(
        self, weights: Tensor, gradient: Tensor, memory: Sequence[Tensor], steps: int, rate: _Rate
    ) -> None:
        """Set w ← w - η m̂ / (√v̂ + ε), where m̂ and v̂ are free of the bias to their start at 0."""
        mean, square = memory
        first, second = self.betas
        mean.mul_(first).add_(gradient, alpha=1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square / (1 - second**steps)).sqrt_().add_(self.epsilon)
        weights.sub_(root.reciprocal_().mul_(mean).mul_(rate / (1 - first**steps)))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: w ← (1 - η λ) w before each step.

    Loshchilov and Hutter, Decoupled weight decay regularization, ICLR 2019, Algorithm 2.
    """

    decouples_decay: ClassVar[bool] = True


OPTIMISERS: Registry[type[_Optimiser]] = Registry(
    "optimiser", "flamma.optimisers", {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
)
"""All optimisers by name."""


@dataclass(frozen=True)
class UpdateRule(CheckedOptions):
    """What is done with the gradient of a mini-batch besides SGD's step and momentum.

    Parameters
    ----------
    weight_decay : float
        λ. It adds λ w to the gradient (the gradient of λ/2 ||w||²), or shrinks the weights if the
        optimiser decouples it.
    clip : float, optional
        The largest norm that the gradient of a mini-batch's loss may have over all weights; a
        longer one is scaled down to it. Weight decay, the proximal term and a correction are
        added afterwards.
    optimiser : Sgd, Adam or AdamW
        Takes the step.
    """

    weight_decay: Annotated[float, DECAY_BOUNDS] = 0.0
    clip: Annotated[float | None, above(0)] = None
    optimiser: _Optimiser = Sgd()

    @property
    def is_sgd(self) -> bool:
        """Whether steps are those of SGD."""
        return isinstance(self.optimiser, Sgd)

    def check_momentum(self, momentum: float) -> None:
        """Refuse a momentum that the optimiser does not have."""
        if momentum and not self.is_sgd:
            raise ConfigError(
                "momentum is that of the optimiser sgd: leave it out, or use sgd; the first of "
                "Adam's betas plays its part."
            )

    def step(
        self,
        weights: Tensor,
        gradient: Tensor,
        memory: Sequence[Tensor],
        steps: int,
        rate: _Rate,
        scale: float = 1.0,
    ) -> None:
        """Decay the weights and take a step, in place; ``scale`` is that of the gradient."""
        if self.weight_decay and not self.optimiser.decouples_decay:
            gradient.add_(weights, alpha=self.weight_decay * scale)
        if self.is_sgd:  # the gradient may be the velocity, which keeps its scale
            rate = rate / scale
        elif scale != 1:
            gradient.div_(scale)
        if self.weight_decay and self.optimiser.decouples_decay:
            weights.mul_(1 - rate * self.weight_decay)
        self.optimiser.move(weights, gradient, memory, steps, rate)


PLAIN_RULE = UpdateRule()
"""SGD without weight decay and clipping."""
