"""A stack: many clients whose weights are the rows of one tensor per layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from flamma.training.jobs import TrainingJob
from flamma.types import Ints

NO_BATCH: Ints = np.empty(0, dtype=np.int64)


@dataclass(eq=False)
class StackedClient:
    """A client of a stack: its job, the mini-batches to come, and where its samples begin.

    ``steps`` is how many it has taken, as many as all others of its stack.
    """

    number: int
    job: TrainingJob
    loss: float
    batches: Iterator[Ints]
    offset: int = 0
    steps: int = 0
    batch: Ints = field(default_factory=lambda: NO_BATCH)

    @property
    def nbytes(self) -> int:
        """The bytes of its samples and of the vectors that only it has."""
        job = self.job
        own = (job.x, job.y, job.vectors.received, job.vectors.correction)
        return sum(array.nbytes for array in own if array is not None)

    def draw(self) -> bool:
        """Draw the next mini-batch unless one is waiting; return False if there are no more."""
        if not self.batch.size:
            self.batch = next(self.batches, NO_BATCH)
        return bool(self.batch.size)


@dataclass(frozen=True, eq=False)
class Stack:
    """The state of clients in training; row k of every tensor belongs to member k.

    Attributes
    ----------
    members : sequence of StackedClient
        The clients.
    weights, velocity, others : list of Tensor
        The trained parts, their velocity (empty without momentum), and buffers. Frozen parameters
        are those of the module, for all.
    received, correction : list of Tensor
        The trained parts of what each member received (empty if all received the same), and what
        is added to its gradient (empty if nothing is).
    memory : list of Tensor
        What the optimiser remembers: of each trained part in turn, as many tensors as it wants.
    samples, labels : Tensor
        The data of all members, one after the other.
    seconds : float
        How long the stack was trained before it was put aside.
    """

    members: Sequence[StackedClient]
    weights: list[Tensor]
    velocity: list[Tensor]
    others: list[Tensor]
    samples: Tensor
    labels: Tensor
    received: list[Tensor] = field(default_factory=list)
    correction: list[Tensor] = field(default_factory=list)
    memory: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.members)

    def rows(self, keep: Sequence[int]) -> Stack:
        """Return a stack of some of the members."""
        chosen = torch.tensor(keep, dtype=torch.int64, device=self.samples.device)
        members = [self.members[row] for row in keep]
        return replace(self._each(lambda part: part.index_select(0, chosen)), members=members)

    def halves(self, seconds: float) -> tuple[Stack, Stack]:
        """Return both halves of the members, put aside in the memory of the CPU."""
        half = len(self) // 2
        first = self._each(lambda part: part[:half].to("cpu", copy=True))
        second = self._each(lambda part: part[half:].to("cpu", copy=True))
        return (
            replace(first, members=self.members[:half], seconds=seconds),
            replace(second, members=self.members[half:], seconds=seconds),
        )

    def to(self, device: torch.device) -> Stack:
        """Return the stack on a device."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Stack:
        return replace(
            self,
            weights=[change(part) for part in self.weights],
            velocity=[change(part) for part in self.velocity],
            others=[change(part) for part in self.others],
            received=[change(part) for part in self.received],
            correction=[change(part) for part in self.correction],
            memory=[change(part) for part in self.memory],
        )
