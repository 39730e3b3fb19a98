"""What models are scored on, and what the marks of all samples come to."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self

import numpy as np
from torch import nn

from flamma.data.federated import FederatedData
from flamma.errors import ConfigError, FlammaError
from flamma.models.flat import FlatModel
from flamma.numerics import exp
from flamma.processes import MOST_PROCESSES
from flamma.seeding import stream
from flamma.simulation.client_side import Outcome, mean_or_nan, training_report
from flamma.simulation.executor import (
    Executor,
    Result,
    Weights,
    gpu_count,
    one_thread,
    wants_cuda,
    with_vectors,
    workers_per_device,
)
from flamma.simulation.pool import CannotForkError, WorkerPool
from flamma.tasks import PLAIN_MEASURES, Measures
from flamma.tasks.base import part_means
from flamma.training import Trainer, TrainingJob, check_sgd
from flamma.training.augmentations import Augment
from flamma.training.config import AUTO, TrainerSettings, pick_trainer
from flamma.training.devices import pick_device
from flamma.training.optimisers import PLAIN_RULE, UpdateRule
from flamma.training.torch_trainer import tried
from flamma.types import (
    Inputs,
    Ints,
    Layout,
    LocalWork,
    Params,
    Scores,
    Targets,
    TaskVectors,
    Update,
)

HELD, TEST, VALIDATION = 0, 1, 2
"""The data sets that are scored, by their numbers in the executor."""


@dataclass(frozen=True, eq=False)
class _ScoredData:
    """The held-out data of the evaluated clients, the test set and the server's validation set.

    Attributes
    ----------
    sets : tuple of (x, y)
        The data sets, by their numbers.
    offsets : ndarray
        Where the held-out data of each evaluated client begin.
    test : int
        The number of the test set: without one of its own, it is the held-out data.
    measures : Measures
        How a client's score comes from the marks of its samples.
    evaluated : ndarray or None
        The clients that are evaluated, None if all are.
    """

    sets: tuple[tuple[Inputs, Targets], ...]
    offsets: Ints
    test: int
    measures: Measures
    evaluated: Ints | None

    @classmethod
    def of(cls, data: FederatedData, measures: Measures, evaluated: Ints | None) -> Self:
        """Return what of a federation is scored."""
        held_x, held_y, offsets = (
            (data.held_x, data.held_y, data.held_offsets)
            if evaluated is None
            else data.held_out_of(evaluated)
        )
        sets = (
            (held_x, held_y),
            (data.test_x, data.test_y),
            (data.validation_x, data.validation_y),
        )
        test = HELD if data.test_x is data.held_x else TEST
        return cls(sets, offsets, test, measures, evaluated)

    @property
    def for_evaluation(self) -> list[int]:
        """The data sets that an evaluation scores."""
        return sorted({HELD, self.test})

    def scores(self, executor: Executor) -> Scores:
        """Return the scores of the weights that the executor has scored.

        A client without held-out data has NaN. Where the test set is all held-out data and only
        some clients are evaluated, it is theirs.
        """
        losses, marks = executor.scores(HELD)
        test_losses, test_marks = executor.scores(self.test)
        return Scores(
            accuracy=self.measures.scores(marks, self.sets[HELD][1], self.offsets),
            loss=part_means(losses, self.offsets),
            samples=np.diff(self.offsets),
            test_accuracy=self.measures.score(test_marks, self.sets[self.test][1]),
            test_loss=mean_or_nan(test_losses),
            clients=self.evaluated,
            kind=self.measures.score_kind,
            is_share=self.measures.metric.is_share,
        )

    def own_scores(
        self, executor: Executor, common: Scores, model: Callable[[int], Params]
    ) -> Scores:
        """Return the scores with those of each client's own model in place of the common one's.

        Clients are scored one after the other, in this process.
        """
        count = self.offsets.size - 1
        clients = range(count) if self.evaluated is None else self.evaluated
        accuracy, loss = common.accuracy.copy(), common.loss.copy()
        x, y = self.sets[HELD]
        with one_thread():
            for place, client in enumerate(clients):
                params = model(int(client))
                where = slice(*self.offsets[place : place + 2].tolist())
                losses, marks = executor.trainer.predict(params, x[where], y[where])
                accuracy[place], loss[place] = self.measures.client_score(losses, marks, y[where])
        return replace(common, accuracy=accuracy, loss=loss, personal=True)

    def validation(self, executor: Executor) -> tuple[float, float]:
        """Return the loss and the score in percent on the validation set, NaN if it is empty.

        Strategies take more for better: where clients are scored by a loss, the score is the
        likelihood of the targets, 100 e^-loss.
        """
        losses, marks = executor.scores(VALIDATION)
        loss = mean_or_nan(losses)
        if self.measures.metric.lower_is_better:
            return loss, 100 * float(exp(-loss))
        return loss, self.measures.score(marks, self.sets[VALIDATION][1])


# Runs clients on this machine, one after the other or over its cores.

_SPANS_PER_PROCESS = 4
"""Jobs per process that a scoring is cut into, so that the processes finish at about one time."""


class ClientRunner:
    """Trains and evaluates the clients of a federation on this machine.

    Parameters
    ----------
    data : FederatedData
        The data of all clients.
    make_model : callable
        Makes the model; its weights are the initial ones.
    seed : int
        With the round and the client, it determines a client's random stream.
    batch_size, momentum
        Of every client's SGD.
    processes : int
        1 trains in this process; more are worker processes, forked from this one, that share
        its data. On the CPU the results are the same bits. With several GPUs, workers take them in
        turn. Where processes cannot be forked (no Linux, a GPU that this process uses already), a
        warning says so and everything runs in this process.
    device : str
        ``auto`` is the GPU if there is one, else the CPU.
    trainer : str
        How clients are trained; see :func:`~flamma.training.config.pick_trainer`.
    precision : {"float32", "bfloat16", "float16"}
        In which numbers layers compute while they train.
    time_limit : float, optional
        Seconds after which a client is late: its report is a failure.
    evaluated : ndarray, optional
        The clients on whose held-out data models are scored, in order; all of them if not given.
    measures : Measures
        The loss of a sample and the score of a client.
    rule : UpdateRule
        The clients' optimiser, weight decay and clipping.
    augment : callable, optional
        Changes training samples at random; see :mod:`flamma.training.augmentations`.

    Raises
    ------
    ConfigError
        If a number is out of its range, or the model's outputs do not suit the task.

    Examples
    --------
    >>> import numpy as np
    >>> from flamma.data.federated import from_arrays
    >>> from flamma.models import build_model
    >>> from flamma.types import Terms
    >>> rng = np.random.default_rng(0)
    >>> parts = [(rng.normal(size=(20, 4)), rng.integers(0, 2, 20)) for _ in range(3)]
    >>> data = from_arrays(clients=parts, held_out=parts)
    >>> def make_model():
    ...     return build_model("logistic", data.shape, data.classes, seed=0)
    >>> with ClientRunner(data, make_model, seed=0) as runner:
    ...     task = LocalWork(Terms(client=2, round=1), epochs=1, learning_rate=0.1)
    ...     [report] = runner.train(runner.initial_params, [task])
    ...     scores = runner.evaluate(report.params)
    >>> report.client, report.samples, scores.samples.tolist()
    (2, 20, [20, 20, 20])
    """

    def __init__(
        self,
        data: FederatedData,
        make_model: Callable[[], nn.Module],
        seed: int,
        batch_size: int = 32,
        momentum: float = 0.0,
        processes: int = 1,
        device: str = "auto",
        trainer: str = "auto",
        precision: str = "float32",
        time_limit: float | None = None,
        evaluated: Ints | None = None,
        measures: Measures = PLAIN_MEASURES,
        rule: UpdateRule = PLAIN_RULE,
        augment: Augment | None = None,
    ) -> None:
        check_sgd(batch_size, momentum)
        _check(processes, time_limit)
        # Workers start GPUs themselves: this process must not touch one before it forks them.
        forks_to_gpus = processes > 1 and wants_cuda(device)
        here = "cpu" if forks_to_gpus else pick_device(device)
        # A copy, because a caller may hand out one and the same module again and again.
        model = FlatModel(copy.deepcopy(make_model()), here)
        self.data = data
        self._layout = model.layout
        self.naming = model.naming
        self._initial = model.read()
        measures = tried(measures, model, data.train_x, data.train_y)
        self._scored = _ScoredData.of(data, measures, evaluated)
        there = ("cuda" if device == "auto" else device) if forks_to_gpus else here
        wanted = TrainerSettings(
            data.shape,
            batch_size,
            momentum,
            precision=precision,
            sharing=workers_per_device(processes, there, gpu_count()),
            measures=measures,
            rule=rule,
            augment=augment,
        )
        chosen = pick_trainer(trainer, model, wanted, there.partition(":")[0])

        def make_trainer(place: str) -> Trainer:
            moved = FlatModel(copy.deepcopy(model.module), place)
            return pick_trainer(chosen.name if trainer == AUTO else trainer, moved, wanted)

        self._executor = Executor(
            data,
            chosen,
            seed,
            time_limit,
            self._scored.sets,
            model.layout.size,
            there,
            make_trainer,
            measures.metric,
        )
        self._pool: Executor | WorkerPool = self._executor
        if processes > 1:
            try:
                self._pool = WorkerPool(self._executor, processes)
            except CannotForkError as reason:
                if forks_to_gpus:
                    self._executor.move_to(pick_device(device))
                warnings.warn(f"using one process: {reason}", stacklevel=2)

    @property
    def layout(self) -> Layout:
        """The layout of the flat vector of weights."""
        return self._layout

    @property
    def initial_params(self) -> Params:
        """A copy of the weights before the first round."""
        return self._initial.copy()

    @property
    def trainer(self) -> str:
        """The name of the trainer."""
        return self._executor.trainer.name

    @property
    def measures(self) -> Measures:
        """The loss of a sample and the score of a client."""
        return self._scored.measures

    @property
    def processes(self) -> int:
        """How many processes train clients."""
        return self._pool.processes

    def train(
        self,
        params: Params,
        tasks: Sequence[LocalWork],
        vectors: Sequence[TaskVectors] | None = None,
    ) -> list[Update]:
        """Return a report for every task, in the order of the tasks.

        ``vectors``, where given, has what each task needs besides the common received weights
        ``params``.

        A client that abstains is reported as such. What goes wrong at a client (it is late, it
        raises, its process dies, it has no data) is the ``failure`` of its report; weights that
        are not finite are returned as they are. The ``epochs`` of a report are those of the task,
        0 if it failed. A client that only evaluates reports its loss and no weights.
        """
        clients = np.array([task.client for task in tasks], dtype=np.int64)
        sizes: list[int] = self.data.samples[clients].tolist()
        updates: dict[int, Update] = {}
        for place, (task, size) in enumerate(zip(tasks, sizes, strict=True)):
            if task.abstains or size == 0:
                failure = "" if task.abstains else "no training data"
                updates[place] = Update(task.client, None, size, epochs=0, failure=failure)
        able = sorted(set(range(len(tasks))) - updates.keys())
        groups = self._executor.groups(tasks, sizes, able, self.processes)
        # One block for all: memory of its size comes in large pages.
        received = np.empty((len(able), self._layout.size), dtype=np.float32)
        starts = [0, *accumulate(len(group) for group in groups)]

        def on_done(number: int, result: Result, weights: Weights) -> None:
            group = groups[number]
            rows = received[starts[number] : starts[number + 1]]
            rows[:] = weights[: len(group)]
            if isinstance(result, str):
                result = [Outcome(math.nan, 0.0, result)] * len(group)
            for place, outcome, own in zip(group, result, rows, strict=True):
                updates[place] = training_report(tasks[place], sizes[place], outcome, own)

        given = with_vectors(tasks, vectors)
        self._check_model(params)
        jobs = [tuple(given[place] for place in group) for group in groups]
        self._pool.run(params, jobs, on_done)
        return [updates[place] for place in range(len(tasks))]

    def evaluate(self, params: Params) -> Scores:
        """Return the scores of the weights on the clients' held-out data and on the test set.

        A client without held-out data has NaN. Where the test set is all held-out data and only
        some clients are evaluated, it is theirs.
        """
        self._score(params, self._scored.for_evaluation)
        return self._scored.scores(self._executor)

    def evaluate_each(self, params: Params, model: Callable[[int], Params]) -> Scores:
        """Return the scores of each client's own model on its held-out data.

        The test set is scored by ``params``.
        """
        return self._scored.own_scores(self._executor, self.evaluate(params), model)

    def validate(self, params: Params) -> tuple[float, float]:
        """Return the loss and the score in percent on the server's own validation set.

        Both are NaN if it is empty.
        """
        self._score(params, [VALIDATION])
        return self._scored.validation(self._executor)

    def train_server(self, params: Params, task: LocalWork) -> Params:
        """Return the trainable weights after training on the server's own validation set.

        It does so in this process, with the random stream of the server and the round.

        Raises
        ------
        FlammaError
            If the validation set is empty.
        """
        if not len(self.data.validation_y):
            raise FlammaError("the server has no validation set to train on.")
        rng = stream(self._executor.seed, "server", task.round)
        job = TrainingJob(task, self.data.validation_x, self.data.validation_y, rng)
        with one_thread():
            [(_, trained)] = self._executor.trainer.train_each(params, [job])
        if trained.params is None:
            raise FlammaError(f"the server cannot train: {trained.error}.") from trained.error
        return trained.params[: self._layout.trainable_size].copy()

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _score(self, params: Params, datasets: Sequence[int]) -> None:
        spans = self._executor.spans(datasets, _SPANS_PER_PROCESS * self.processes)

        def on_done(number: int, result: Result, weights: Weights) -> None:
            if isinstance(result, str):
                # Once more in this process: either it works, or it raises where the user sees it.
                with one_thread():
                    self._executor.score(spans[number], params)

        self._check_model(params)
        self._pool.run(params, spans, on_done)

    def _check_model(self, params: Params) -> None:
        if params.shape != self._initial.shape:
            raise FlammaError(
                f"the model is a vector of {self._initial.size} numbers, "
                f"but weights of shape {params.shape} were given."
            )


def _check(processes: int, time_limit: float | None) -> None:
    if not 1 <= processes <= MOST_PROCESSES:
        raise ConfigError(
            f"at least 1 process is needed, and at most {MOST_PROCESSES:,}, not {processes}."
        )
    if time_limit is not None and not (math.isfinite(time_limit) and time_limit > 0):
        raise ConfigError(f"the time limit must be a positive number of seconds, not {time_limit}.")
