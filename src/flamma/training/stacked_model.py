"""Steps of all clients of a stack at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from flamma.models.flat import FlatModel
from flamma.tasks.measures import PLAIN_MEASURES, Measures
from flamma.training.flat_steps import clip_rows
from flamma.training.jobs import Floats32, TrainingJob
from flamma.training.memory import saved_bytes
from flamma.training.objectives import sample_weights, transforms
from flamma.training.optimisers import PLAIN_RULE, UpdateRule
from flamma.training.precision import Precision
from flamma.training.stack import NO_BATCH, Stack, StackedClient
from flamma.types import LocalTask, Params

PROBE_SAMPLES = 8
"""The mini-batch by which the memory of activations is measured."""


class StackedModel:
    """Steps for all members of a stack, by ``vmap`` over their weights.

    Parameters
    ----------
    model : FlatModel
        Its vector is what clients receive; training does not change it.
    momentum : float
        Momentum of SGD.
    precision : Precision
        The precision of the forward and backward passes.
    measures : Measures
        The loss to train by.
    rule : UpdateRule
        The optimiser, weight decay and clipping.
    """

    def __init__(
        self,
        model: FlatModel,
        momentum: float,
        precision: Precision,
        measures: Measures = PLAIN_MEASURES,
        rule: UpdateRule = PLAIN_RULE,
    ) -> None:
        self.model = model
        self.momentum = momentum
        self.precision = precision
        self.measures = measures
        self.rule = rule
        module, layout = model.module, model.layout
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        trainable = layout.trainable.count(True)
        self._trained = layout.names[:trainable]
        # Buffers that are not part of the vector have a row per client too, but are not returned.
        unsaved = [name for name, _ in module.named_buffers() if name not in layout.names]
        self._others = (*layout.names[trainable:], *unsaved)
        self._returned = len(layout.names) - trainable
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}

    def start(self, members: Sequence[StackedClient]) -> Stack:
        """Return a stack of clients; the model's present weights are the common received ones."""
        common = self.model.view()
        for member, after in zip(members, np.cumsum([len(m.job.y) for m in members]), strict=True):
            member.offset = int(after) - len(member.job.y)
        device = self.model.device
        jobs = [member.job for member in members]
        names = (*self._trained, *self._others)
        starts = [job.start(common) for job in jobs]
        own = self._parts(starts) if any(start is not common for start in starts) else []
        parts = [*own, *(self._repeated(name, len(members)) for name in names[len(own) :])]
        weights, others = parts[: len(self._trained)], parts[len(self._trained) :]
        return Stack(
            members,
            weights,
            [torch.zeros_like(part) for part in weights] if self.momentum else [],
            others,
            torch.from_numpy(np.concatenate([job.x for job in jobs])).to(device),
            torch.from_numpy(np.concatenate([job.y for job in jobs])).to(device),
            self._received(jobs, common),
            self._corrections(jobs),
            [torch.zeros_like(w) for w in weights for _ in range(self.rule.optimiser.vectors)],
        )

    def step(self, stack: Stack) -> None:
        """Take one step with the mini-batch that every member has drawn.

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
            member.steps += 1

    def bytes_per_client(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return estimates of the memory that a client takes, and each sample of its mini-batch.

        Weights, buffers and velocity stay from step to step. A step adds the gradient, another
        vector for the update, and what autograd keeps, which a forward pass of one client
        measures and to which the backward pass adds about half as much again.
        """
        task = LocalTask(0, 0, epochs=1, learning_rate=0.0)
        x, y = self.measures.task.blank(PROBE_SAMPLES, tuple(shape))
        job = TrainingJob(task, x, y, np.random.default_rng(0))
        client = StackedClient(0, job, math.nan, iter(()), batch=np.arange(PROBE_SAMPLES))
        stack = self.start([client])
        weights = [part.detach().requires_grad_() for part in stack.weights]
        state = [*weights, *stack.others]
        saved = saved_bytes(lambda: self._losses(stack, weights, stack.others), state)
        vectors = (4 if self.momentum else 3) + self.rule.optimiser.vectors
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
        """Return the loss of every sample of the mini-batches, times its weight."""
        chosen, shares = self._mini_batches(stack.members)
        samples = stack.samples.index_select(0, chosen.flatten())
        samples = samples.view(*chosen.shape, *samples.shape[1:])
        losses: Tensor = vmap(self._loss)(weights, others, samples, stack.labels[chosen])
        return losses * self._weights(stack, losses.detach(), shares)

    def _weights(self, stack: Stack, losses: Tensor, shares: Tensor) -> Tensor:
        """Return the weight of every sample's gradient, in the scale of the precision."""
        tasks = [member.job.task for member in stack.members]
        if any(transforms(task) for task in tasks):
            shares = sample_weights(losses, shares, tasks)
        return shares * self.precision.loss_scale

    def _loss(
        self, weights: list[Tensor], others: list[Tensor], samples: Tensor, labels: Tensor
    ) -> Tensor:
        names = (*self._trained, *self._others)
        tensors = dict(zip(names, [*weights, *others], strict=True))
        with self.precision.autocast(self.model.device):
            outputs: Tensor = functional_call(self.model.module, tensors, (samples,))
        return self.measures.losses(outputs.float(), labels)

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
            shares[row, :own] = 1 / own
        device = self.model.device
        return torch.from_numpy(chosen).to(device), torch.from_numpy(shares).to(device)

    def _update(self, stack: Stack, gradients: Sequence[Tensor]) -> None:
        tasks = [member.job.task for member in stack.members]
        device = self.model.device
        rates = torch.tensor([task.learning_rate for task in tasks], device=device)
        proximal = torch.tensor([task.proximal for task in tasks], device=device)
        pulled = any(task.proximal for task in tasks)
        steps, vectors = stack.members[0].steps + 1, self.rule.optimiser.vectors
        if self.rule.clip is not None:
            clip_rows(gradients, self.rule.clip * self.precision.loss_scale)
        for number, (weights, gradient) in enumerate(zip(stack.weights, gradients, strict=True)):
            per_client = (-1, *[1] * (weights.dim() - 1))
            step = gradient
            if self.precision.loss_scale != 1:
                step = step.div_(self.precision.loss_scale)
            if self.momentum:
                step = stack.velocity[number].mul_(self.momentum).add_(step)
            if stack.correction:
                step.add_(stack.correction[number])
            if pulled:
                own = stack.received
                received = own[number] if own else self._tensors[self._trained[number]]
                step.add_((weights - received).mul_(proximal.view(per_client)))
            memory = stack.memory[number * vectors : (number + 1) * vectors]
            self.rule.step(weights, step, memory, steps, rates.view(per_client))

    def _received(self, jobs: Sequence[TrainingJob], common: Params) -> list[Tensor]:
        if not any(job.task.proximal and job.vectors.received is not None for job in jobs):
            return []
        return self._parts([job.received(common) for job in jobs], len(self._trained))

    def _corrections(self, jobs: Sequence[TrainingJob]) -> list[Tensor]:
        corrections = [job.vectors.correction for job in jobs]
        if all(one is None for one in corrections):
            return []
        zeros = np.zeros(self.model.layout.trainable_size, dtype=np.float32)
        return self._parts(
            [zeros if one is None else one for one in corrections], len(self._trained)
        )

    def _parts(self, vectors: Sequence[Params], count: int | None = None) -> list[Tensor]:
        """Return the first parts of flat vectors of the layout, a row per vector."""
        layout, rows = self.model.layout, torch.from_numpy(np.stack(vectors))
        shapes, ends = layout.shapes[:count], np.cumsum(layout.sizes[:count]).tolist()
        return [
            rows[:, end - math.prod(shape) : end]
            .reshape(len(vectors), *shape)
            .to(self.model.device, copy=True)
            for shape, end in zip(shapes, ends, strict=True)
        ]

    def _repeated(self, name: str, count: int) -> Tensor:
        tensor = self._tensors[name]
        return tensor.expand(count, *tensor.shape).clone()
