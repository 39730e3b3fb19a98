"""Local training of many clients at once, with plain SGD."""

from __future__ import annotations

import ctypes
import math
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flamma.errors import FlammaError
from flamma.training.jobs import (
    Floats32,
    TooSlow,
    Trained,
    TrainingJob,
    check_job,
    check_sgd,
)
from flamma.training.lanes.library import (
    INSTRUCTION_SETS,
    SeatState,
    accepted,
    best_set,
    library,
    memory_of_machine,
)
from flamma.types import Ints, Params

if TYPE_CHECKING:
    from torch import nn

STEPS_PER_CALL = 64
"""Mini-batches per call of the kernels, during which Python cannot react to Ctrl-C."""

WORDS_OF_HEADER = 5
"""A plan begins with the channels, height, width, classes and the number of operations."""


@dataclass
class _Client:
    """A client in training."""

    number: int
    job: TrainingJob
    loss: float
    begin: float
    batches: int
    order: Ints


def best_share(lanes: int, batch_size: int, clients: int) -> int:
    """Return how many lanes each client takes if this many clients are trained in a round.

    One lane each is fastest while clients fill all lanes. With several lanes per client, fewer are
    idle when there are few clients, but summing the gradients costs about 4% for every doubling,
    and a mini-batch may not divide evenly. The last bits depend on the result, so it must not
    depend on the number of processes: it is a compromise for one, two, four and eight of them.

    Examples
    --------
    >>> [best_share(lanes=8, batch_size=32, clients=n) for n in (1, 10, 100, 1000)]
    [8, 8, 4, 1]
    """

    def speed(share: int) -> float:
        seats, rows = lanes // share, -(-batch_size // share)
        busy = 0.0
        for processes in (1, 2, 4, 8):
            each = -(-clients // processes)
            busy += each / (-(-each // seats) * seats) / 4
        return busy * batch_size / (rows * share) * math.pow(0.96, math.log2(share))

    return max((1 << n for n in range(lanes.bit_length())), key=speed)


class LanesTrainer:
    """Trains clients in the lanes of vector registers: many at once, or one in all lanes.

    It does what :class:`~flamma.training.torch_trainer.TorchTrainer` does, with the same
    mini-batches in the same order; the weights differ by rounding only. A seat is the lanes that
    one client takes. A client's result has the same bits in any seat, with any clients in the
    other seats and in any order of the jobs.

    Parameters
    ----------
    model : torch.nn.Sequential, or a plan
        Only the structure of a model is used. A plan is what
        :func:`~flamma.training.lanes.plan.plan_of` returns; with one, torch is not imported.
    shape : sequence of int
        The shape of one sample.
    batch_size : int
        Samples of a mini-batch; the last one of an epoch may be smaller.
    momentum : float
        Momentum of SGD, from zero velocity for every client.
    clients : int
        How many clients are trained in a round.
    share : int, optional
        How many lanes one client takes, a power of two; :func:`best_share` by default. The last
        bits depend on it.
    instructions : int, optional
        Which instruction set to use; by default the widest of the processor.

    Raises
    ------
    FlammaError
        If the kernels are not compiled, or do not support a layer of the model.
    """

    name = "lanes"

    def __init__(
        self,
        model: nn.Sequential | Ints,
        shape: Sequence[int],
        batch_size: int,
        momentum: float = 0.0,
        clients: int = 1,
        share: int | None = None,
        instructions: int | None = None,
    ) -> None:
        check_sgd(batch_size, momentum)
        plan = _checked_plan(model if isinstance(model, np.ndarray) else _plan(model, shape), shape)
        self._kernels = kernels = library()
        chosen = best_set() if instructions is None else instructions
        lanes: int = kernels.lanes_width(chosen)
        if not lanes:
            raise FlammaError(f"this processor has no {INSTRUCTION_SETS[chosen]}; use another.")
        share = best_share(lanes, batch_size, clients) if share is None else share
        if share not in [1 << n for n in range(lanes.bit_length())]:
            raise FlammaError(f"a share of {lanes} lanes is a power of two, not {share}.")
        self.width = lanes // share
        self.shape = tuple(shape)
        self.batch_size = batch_size
        self.momentum = momentum
        self._classes = int(plan[3])
        net = ctypes.c_void_p()
        sizes = (plan.ctypes.data, plan.size, batch_size, share, memory_of_machine())
        accepted(kernels.lanes_new(chosen, *sizes, ctypes.byref(net)))
        self._net = net.value
        weakref.finalize(self, kernels.lanes_delete, self._net)
        self.size = accepted(kernels.lanes_params(self._net))
        self._seats = (SeatState * self.width)()

    def train_many(
        self, params: Params, jobs: Sequence[TrainingJob], time_limit: float | None = None
    ) -> list[Trained]:
        """Train all jobs and return their results in the order of the jobs.

        Parameters
        ----------
        params : Params
            The weights that all clients receive.
        jobs : sequence of TrainingJob
            The clients to train, independent of each other.
        time_limit : float, optional
            Seconds after which a client's training ends with the error
            :class:`~flamma.training.jobs.TooSlow`.
        """
        results = dict(self.train_each(params, jobs, time_limit))
        return [results[number] for number in range(len(jobs))]

    def train_each(
        self, params: Params, jobs: Sequence[TrainingJob], time_limit: float | None = None
    ) -> Iterator[tuple[int, Trained]]:
        """Yield the number and the result of every job as soon as it is done.

        The largest jobs start first, and the next one starts whenever a seat is free. Exhaust or
        drop the iterator before you use the trainer again.
        """
        params = self._checked(params)
        vector = (params.ctypes.data, params.size)
        accepted(self._kernels.lanes_receive(self._net, *vector))
        if any(job.task.wants_loss for job in jobs):
            accepted(self._kernels.lanes_load(self._net, *vector))
        able = []
        for number, job in enumerate(jobs):
            try:
                check_job(job)
            except FlammaError as error:
                yield number, Trained(None, error=error)
            else:
                able.append(number)
        waiting = deque(sorted(able, key=lambda k: (-self._work(jobs[k]), k)))
        seated: dict[int, _Client] = {}
        ctypes.memset(self._seats, 0, ctypes.sizeof(self._seats))
        while waiting or seated:
            for seat in range(self.width):
                while waiting and seat not in seated:
                    number = waiting.popleft()
                    try:
                        client = self._client(number, jobs[number])
                    except FlammaError as error:
                        yield number, Trained(None, error=error)
                        continue
                    task = client.job.task
                    rates = (task.learning_rate, self.momentum, task.proximal)
                    accepted(self._kernels.lanes_put(self._net, seat, *vector, *rates))
                    if self._next_order(seat, client):
                        seated[seat] = client
                    else:
                        yield number, self._finished(seat, client)
            steps = STEPS_PER_CALL if time_limit is None else 1
            try:
                accepted(self._kernels.lanes_run(self._net, self._seats, self.width, steps))
            except FlammaError as error:  # out of memory
                ctypes.memset(self._seats, 0, ctypes.sizeof(self._seats))
                for client in seated.values():
                    yield client.number, Trained(None, client.loss, error=error)
                seated.clear()
            now = time.monotonic()
            for seat, client in list(seated.items()):
                if time_limit is not None and now > client.begin + time_limit:
                    self._seats[seat].left = 0
                    del seated[seat]
                    seconds = now - client.begin
                    yield client.number, Trained(None, client.loss, seconds, TooSlow())
                elif self._seats[seat].left == 0 and not self._next_order(seat, client):
                    del seated[seat]
                    yield client.number, self._finished(seat, client)

    def predict(self, params: Params, x: Floats32, y: Ints) -> tuple[Floats32, NDArray[np.bool_]]:
        """Return each sample's loss under the given weights, and whether it is classified right."""
        params = self._checked(params)
        x, y = self._samples(x, y)
        accepted(self._kernels.lanes_load(self._net, params.ctypes.data, params.size))
        return self._score(x, y)

    def _score(self, x: Floats32, y: Ints) -> tuple[Floats32, NDArray[np.bool_]]:
        losses = np.empty(y.size, dtype=np.float32)
        right = np.empty(y.size, dtype=np.bool_)
        samples = (x.ctypes.data, x.size, y.ctypes.data, y.size)
        results = (losses.ctypes.data, right.ctypes.data)
        accepted(self._kernels.lanes_score(self._net, *samples, *results))
        return losses, right

    def _client(self, number: int, job: TrainingJob) -> _Client:
        """Return a client that is ready to train, with its loss if the task wants it."""
        begin = time.monotonic()
        x, y = self._samples(job.x, job.y)
        loss = math.nan
        if job.task.wants_loss and y.size:
            loss = float(np.mean(self._score(x, y)[0], dtype=np.float64))
        return _Client(number, job._replace(x=x, y=y), loss, begin, self._batches(job), y[:0])

    def _next_order(self, seat: int, client: _Client) -> bool:
        """Shuffle a client's samples for its next epoch; return False if it has no epoch left."""
        if client.batches <= 0:
            return False
        x, y = client.job.x, client.job.y
        order = client.job.rng.permutation(y.size)[: client.batches * self.batch_size]
        client.order = np.ascontiguousarray(order, dtype=np.int64)
        client.batches -= -(-y.size // self.batch_size)
        arrays = (x.ctypes.data, y.ctypes.data, client.order.ctypes.data)
        self._seats[seat] = SeatState(*arrays, x.size, y.size, client.order.size)
        return True

    def _finished(self, seat: int, client: _Client) -> Trained:
        weights = np.empty(self.size, dtype=np.float32)
        accepted(self._kernels.lanes_take(self._net, seat, weights.ctypes.data, weights.size))
        return Trained(weights, client.loss, time.monotonic() - client.begin)

    def _batches(self, job: TrainingJob) -> int:
        if job.task.iterations is not None:
            return job.task.iterations
        return job.task.epochs * -(-job.y.size // self.batch_size)

    def _work(self, job: TrainingJob) -> int:
        return self._batches(job) * min(self.batch_size, job.y.size)

    def _samples(self, x: Floats32, y: Ints) -> tuple[Floats32, Ints]:
        """Return samples and labels, checked, in the memory layout of the kernels."""
        if x.shape != (y.size, *self.shape):
            raise FlammaError(
                f"{y.size} samples of shape {self.shape} were expected, not {x.shape}."
            )
        if y.size and not (y.min() >= 0 and y.max() < self._classes):
            raise FlammaError(f"labels must be from 0 to {self._classes - 1}.")
        return np.ascontiguousarray(x, np.float32), np.ascontiguousarray(y, np.int64)

    def _checked(self, params: Params) -> Params:
        if params.shape != (self.size,):
            raise FlammaError(
                f"the model is a vector of {self.size} numbers, "
                f"but weights of shape {params.shape} were given."
            )
        return np.ascontiguousarray(params, np.float32)


def _checked_plan(plan: Ints, shape: Sequence[int]) -> Ints:
    """Return a plan in the memory layout of the kernels, which check its numbers themselves."""
    if plan.ndim != 1 or plan.dtype != np.int64 or plan.size < WORDS_OF_HEADER:
        raise FlammaError("a plan is a list of 64-bit whole numbers; make it with plan_of.")
    if math.prod(plan[:3].tolist()) != math.prod(shape):
        raise FlammaError(f"the plan is not for samples of shape {tuple(shape)}.")
    return np.ascontiguousarray(plan)


def _plan(model: nn.Sequential, shape: Sequence[int]) -> Ints:
    from flamma.training.lanes.plan import plan_of

    plan, reason = plan_of(model, shape)
    if plan is None:
        raise FlammaError(f"the model cannot be trained in lanes: {reason}; use torch.")
    return plan
