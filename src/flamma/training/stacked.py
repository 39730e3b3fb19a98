"""A stack: many clients whose weights are the rows of one tensor per layer."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, vmap

from flamma.errors import ConfigError, FlammaError
from flamma.models.flat import FlatModel
from flamma.seeding import StreamKey
from flamma.tasks import PLAIN_MEASURES, Measures
from flamma.tasks.base import Task
from flamma.training import (
    Floats32,
    TooSlow,
    Trained,
    TrainingJob,
    batch_count,
    batches_of,
    check_job,
    scores_start,
)
from flamma.training.devices import (
    SINGLE_PRECISION,
    Precision,
    free_bytes,
)
from flamma.training.optimisers import PLAIN_RULE, UpdateRule
from flamma.training.torch_trainer import TorchTrainer, clip_rows, sample_weights, transforms
from flamma.types import Ints, LocalWork, Params, Terms

_NO_BATCH: Ints = np.empty(0, dtype=np.int64)


@dataclass(eq=False)
class _StackedClient:
    """A client of a stack: its job, the mini-batches to come, and where its samples begin.

    ``steps`` is how many it has taken, as many as all others of its stack.
    """

    number: int
    job: TrainingJob
    loss: float
    batches: Iterator[Ints]
    offset: int = 0
    steps: int = 0
    batch: Ints = field(default_factory=lambda: _NO_BATCH)

    @property
    def nbytes(self) -> int:
        """The bytes of its samples and of the vectors that only it has."""
        job = self.job
        own = (job.x, job.y, job.vectors.received, job.vectors.correction)
        return sum(array.nbytes for array in own if array is not None)

    def draw(self) -> bool:
        """Draw the next mini-batch unless one is waiting; return False if there are no more."""
        if not self.batch.size:
            self.batch = next(self.batches, _NO_BATCH)
        return bool(self.batch.size)


@dataclass(frozen=True, eq=False)
class _Stack:
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

    members: Sequence[_StackedClient]
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

    def rows(self, keep: Sequence[int]) -> _Stack:
        """Return a stack of some of the members."""
        chosen = torch.tensor(keep, dtype=torch.int64, device=self.samples.device)
        members = [self.members[row] for row in keep]
        return replace(self._each(lambda part: part.index_select(0, chosen)), members=members)

    def halves(self, seconds: float) -> tuple[_Stack, _Stack]:
        """Return both halves of the members, put aside in the memory of the CPU."""
        half = len(self) // 2
        first = self._each(lambda part: part[:half].to("cpu", copy=True))
        second = self._each(lambda part: part[half:].to("cpu", copy=True))
        return (
            replace(first, members=self.members[:half], seconds=seconds),
            replace(second, members=self.members[half:], seconds=seconds),
        )

    def to(self, device: torch.device) -> _Stack:
        """Return the stack on a device."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> _Stack:
        return replace(
            self,
            weights=[change(part) for part in self.weights],
            velocity=[change(part) for part in self.velocity],
            others=[change(part) for part in self.others],
            received=[change(part) for part in self.received],
            correction=[change(part) for part in self.correction],
            memory=[change(part) for part in self.memory],
        )


# The memory that the training of one client takes.

_FREE_MEMORY_SHARE = 0.7
"""The share of the free memory that a stack may take; estimates and allocators are not exact."""


def _saved_bytes(forward: Callable[[], object], leave_out: Iterable[Tensor]) -> int:
    """Return the memory that autograd keeps of a forward pass for the backward pass.

    Parameters
    ----------
    forward : callable
        The pass.
    leave_out : iterable of Tensor
        What is there anyway, such as the weights.
    """
    saved: dict[int, int] = {}
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)  # else the next tensor may take its address
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    for tensor in leave_out:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    del result
    return sum(saved.values())


def _out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory of a device is exhausted."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)  # the CPU's and Apple's allocators raise a plain RuntimeError
    return "out of memory" in text or "can't allocate memory" in text


# Steps of all clients of a stack at once.

_PROBE_SAMPLES = 8
"""The mini-batch by which the memory of activations is measured."""


class _StackedModel:
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

    def start(self, members: Sequence[_StackedClient]) -> _Stack:
        """Return a stack of clients; the model's present weights are the common received ones."""
        common = self.model.view()
        for member, after in zip(members, np.cumsum([len(m.job.y) for m in members]), strict=True):
            member.offset = int(after) - len(member.job.y)
        device = self.model.device
        jobs = [member.job for member in members]
        names = (*self._trained, *self._others)
        starts = [job.start(common) for job in jobs]
        own = self._parts(starts) if any(start is not common for start in starts) else []
        repeated = (self._tensors[name] for name in names[len(own) :])
        parts = [*own, *(part.expand(len(members), *part.shape).clone() for part in repeated)]
        weights, others = parts[: len(self._trained)], parts[len(self._trained) :]
        received: list[Tensor] = []
        pulled = [job for job in jobs if job.task.terms.objective.proximal]
        if any(job.vectors.received is not None for job in pulled):
            received = self._parts([job.received(common) for job in jobs], len(weights))
        corrections: list[Tensor] = []
        if any(job.vectors.correction is not None for job in jobs):
            zeros = np.zeros(self.model.layout.trainable_size, dtype=np.float32)
            added = (job.vectors.correction for job in jobs)
            corrections = self._parts(
                [zeros if one is None else one for one in added], len(weights)
            )
        return _Stack(
            members,
            weights,
            [torch.zeros_like(part) for part in weights] if self.momentum else [],
            others,
            torch.from_numpy(np.concatenate([job.x for job in jobs])).to(device),
            torch.from_numpy(np.concatenate([job.y for job in jobs])).to(device),
            received,
            corrections,
            [torch.zeros_like(w) for w in weights for _ in range(self.rule.optimiser.vectors)],
        )

    def step(self, stack: _Stack) -> None:
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
            member.batch = _NO_BATCH
            member.steps += 1

    def bytes_per_client(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return estimates of the memory that a client takes, and each sample of its mini-batch.

        Weights, buffers and velocity stay from step to step. A step adds the gradient, another
        vector for the update, and what autograd keeps, which a forward pass of one client
        measures and to which the backward pass adds about half as much again.
        """
        task = LocalWork(Terms(0, 0), epochs=1, learning_rate=0.0)
        x, y = self.measures.task.blank(_PROBE_SAMPLES, tuple(shape))
        job = TrainingJob(task, x, y, np.random.default_rng(0))
        client = _StackedClient(0, job, math.nan, iter(()), batch=np.arange(_PROBE_SAMPLES))
        stack = self.start([client])
        weights = [part.detach().requires_grad_() for part in stack.weights]
        state = [*weights, *stack.others]
        saved = _saved_bytes(lambda: self._losses(stack, weights, stack.others), state)
        vectors = (4 if self.momentum else 3) + self.rule.optimiser.vectors
        trained = vectors * sum(part.nbytes for part in weights)
        others = 2 * sum(part.nbytes for part in stack.others)
        return trained + others, 3 * saved // (2 * _PROBE_SAMPLES)

    def read(self, stack: _Stack, rows: Sequence[int]) -> Floats32:
        """Return the flat vectors of some members."""
        chosen = torch.tensor(rows, device=self.model.device)
        parts = [*stack.weights, *stack.others[: self._returned]]
        flat = torch.cat([part.index_select(0, chosen).reshape(len(rows), -1) for part in parts], 1)
        vectors: Floats32 = flat.cpu().numpy()
        return vectors

    def _losses(self, stack: _Stack, weights: list[Tensor], others: list[Tensor]) -> Tensor:
        """Return the loss of every sample of the mini-batches, times its weight."""
        chosen, shares = self._mini_batches(stack.members)
        samples = stack.samples.index_select(0, chosen.flatten())
        samples = samples.view(*chosen.shape, *samples.shape[1:])
        losses: Tensor = vmap(self._loss)(weights, others, samples, stack.labels[chosen])
        tasks = [member.job.task for member in stack.members]
        if any(transforms(task) for task in tasks):
            shares = sample_weights(losses.detach(), shares, tasks)
        return losses * (shares * self.precision.loss_scale)

    def _loss(
        self, weights: list[Tensor], others: list[Tensor], samples: Tensor, labels: Tensor
    ) -> Tensor:
        names = (*self._trained, *self._others)
        tensors = dict(zip(names, [*weights, *others], strict=True))
        with self.precision.autocast(self.model.device):
            outputs: Tensor = functional_call(self.model.module, tensors, (samples,))
        return self.measures.losses(outputs.float(), labels)

    def _mini_batches(self, members: Sequence[_StackedClient]) -> tuple[Tensor, Tensor]:
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

    def _update(self, stack: _Stack, gradients: Sequence[Tensor]) -> None:
        tasks = [member.job.task for member in stack.members]
        device = self.model.device
        rates = torch.tensor([task.learning_rate for task in tasks], device=device)
        proximal = torch.tensor([task.terms.objective.proximal for task in tasks], device=device)
        pulled = any(task.terms.objective.proximal for task in tasks)
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


# A trial of whether a model can be stacked: the same steps, one after the other.

_TRIAL_BATCH_SIZE = 3
"""The mini-batch of the trial that compares a stack with training one after the other."""

_TRIAL_DIFFERENCE = 0.03
"""How far apart both may be in the trial, as a share of the update.

Beside the kinks of a deep net, rounding alone can make a hundredth of it.
"""


def _trial_jobs(task: Task, shape: tuple[int, ...]) -> list[TrainingJob]:
    """Return a step of two clients, of which the second has a smaller mini-batch."""
    rng = np.random.default_rng(0)
    jobs = []
    for client, samples in enumerate((_TRIAL_BATCH_SIZE, _TRIAL_BATCH_SIZE - 1)):
        x, y = task.blank(samples, shape)
        if not task.takes_tokens:
            x = rng.random((samples, *shape), dtype=np.float32)
        step = LocalWork(Terms(client, 0, batches=1), epochs=0, learning_rate=0.01)
        jobs.append(TrainingJob(step, x, y, StreamKey.of(client, "trial", 0, client)))
    return jobs


def _why_different(
    trainable: int, received: Params, stacked: Mapping[int, Trained], single: Mapping[int, Trained]
) -> str:
    """Return why the clients of a trial differ from those trained alone, empty if they do not."""
    for number, one in single.items():
        many = stacked[number]
        if many.params is None or one.params is None:
            return f"vmap does not support the model ({_first_line(many.error or one.error)})"
        for part in (slice(0, trainable), slice(trainable, None)):
            update = np.linalg.norm(one.params[part] - received[part])
            rounding = 1e-6 * np.linalg.norm(received[part])
            apart = np.linalg.norm(many.params[part] - one.params[part])
            if not apart <= _TRIAL_DIFFERENCE * update + rounding:
                return (
                    "the model treats the samples of a mini-batch as a whole or keeps a state "
                    "(as batch norm does)"
                )
    return ""


def _first_line(error: Exception | None) -> str:
    """Return what an error says, up to the end of its first line or sentence."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(". ")


# Trains many clients at once with torch: one step of all of them is one call per layer.

_Result = tuple[int, Trained]

MAX_STACKED_CLIENTS = 256
"""Clients that are trained at once if the memory does not set a lower limit."""

_SAMPLES_EXPECTED = 512
"""Samples that a client is expected to have at most, before the clients are known."""


class StackedTrainer(TorchTrainer):
    """Trains the clients of a round at once, their weights stacked.

    It does what :class:`~flamma.training.torch_trainer.TorchTrainer` does, with the same
    mini-batches in the same order; the weights differ by rounding only, and so do they between
    stacks of different sizes. It is made for GPUs, which one small mini-batch leaves idle.

    The size of a stack is limited by an estimate of the memory that a client takes. If a device
    runs out of memory nevertheless, the stack is halved, and both halves go on where they were.
    A client that raises an error is separated from the others in the same way.

    Parameters
    ----------
    model : callable or FlatModel
        The model, or a function that makes its module.
    shape : sequence of int
        The shape of one sample.
    batch_size, momentum, device, precision, measures, rule
        As in :class:`~flamma.training.torch_trainer.TorchTrainer`.
    most : int
        The largest number of clients to train at once.
    sharing : int
        How many processes share the memory of the device.

    Raises
    ------
    ConfigError
        If the model cannot be stacked: ``torch.func.vmap`` does not support it, or a trial gives
        other weights than training one client after the other (batch norm, for example).
    """

    name = "stacked"

    def __init__(
        self,
        model: Callable[[], nn.Module] | FlatModel,
        shape: Sequence[int],
        batch_size: int,
        momentum: float = 0.0,
        device: str = "cpu",
        precision: Precision = SINGLE_PRECISION,
        most: int = MAX_STACKED_CLIENTS,
        sharing: int = 1,
        measures: Measures = PLAIN_MEASURES,
        rule: UpdateRule = PLAIN_RULE,
    ) -> None:
        super().__init__(model, batch_size, momentum, device, precision, measures, rule)
        self.shape = tuple(shape)
        self._most, self._sharing = most, sharing
        self._common = self.model.read()
        self._client_bytes = self._sample_bytes = 0
        self._classes = 1
        if reason := self._unsupported_reason():
            raise ConfigError(f"the trainer stacked cannot be used: {reason}.")
        self._stacked = _StackedModel(self.model, momentum, precision, measures, rule)
        self._set_mode(training=True)
        self._client_bytes, self._sample_bytes = self._stacked.bytes_per_client(self.shape)
        self.width = self._fitting([])

    def train_each(
        self, params: Params, jobs: Sequence[TrainingJob], time_limit: float | None = None
    ) -> Iterator[tuple[int, Trained]]:
        """Yield the number and the result of every job as soon as it is done.

        Jobs of about the same length are trained together, the longest first. Exhaust or drop
        the iterator before you use the trainer again.
        """
        self.model.load(params)
        self._common = params
        members = []
        for number, job in enumerate(jobs):
            try:
                members.append(self._member(number, job))
            except Exception as error:  # the failure of this client alone
                yield number, Trained(None, error=error)
        members.sort(key=lambda m: -batch_count(m.job.task, len(m.job.y), self.batch_size))
        while members:
            try:
                stack = self._start(members)
            except Exception as error:  # such as one client that does not fit into the memory
                yield members[0].number, Trained(None, members[0].loss, error=error)
                members = members[1:]
                continue
            members = members[len(stack) :]
            waiting = deque([stack])
            del stack  # one that was halved must not stay in memory
            while waiting:
                yield from self._train(waiting, time_limit)

    def _train(self, waiting: deque[_Stack], time_limit: float | None) -> Iterator[_Result]:
        """Train the first of the waiting stacks; if it fails, its halves wait in its place."""
        stack = waiting.popleft().to(self.model.device)
        begin = time.monotonic() - stack.seconds
        while len(stack):
            going = [member.draw() for member in stack.members]
            if time_limit is not None and self.model.device.type == "cuda":
                torch.cuda.synchronize(self.model.device)  # else steps would only have been queued
            seconds = time.monotonic() - begin
            if time_limit is not None and seconds > time_limit:
                yield from _failed(stack, seconds, TooSlow())
                return
            if not all(going):
                yield from self._finished(stack, going, begin)
                stack = stack.rows([row for row, goes in enumerate(going) if goes])
                continue
            error = self._step(stack)
            if error is None:
                continue
            if len(stack) > 1:
                self._note(error, len(stack))
                waiting.extendleft(reversed(stack.halves(time.monotonic() - begin)))
            else:
                yield from _failed(stack, time.monotonic() - begin, error)
            return

    def _start(self, members: Sequence[_StackedClient]) -> _Stack:
        """Return a stack of the first members, as many as fit."""
        while True:
            count = self._fitting(members)
            try:
                return self._stacked.start(members[:count])
            except Exception as error:
                if count == 1 or not _out_of_memory(error):
                    raise
                self._note(error, count)

    def _note(self, error: Exception, clients: int) -> None:
        """Make later stacks smaller if this number of clients did not fit into the memory."""
        if _out_of_memory(error):
            self._most = clients // 2
            if self.model.device.type == "cuda":  # give back what torch holds but does not use
                torch.cuda.empty_cache()
            elif self.model.device.type == "mps":
                torch.mps.empty_cache()

    def _step(self, stack: _Stack) -> Exception | None:
        """Take a step; return what went wrong, without the frames that hold its memory."""
        self._set_mode(training=True)
        try:
            self._stacked.step(stack)
        except Exception as error:
            return error.with_traceback(None)
        return None

    def _finished(self, stack: _Stack, going: Sequence[bool], begin: float) -> Iterator[_Result]:
        rows = [row for row, goes in enumerate(going) if not goes]
        vectors = self._stacked.read(stack, rows)
        for row, vector in zip(rows, vectors, strict=True):
            member = stack.members[row]
            try:
                if member.job.task.terms.report_loss == "trained":
                    member.loss = self._loss_of(vector, member.job)
                trained = Trained(vector, member.loss)
            except Exception as error:  # the failure of this client alone
                trained = Trained(None, error=error)
            yield member.number, trained._replace(seconds=time.monotonic() - begin)

    def _loss_of(self, weights: Params, job: TrainingJob) -> float:
        """Return the loss of some weights on a client's samples; the model has the common ones."""
        if not len(job.y):
            return math.nan
        try:
            losses, _ = self.predict(weights, job.x, job.y)
        finally:
            self.model.load(self._common)
        return float(np.mean(losses, dtype=np.float64))

    def _member(self, number: int, job: TrainingJob) -> _StackedClient:
        """Return a client that is ready to train, with its loss if the task wants it."""
        check_job(job, self.model.layout.size, self.model.layout.trainable_size)
        # A wrong label would abort the whole stack, and on a GPU the process.
        if job.x.shape != (len(job.y), *self.shape):
            raise FlammaError(
                f"{len(job.y)} samples of shape {self.shape} were expected, not {job.x.shape}."
            )
        labels = job.y if job.y.dtype.kind == "i" else job.y[:0]
        labels = labels[labels != self.measures.task.ignored]
        if labels.size and not (labels.min() >= 0 and labels.max() < self._classes):
            raise FlammaError(f"labels must be from 0 to {self._classes - 1}.")
        job = job._replace(x=self._inputs(job.x))
        loss = math.nan
        if scores_start(job.task):
            loss = self._loss_of(job.start(self._common), job)
        return _StackedClient(number, job, loss, batches_of(job, self.batch_size))

    def _fitting(self, members: Sequence[_StackedClient]) -> int:
        """Return how many clients fit into the free memory, at least one."""
        data = max((member.nbytes for member in members), default=0)
        samples = max((len(m.job.y) for m in members), default=_SAMPLES_EXPECTED)
        activations = self._sample_bytes * min(self.batch_size, samples)
        each = max(1, self._client_bytes + activations + data)
        free = free_bytes(self.model.device) * _FREE_MEMORY_SHARE / self._sharing
        return max(1, min(self._most, int(free / each)))

    def _unsupported_reason(self) -> str:
        """Return why the model cannot be stacked, empty if it can; the weights stay as they are.

        Two clients of different size are trained in a stack and one after the other.
        """
        received = self.model.read()
        batch_size, precision = self.batch_size, self.precision
        self.batch_size, self.precision = _TRIAL_BATCH_SIZE, SINGLE_PRECISION
        self._stacked = _StackedModel(
            self.model, self.momentum, SINGLE_PRECISION, self.measures, self.rule
        )
        try:
            self._set_mode(training=False)
            with torch.inference_mode():
                samples, _ = self.measures.task.blank(_TRIAL_BATCH_SIZE, self.shape)
                self._classes = int(self.model.module(self._tensor(samples)).shape[-1])
            jobs = _trial_jobs(self.measures.task, self.shape)
            stacked = dict(self.train_each(received, jobs))
            single = {
                number: trained._replace(
                    params=None if trained.params is None else trained.params.copy()
                )
                for number, trained in super().train_each(received, jobs)
            }
        except Exception as error:  # whatever a module may raise
            return f"the model cannot be tried ({_first_line(error)})"
        finally:
            self.batch_size, self.precision = batch_size, precision
            self.model.load(received)
        return _why_different(self.model.layout.trainable_size, received, stacked, single)


def _failed(stack: _Stack, seconds: float, error: Exception) -> Iterator[_Result]:
    for member in stack.members:
        yield member.number, Trained(None, member.loss, seconds, error)
