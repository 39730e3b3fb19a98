"""Trains one client after another with torch, on a flat vector."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flamma.errors import ConfigError, FlammaError
from flamma.models.flat import FlatModel
from flamma.models.weights import takes_whole_numbers
from flamma.numerics import total
from flamma.tasks import PLAIN_MEASURES, Measures, refuse_negative
from flamma.tasks.base import SampleMarks
from flamma.training import (
    Floats32,
    TooSlow,
    Trained,
    TrainingJob,
    augmentation_stream,
    batches_of,
    check_job,
    check_sgd,
    scores_start,
    stream_of,
)
from flamma.training.augmentations import Augment, augmented
from flamma.training.devices import SINGLE_PRECISION, Precision, pick_device
from flamma.training.optimisers import PLAIN_RULE, UpdateRule
from flamma.types import Inputs, LocalWork, Params, Targets

_BOUND_MARGIN = 0.2
"""The distance ε from its bound M at which a loss stops to increase its weight, M / ε.

It plays the part of ε in PropFair (Zhang et al., Proportional fairness in federated learning,
TMLR 2023), where the logarithm is continued by a line: a loss of M or more would have none.
"""

# The objective of a mini-batch: its mean loss, or a function of its samples' losses.


def transforms(task: LocalWork) -> bool:
    """Return whether a task minimises something else than the mean loss."""
    return task.terms.objective.tilt != 0 or task.terms.objective.bound < math.inf


def _objective(
    outputs: Tensor, targets: Tensor, task: LocalWork, measures: Measures = PLAIN_MEASURES
) -> Tensor:
    """Return a number whose gradient is that of a task's objective on a mini-batch."""
    if not transforms(task):
        return measures.mean_loss(outputs, targets)
    losses = measures.losses(outputs, targets)
    shares = torch.full_like(losses, 1 / losses.numel())
    [weights] = sample_weights(losses.detach()[None], shares[None], [task])
    total: Tensor = (losses * weights).sum()
    return total


def sample_weights(losses: Tensor, shares: Tensor, tasks: Sequence[LocalWork]) -> Tensor:
    """Return the weight of each sample's gradient in that of its client's objective.

    A tilt t weights them by the softmax of t times their losses, the gradient of the tilted loss
    (1/t) log mean exp(t ℓ_j) (Li et al., Tilted empirical risk minimization, ICLR 2021). A bound M
    multiplies them by M / (M - ℓ) with their mean loss ℓ, the gradient of -M log(1 - ℓ / M)
    (PropFair; see :data:`_BOUND_MARGIN`).

    Parameters
    ----------
    losses, shares : Tensor
        A row per client: the losses, and the weights in the mean loss, 0 for padding.
    tasks : sequence of LocalWork
        Those of the clients.
    """

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=losses.dtype, device=losses.device)[:, None]

    tilts = column([task.terms.objective.tilt for task in tasks])
    bounds = column([task.terms.objective.bound for task in tasks])
    # Relative to the loss with the largest weight, no exponent is above 0.
    padding = torch.where(tilts > 0, -math.inf, math.inf)
    real = torch.where(shares > 0, losses, padding)
    extreme = torch.where(tilts > 0, real.amax(1, keepdim=True), real.amin(1, keepdim=True))
    powers = torch.where(shares > 0, (tilts * (losses - extreme)).exp(), 0.0)
    tilted = powers / powers.sum(1, keepdim=True)
    factors = bounds / (bounds - (losses * shares).sum(1, keepdim=True)).clamp(min=_BOUND_MARGIN)
    weighted = shares * torch.where(bounds < math.inf, factors, 1.0)
    return torch.where(tilts != 0, tilted, weighted)


# The steps of one client's training, on the flat vector of a model.


class _FlatSteps:
    """Makes steps of the gradients that backward passes leave in a vector.

    Parameters
    ----------
    rule : UpdateRule
        How.
    momentum : float
        Of SGD, from zero velocity.
    weights, gradient : Tensor
        The trained weights, and what backward passes add to.
    scale : float
        By which the loss, and so the gradient, is multiplied.
    """

    def __init__(
        self, rule: UpdateRule, momentum: float, weights: Tensor, gradient: Tensor, scale: float
    ) -> None:
        self._rule, self._momentum, self._scale = rule, momentum, scale
        self._gradient = gradient
        self.memory = [torch.zeros_like(weights) for _ in range(rule.optimiser.vectors)]
        # Unless it is clipped, the gradient doubles as the velocity: a backward pass adds to it.
        apart = momentum and rule.clip is not None
        self._velocity = torch.zeros_like(weights) if apart else None
        self.count = 0
        gradient.zero_()

    def prepare(self) -> None:
        """Make the gradient ready for a backward pass."""
        if self._momentum and self._velocity is None:
            self._gradient.mul_(self._momentum)
        else:
            self._gradient.zero_()

    def clip(self) -> None:
        """Scale the gradient of a mini-batch down to the largest norm that it may have."""
        if self._rule.clip is None:
            return
        clip_rows([self._gradient[None]], self._rule.clip * self._scale)
        if self._velocity is not None:
            self._gradient.add_(self._velocity, alpha=self._momentum)

    def keep_velocity(self) -> None:
        """Remember, after a step, the velocity that clipping keeps apart from the gradient."""
        if self._velocity is not None:
            self._velocity.copy_(self._gradient)


def clip_rows(parts: Sequence[Tensor], longest: float) -> None:
    """Scale the gradients of stacked clients down to the largest norm, separately and in place.

    Parameters
    ----------
    parts : sequence of Tensor
        A tensor per part of the model, with a row per client.
    longest : float
        The largest norm over all parts of a client.
    """
    # No square of a float32 overflows in double precision, which Apple's GPUs do not have.
    precise = torch.float32 if parts[0].device.type == "mps" else torch.float64
    norms = torch.stack(
        [torch.linalg.vector_norm(p.flatten(1), dim=1, dtype=precise) for p in parts]
    )
    factors = (longest / torch.linalg.vector_norm(norms, dim=0)).clamp(max=1.0).float()
    for part in parts:
        part.mul_(factors.view(-1, *[1] * (part.dim() - 1)))


SAMPLES_SCORED_AT_ONCE = 512
"""A constant, because the bits of a score may depend on the batch it is computed in."""

_SAMPLES_SCORED_BY = 16
"""Batches that are scored are filled up to a multiple of this.

A site scores its samples alone, the local engine those of all clients together; products and
group norms of fewer samples may add in another order.
"""

_IMAGE_DIMENSIONS = 4
"""Samples, channels, height and width."""


class TorchTrainer:
    """Trains clients and scores weights one after another, in the same memory.

    Parameters
    ----------
    model : callable or FlatModel
        The model, or a function that makes its module.
    batch_size : int
        Samples of a mini-batch; the last one of an epoch may be smaller.
    momentum : float
        Momentum of SGD; every client starts from zero velocity.
    device : str
        ``auto`` is the GPU if there is one, else the CPU. A :class:`FlatModel` stays where it is.
    precision : Precision
        The precision of training; scoring is in float32.
    measures : Measures
        The loss that is trained by, and what :meth:`predict` marks; cross-entropy and whether a
        sample is classified right by default.
    rule : UpdateRule
        The optimiser, weight decay and clipping.
    augment : callable, optional
        Changes the samples of a mini-batch at random before they are trained on.

    Notes
    -----
    One mini-batch of SGD is w ← w - η v with v ← m v + ∇f(w) + c + μ (w - w_received) + λ w, where
    c is the correction of the job, if it has one, λ the weight decay, and the rest the gradient of
    FedProx's local objective f(w) + μ/2 ||w - w_received||² (Li et al., Federated optimization in
    heterogeneous networks, MLSys 2020). Other optimisers make their step of the same sum without
    m v. Only ∇f(w) is clipped.
    """

    name = "torch"
    width = 1

    def __init__(
        self,
        model: Callable[[], nn.Module] | FlatModel,
        batch_size: int,
        momentum: float = 0.0,
        device: str = "cpu",
        precision: Precision = SINGLE_PRECISION,
        measures: Measures = PLAIN_MEASURES,
        rule: UpdateRule = PLAIN_RULE,
        augment: Augment | None = None,
    ) -> None:
        check_sgd(batch_size, momentum)
        rule.check_momentum(momentum)
        if not isinstance(model, FlatModel):
            model = FlatModel(model(), pick_device(device))
        self.model = model
        self.batch_size = batch_size
        self.momentum = momentum
        self.precision = precision
        self.measures = measures
        self._takes_whole_numbers: bool | None = None
        self.rule = rule
        self.augment = augment
        self._training = model.module.train().training
        # Images with their channels last make convolution and pooling much faster on CPUs, LeNet-5
        # as a whole by a third or more, and group norm slower. Modules of other packages may rely
        # on the usual order (by ``view``), so they keep it.
        parts = list(model.module.modules())
        known = all(type(part).__module__.startswith(("torch.nn.", "flamma.")) for part in parts)
        convolves = any(isinstance(part, nn.Conv2d) for part in parts)
        grouped = any(isinstance(part, nn.GroupNorm) for part in parts)
        self._channels_last = known and convolves and not grouped

    def train(
        self,
        params: Params,
        x: Inputs,
        y: Targets,
        task: LocalWork,
        rng: np.random.Generator,
        deadline: float | None = None,
    ) -> tuple[Params, float]:
        """Return the weights after a client's task, and the loss of the weights it received.

        Parameters
        ----------
        params : Params
            The received weights.
        x, y : arrays
            The client's training samples and labels.
        task : LocalWork
            Epochs or mini-batches, step size, proximal weight, and whether the loss is wanted
            (it is NaN otherwise).
        rng : numpy.random.Generator
            Shuffles the samples in every epoch; random layers (dropout) use a stream
            spawned from it.
        deadline : float, optional
            A value of :func:`time.monotonic`, checked between mini-batches.
        """
        job = TrainingJob(task, x, y, rng)
        loss = self._load(params, job)
        if task.terms.train:
            self._descend(params, job, deadline)
        loss = self._reported_loss(job, loss, deadline)
        return self.model.read(), loss

    def _load(self, params: Params, job: TrainingJob) -> float:
        """Put the weights that a job starts from into the model; return their loss if wanted."""
        layout = self.model.layout
        check_job(job, layout.size, layout.trainable_size)
        self.model.load(job.start(params))
        return self._loaded_loss(job) if scores_start(job.task) else math.nan

    def _reported_loss(self, job: TrainingJob, loss: float, deadline: float | None) -> float:
        """Return the loss that a job reports, if it has ended in time."""
        if job.task.terms.report_loss == "trained":
            loss = self._loaded_loss(job)
        if deadline is not None and time.monotonic() > deadline:
            raise TooSlow
        return loss

    def _descend(self, params: Params, job: TrainingJob, deadline: float | None) -> None:
        """Take the steps of a job from the weights that the model has now."""
        task, model = job.task, self.model
        module, weights, gradient = model.module, model.weights, model.gradient
        received = difference = weights
        if task.terms.objective.proximal:
            # A copy, for the common weights may be the memory of this model.
            received = self._tensor(job.received(params)[: weights.numel()]).clone()
            difference = torch.empty_like(weights)
        correction = job.vectors.correction
        added = None if correction is None else self._tensor(correction)
        samples = self._rows(self._tensor(self._inputs(job.x)))
        targets = self._tensor(job.y)
        scale = self.precision.loss_scale  # of the gradient too, hence of the velocity
        noise = None if self.augment is None else augmentation_stream(job)
        self._set_mode(training=True)
        steps = _FlatSteps(self.rule, self.momentum, weights, gradient, scale)
        with _seeded(stream_of(job), model.device):
            for chosen in batches_of(job, self.batch_size):
                if deadline is not None and time.monotonic() > deadline:
                    raise TooSlow
                batch = torch.from_numpy(chosen).to(model.device)
                rows = samples.index_select(0, batch)
                if self.augment is not None and noise is not None:
                    changed = augmented(self.augment, job.x[chosen], noise)
                    rows = self._rows(self._tensor(changed))
                steps.prepare()
                with self.precision.autocast(model.device):
                    outputs = module(self._images(rows))
                wanted = targets.index_select(0, batch)
                loss_now = _objective(outputs.float(), wanted, task, self.measures)
                torch.autograd.backward(loss_now if scale == 1 else loss_now * scale)
                steps.clip()
                if added is not None:
                    gradient.add_(added, alpha=scale)
                if task.terms.objective.proximal:
                    torch.sub(weights, received, out=difference)
                    gradient.add_(difference, alpha=task.terms.objective.proximal * scale)
                steps.count += 1
                rate = float(task.learning_rate)
                self.rule.step(weights, gradient, steps.memory, steps.count, rate, scale)
                steps.keep_velocity()

    def train_each(
        self, params: Params, jobs: Sequence[TrainingJob], time_limit: float | None = None
    ) -> Iterator[tuple[int, Trained]]:
        """Yield the number and the result of every job, one after the other."""
        for number, job in enumerate(jobs):
            begin = time.monotonic()
            deadline = None if time_limit is None else begin + time_limit
            try:
                loss = self._load(params, job)
                if job.task.terms.train:
                    self._descend(params, job, deadline)
                loss = self._reported_loss(job, loss, deadline)
                done = Trained(self.model.view(), loss, time.monotonic() - begin)
            except Exception as error:
                done = Trained(None, seconds=time.monotonic() - begin, error=error)
            yield number, done

    def predict(self, params: Params, x: Inputs, y: Targets) -> tuple[Floats32, SampleMarks]:
        """Return each sample's loss under the given weights, and its mark for the metric."""
        self.model.load(params)
        return self.score_loaded(x, y)

    def score_loaded(self, x: Inputs, y: Targets) -> tuple[Floats32, SampleMarks]:
        """Do what :meth:`predict` does, with the weights that the model has now."""
        measures, metric = self.measures, self.measures.metric
        losses = np.empty(len(y), dtype=np.float32)
        marks = np.empty((len(y), *metric.mark_shape), dtype=metric.mark_type)
        x = self._inputs(x)
        self._set_mode(training=False)
        with torch.inference_mode():
            for start in range(0, len(y), SAMPLES_SCORED_AT_ONCE):
                part = slice(start, start + SAMPLES_SCORED_AT_ONCE)
                rows = x[part]
                if missing := -len(rows) % _SAMPLES_SCORED_BY:
                    rows = np.concatenate((rows, np.repeat(rows[:1], missing, axis=0)))
                # A copy always has the same alignment, on which the last bits may depend.
                samples = torch.tensor(rows, device=self.model.device)
                targets = torch.tensor(y[part], device=self.model.device)
                outputs = self.model.module(self._images(self._rows(samples)))[: len(targets)]
                each = measures.losses(outputs, targets)
                losses[part] = each.cpu().numpy()
                marks[part] = metric.mark(outputs, targets, each).cpu().numpy()
        if measures.loss is not None:
            refuse_negative(losses)
        return losses, marks

    def _loaded_loss(self, job: TrainingJob) -> float:
        """Return the loss of the weights that the model has now on a client's samples."""
        losses, _ = self.score_loaded(job.x, job.y)
        return total(losses) / len(job.y) if len(job.y) else math.nan

    def _set_mode(self, training: bool) -> None:
        # Setting the mode of all modules takes longer than a training step of a small model.
        if training is not self._training:
            self.model.module.train(training)
            self._training = training

    def _rows(self, images: Tensor) -> Tensor:
        """Return samples so that rows selected by index have the memory layout the layers want."""
        if not self._channels_last or images.dim() != _IMAGE_DIMENSIONS:
            return images
        return images.permute(0, 2, 3, 1).contiguous()

    def _images(self, rows: Tensor) -> Tensor:
        """Return selected rows in the shape that the module expects."""
        if not self._channels_last or rows.dim() != _IMAGE_DIMENSIONS:
            return rows
        return rows.permute(0, 3, 1, 2)

    def _inputs(self, x: Inputs) -> Inputs:
        """Return samples as the model takes them: whole numbers as they are only if it can."""
        if x.dtype.kind != "i" or not len(x):
            return x
        if self._takes_whole_numbers is None:
            self._set_mode(training=False)
            self._takes_whole_numbers = takes_whole_numbers(self.model.module, self._tensor(x[:1]))
        return x if self._takes_whole_numbers else x.astype(np.float32)

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        # torch has no read-only tensors and warns of read-only arrays.
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        return tensor.to(self.model.device)


@contextmanager
def _seeded(rng: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators from ``rng`` while in scope, for layers such as dropout.

    The seed comes from a spawned stream, which draws nothing from ``rng`` itself: the order of
    the samples is the same whether or not a model has random layers.
    """
    seed = int(rng.spawn(1)[0].integers(2**63))
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        # torch.manual_seed would also queue seeds for every GPU there might be, which is slow.
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


# Tries a model before a run: whether its outputs suit the task and the metric.

_TRIAL_SAMPLES = 2


def tried(measures: Measures, model: FlatModel, x: Inputs, y: Targets) -> Measures:
    """Return measures that know the shape of a model's outputs.

    What lanes could do by themselves is not tried: those are labels, and any classifier fits them.

    Parameters
    ----------
    measures : Measures
        What the run measures.
    model : FlatModel
        Its model, whose weights stay as they are.
    x, y : arrays
        Some samples; zeros are tried where there are none.
    """
    if measures.metric.marks_right and not measures.unsupported_reason():
        return measures
    samples = (x[:_TRIAL_SAMPLES], y[:_TRIAL_SAMPLES])
    if not len(x):
        samples = measures.task.blank(_TRIAL_SAMPLES, tuple(x.shape[1:]))
    inputs, targets = (torch.tensor(part, device=model.device) for part in samples)
    module, metric = model.module.eval(), measures.metric
    try:
        if not inputs.is_floating_point() and not takes_whole_numbers(module, inputs):
            inputs = inputs.float()
        with torch.no_grad():
            outputs = module(inputs)
            marks = metric.mark(outputs, targets, measures.losses(outputs, targets))
    except FlammaError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:  # whatever a module or a function of the user's may raise
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"the model cannot be used for {measures.task.name} with samples of shape "
            f"{tuple(x.shape[1:])}: {type(error).__name__}: {reason}."
        ) from error
    if not metric.takes_outputs:
        return measures
    return replace(measures, metric=replace(metric, mark_shape=tuple(marks.shape[1:])))
