"""Which device each worker process trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from flamma.data.federated import FederatedData
from flamma.processes import shared_zeros
from flamma.simulation.client_side import Outcome, outcome_of
from flamma.tasks.base import ClientMetric, SampleMarks
from flamma.tasks.supervised import ACCURACY
from flamma.training import Trainer, TrainingJob, training_stream, used_samples
from flamma.training.torch_trainer import SAMPLES_SCORED_AT_ONCE
from flamma.types import NO_VECTORS, Inputs, LocalWork, Params, Targets, TaskVectors


def wants_cuda(device: str) -> bool:
    """Return whether a device of the configuration is an NVIDIA or AMD GPU of this machine.

    Unlike ``torch.cuda.is_available``, this does not start CUDA, which no forked process could
    use any more.
    """
    if device == "auto":
        return gpu_count() > 0
    return device.partition(":")[0] == "cuda"


def gpu_count() -> int:
    """Return how many GPUs this process may use, without starting CUDA."""
    return torch.cuda.device_count()


def worker_device(worker: int, device: str, gpus: int) -> str:
    """Return the device of a worker: with several GPUs, workers take them in turn.

    Parameters
    ----------
    worker : int
        The number of the worker process, from 0.
    device : str
        The device of the configuration; one with a number is that of all workers.
    gpus : int
        How many GPUs there are.

    Examples
    --------
    >>> [worker_device(worker, "cuda", gpus=2) for worker in range(3)]
    ['cuda:0', 'cuda:1', 'cuda:0']
    >>> worker_device(1, "cuda:0", gpus=2)
    'cuda:0'
    """
    if device == "cuda":
        return f"cuda:{worker % max(1, gpus)}"
    return device


def workers_per_device(processes: int, device: str, gpus: int) -> int:
    """Return how many workers share the busiest device."""
    return -(-processes // max(1, gpus)) if device == "cuda" else processes


# What a client's training or a scoring of the model takes, in whichever process it is done.

_JOB_WEIGHTS_BYTES = 2**25
"""Memory for the weights of one job, if it has more clients than are trained at once."""

Weights = NDArray[np.float32]
"""The weights that a job returns: one row per task."""


class Span(NamedTuple):
    """A range of samples of one of the scored data sets."""

    dataset: int
    start: int
    stop: int


class _VectorTask(NamedTuple):
    """A task that needs vectors besides the common received weights."""

    task: LocalWork
    vectors: TaskVectors


def with_vectors(
    tasks: Sequence[LocalWork], vectors: Sequence[TaskVectors] | None
) -> Sequence[LocalWork | _VectorTask]:
    """Return the tasks, each with the vectors that it needs, if it needs any."""
    if vectors is None:
        return tasks
    pairs = zip(tasks, vectors, strict=True)
    return [task if own is NO_VECTORS else _VectorTask(task, own) for task, own in pairs]


Tasks = tuple[LocalWork | _VectorTask, ...]
Job = Tasks | Span
"""Clients to train together, or samples to score."""

Result = list[Outcome] | str
"""The outcome of every task (none for a scoring), or why the whole job failed."""

OnDone = Callable[[int, Result, Weights], None]
"""Called for each finished job with its number, its result, and the weights of its tasks.

The memory of the weights is used again after the call, so keep a copy.
"""


class Executor:
    """Does any job of a federation: it has the data, the model, the seed and the time limit.

    Parameters
    ----------
    data : FederatedData
        The clients' training data.
    trainer : Trainer
        Trains clients and scores weights.
    seed : int
        A client's stream is ``stream(seed, "train", round, client)``, in whichever process.
    time_limit : float or None
        Seconds after which a client is late.
    scored : sequence of (x, y)
        The data sets that spans refer to by number.
    size : int
        The length of the flat vector of weights.
    device : str
        Where workers train: ``cpu``, or a GPU that this process has not touched.
    make_trainer : callable, optional
        Makes the same trainer on another device.
    metric : ClientMetric
        What samples are marked for.
    """

    def __init__(
        self,
        data: FederatedData,
        trainer: Trainer,
        seed: int,
        time_limit: float | None,
        scored: Sequence[tuple[Inputs, Targets]],
        size: int,
        device: str,
        make_trainer: Callable[[str], Trainer] | None = None,
        metric: ClientMetric = ACCURACY,
    ) -> None:
        self.data = data
        self.trainer = trainer
        self.seed = seed
        self.time_limit = time_limit
        self.scored = scored
        self.size = size
        self.device = device
        self.processes = 1
        self._make_trainer = make_trainer
        fitting = _JOB_WEIGHTS_BYTES // (4 * size)
        self.most_tasks = 1 if trainer.width == 1 else max(trainer.width, fitting)
        self._first = np.concatenate(([0], np.cumsum([len(y) for _, y in scored]))).tolist()
        self._losses = shared_zeros(self._first[-1], np.float32)
        self._marks: SampleMarks = shared_zeros(
            (self._first[-1], *metric.mark_shape), metric.mark_type
        )

    def move_to(self, device: str) -> None:
        """Train on another device from now on."""
        assert self._make_trainer is not None
        self.trainer = self._make_trainer(device)

    def run(
        self, params: Params, jobs: Sequence[Job], on_done: OnDone, memory: Weights | None = None
    ) -> None:
        """Do all jobs in this process, one after the other, with the given weights.

        What goes wrong at one client is in its outcome; what goes wrong in a scoring is raised.
        What tasks train is written into the rows of ``memory``, by default new ones.
        """
        with one_thread():
            for number, job in enumerate(jobs):
                tasks = () if isinstance(job, Span) else tuple(map(self._training_job, job))
                if isinstance(job, Span):
                    self.score(job, params)
                weights = memory
                if weights is None:
                    weights = np.empty((len(tasks), params.size), dtype=np.float32)
                outcomes: dict[int, Outcome] = {}
                for place, trained in self.trainer.train_each(params, tasks, self.time_limit):
                    if trained.params is not None and tasks[place].task.terms.train:
                        weights[place] = trained.params
                    outcomes[place] = outcome_of(trained, self.time_limit)
                on_done(number, [outcomes[place] for place in range(len(tasks))], weights)

    def close(self) -> None:
        """Do nothing: there are no processes to end."""

    def score(self, span: Span, params: Params) -> None:
        """Score samples into the memory that :meth:`scores` reads."""
        x, y = self.scored[span.dataset]
        losses, marks = self.scores(span.dataset)
        where = slice(span.start, span.stop)
        losses[where], marks[where] = self.trainer.predict(params, x[where], y[where])

    def scores(self, dataset: int) -> tuple[NDArray[np.float32], SampleMarks]:
        """Return the loss of each sample of a data set, and its mark for the metric."""
        where = slice(self._first[dataset], self._first[dataset + 1])
        return self._losses[where], self._marks[where]

    def spans(self, datasets: Sequence[int], wanted: int) -> list[Span]:
        """Cut data sets into about as many spans as wanted.

        Spans begin where the trainer would begin a new batch anyway, so the scores do not depend
        on how many spans there are.
        """
        step = SAMPLES_SCORED_AT_ONCE
        sizes = {dataset: len(self.scored[dataset][1]) for dataset in datasets}
        batches = sum(-(-size // step) for size in sizes.values())
        length = step * max(1, -(-batches // wanted))
        return [
            Span(dataset, start, min(start + length, size))
            for dataset, size in sizes.items()
            for start in range(0, size, length)
        ]

    def groups(
        self, tasks: Sequence[LocalWork], samples: Sequence[int], places: list[int], processes: int
    ) -> list[list[int]]:
        """Return the places of the tasks that are trained together, the largest tasks first.

        A trainer of one client at a time gets groups of one, which go to whichever process is
        free. Else the tasks are dealt out so that every process has about the same work, in as
        few groups as their weights fit into.
        """

        def work(place: int) -> int:
            task, own = tasks[place], samples[place]
            if not task.terms.train:
                return own
            if task.terms.batches is None:
                return task.epochs * own
            return task.terms.batches * min(self.trainer.batch_size, own)

        order = sorted(places, key=lambda place: (-work(place), place))
        if self.trainer.width == 1:
            return [[place] for place in order]
        needed = -(-len(order) // self.most_tasks)
        count = max(min(processes, len(order)), needed)
        return [order[first::count] for first in range(count) if order[first::count]]

    def _training_job(self, job: LocalWork | _VectorTask) -> TrainingJob:
        task, vectors = job if isinstance(job, _VectorTask) else (job, NO_VECTORS)
        owner = task.owner
        start, stop = self.data.train_offsets[owner : owner + 2]
        own = self.data.train_x[start:stop], self.data.train_y[start:stop]
        key = training_stream(self.seed, task)
        return TrainingJob(task, *used_samples(task.data, *own, self.data.classes), key, vectors)


def stay_on_one_thread() -> None:
    """Keep torch on one thread for good in a forked process.

    It would wait forever for threads that only the process it was forked from has.
    """
    torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, as worker processes do, so that the bits are the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
