"""A stack: many clients whose weights are the rows of one tensor per layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from flamma.models.flat import FlatModel
from flamma.training.jobs import Floats32, TrainingJob
from flamma.training.memory import saved_bytes
from flamma.training.precision import Precision
from flamma.types import Ints, LocalTask

PROBE_SAMPLES = 8
"""The mini-batch by which the memory of activations is measured."""

NO_BATCH: Ints = np.empty(0, dtype=np.int64)


@dataclass(eq=False)
class StackedClient:
    """A client of a stack: its job, the mini-batches to come, and where its samples begin."""

    number: int
    job: TrainingJob
    loss: float
    batches: Iterator[Ints]
    offset: int = 0
    batch: Ints = field(default_factory=lambda: NO_BATCH)

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
        The trained parts, their velocity (empty without momentum), and frozen parameters and
        buffers.
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
        )


class StackedModel:
    """Steps of SGD for all members of a stack, by ``vmap`` over their weights.

    Parameters
    ----------
    model : FlatModel
        Its vector is what clients receive; training does not change it.
    momentum : float
        Momentum of SGD.
    precision : Precision
        The precision of the forward and backward passes.
    """

    def __init__(self, model: FlatModel, momentum: float, precision: Precision) -> None:
        self.model = model
        self.momentum = momentum
        self.precision = precision
        module, layout = model.module, model.layout
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        trainable = layout.trainable.count(True)
        self._trained = layout.names[:trainable]
        # Buffers that are not part of the vector have a row per client too, but are not returned.
        unsaved = [name for name in tensors if name not in layout.names]
        self._others = (*layout.names[trainable:], *unsaved)
        self._returned = len(layout.names) - trainable
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}

    def start(self, members: Sequence[StackedClient]) -> Stack:
        """Return a stack of clients that have received the model's present weights."""
        for member, after in zip(members, np.cumsum([m.job.y.size for m in members]), strict=True):
            member.offset = int(after) - member.job.y.size
        device = self.model.device
        weights = [self._repeated(name, len(members)) for name in self._trained]
        return Stack(
            members,
            weights,
            [torch.zeros_like(part) for part in weights] if self.momentum else [],
            [self._repeated(name, len(members)) for name in self._others],
            torch.from_numpy(np.concatenate([m.job.x for m in members])).to(device),
            torch.from_numpy(np.concatenate([m.job.y for m in members])).to(device),
        )

    def step(self, stack: Stack) -> None:
        """Take one step of SGD with the mini-batch that every member has drawn.

        If this raises, weights and mini-batches are as before, so that the step can be repeated.
        """
        weights = [part.detach().requires_grad_() for part in stack.weights]
        others = [part.clone() for part in stack.others]
        losses = self._losses(stack, weights, others)
        # One client's loss depends on its own weights only, so the sum has everyone's gradient.
        gradients = torch.autograd.grad(losses.sum(), weights, materialize_grads=True)
        with torch.no_grad():
            self._update(stack, gradients)
            for before, after in zip(stack.others, others, strict=True):
                before.copy_(after)
        for member in stack.members:
            member.batch = NO_BATCH

    def bytes_per_client(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return estimates of the memory that a client takes, and each sample of its mini-batch.

        Weights, buffers and velocity stay from step to step. A step adds the gradient, another
        vector for the update, and what autograd keeps, which a forward pass of one client
        measures and to which the backward pass adds about half as much again.
        """
        task = LocalTask(0, 0, epochs=1, learning_rate=0.0)
        x = np.zeros((PROBE_SAMPLES, *shape), dtype=np.float32)
        job = TrainingJob(task, x, np.zeros(PROBE_SAMPLES, np.int64), np.random.default_rng(0))
        client = StackedClient(0, job, math.nan, iter(()), batch=np.arange(PROBE_SAMPLES))
        stack = self.start([client])
        weights = [part.detach().requires_grad_() for part in stack.weights]
        state = [*weights, *stack.others]
        saved = saved_bytes(lambda: self._losses(stack, weights, stack.others), state)
        vectors = 4 if self.momentum else 3
        trained = vectors * sum(part.nbytes for part in weights)
        others = 2 * sum(part.nbytes for part in stack.others)
        return trained + others, 3 * saved // (2 * PROBE_SAMPLES)

    def read(self, stack: Stack, rows: Sequence[int]) -> Floats32:
        """Return the flat vectors of some members."""
        chosen = torch.tensor(rows, device=self.model.device)
        parts = [*stack.weights, *stack.others[: self._returned]]
        flat = torch.cat([part.index_select(0, chosen).reshape(len(rows), -1) for part in parts], 1)
        vectors: Floats32 = flat.cpu().numpy()
        return vectors

    def _losses(self, stack: Stack, weights: list[Tensor], others: list[Tensor]) -> Tensor:
        chosen, shares = self._mini_batches(stack.members)
        samples = stack.samples.index_select(0, chosen.flatten())
        samples = samples.view(*chosen.shape, *samples.shape[1:])
        losses: Tensor = vmap(self._loss)(weights, others, samples, stack.labels[chosen], shares)
        return losses

    def _loss(
        self,
        weights: list[Tensor],
        others: list[Tensor],
        samples: Tensor,
        labels: Tensor,
        shares: Tensor,
    ) -> Tensor:
        names = (*self._trained, *self._others)
        tensors = dict(zip(names, [*weights, *others], strict=True))
        with self.precision.autocast(self.model.device):
            logits: Tensor = functional_call(self.model.module, tensors, (samples,))
        return (cross_entropy(logits.float(), labels, reduction="none") * shares).sum()

    def _mini_batches(self, members: Sequence[StackedClient]) -> tuple[Tensor, Tensor]:
        """Return which samples each member takes, and the weight of their losses.

        Smaller mini-batches are filled up with their own first sample at weight 0.
        """
        size = max(member.batch.size for member in members)
        chosen = np.empty((len(members), size), dtype=np.int64)
        shares = np.zeros((len(members), size), dtype=np.float32)
        for row, member in enumerate(members):
            own = member.batch.size
            chosen[row] = member.offset + member.batch[0]
            chosen[row, :own] = member.offset + member.batch
            shares[row, :own] = self.precision.loss_scale / own
        device = self.model.device
        return torch.from_numpy(chosen).to(device), torch.from_numpy(shares).to(device)

    def _update(self, stack: Stack, gradients: Sequence[Tensor]) -> None:
        tasks = [member.job.task for member in stack.members]
        device = self.model.device
        rates = torch.tensor([task.learning_rate for task in tasks], device=device)
        proximal = torch.tensor([task.proximal for task in tasks], device=device)
        pulled = any(task.proximal for task in tasks)
        for number, (weights, gradient) in enumerate(zip(stack.weights, gradients, strict=True)):
            per_client = (-1, *[1] * (weights.dim() - 1))
            step = gradient
            if self.precision.loss_scale != 1:
                step = step.div_(self.precision.loss_scale)
            if self.momentum:
                step = stack.velocity[number].mul_(self.momentum).add_(step)
            if pulled:
                received = self._tensors[self._trained[number]]
                step.add_((weights - received).mul_(proximal.view(per_client)))
            weights.sub_(step * rates.view(per_client))

    def _repeated(self, name: str, count: int) -> Tensor:
        tensor = self._tensors[name]
        return tensor.expand(count, *tensor.shape).clone()
