"""Runs clients on this machine, one after the other or over its cores."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np
from torch import nn

from flamma.data.federated import FederatedData
from flamma.engines.outcomes import mean, means
from flamma.engines.pool import CannotForkError, Pool
from flamma.engines.work import (
    Batch,
    Done,
    InProcess,
    Job,
    Outcome,
    Span,
    Weights,
    Workbench,
    one_thread,
)
from flamma.errors import ConfigError, FlammaError
from flamma.models.flat import FlatModel
from flamma.training.choose import pick_trainer
from flamma.training.torch_trainer import pick_device
from flamma.types import Ints, Layout, LocalTask, Params, Report, Scores

HELD, TEST, VALIDATION = 0, 1, 2
"""The data sets that are judged, as the workbench numbers them."""

SPANS_PER_PROCESS = 4
"""Enough spans for the processes to finish together, few enough to cost nothing."""


class ClientRunner:
    """Runs the clients of a federation on this machine.

    Parameters
    ----------
    data : FederatedData
        Every client's data.
    make_model : callable
        Makes the model; its weights are the initial ones.
    seed : int
        A client's random stream depends on it, the round and the client.
    batch_size, momentum
        Of every client's SGD.
    processes : int
        1 trains in this process; more are worker processes, forked from this one, that share
        its data. The results are the same bits. Where processes cannot be forked (no Linux, a
        GPU), a warning says so and everything runs in this process.
    device : str
        ``auto`` is the GPU if there is one, else the CPU.
    trainer : {"auto", "torch", "lanes"}
        How clients are trained; see :func:`~flamma.training.choose.pick_trainer`.
    per_round : int
        How many clients train in a round, which the trainer prepares for.
    time_limit : float, optional
        Seconds after which a client is late: its report is a failure.

    Raises
    ------
    ConfigError
        If a number cannot work.

    Examples
    --------
    >>> import numpy as np
    >>> from flamma.data.federated import federated_from_arrays
    >>> from flamma.models import build_model
    >>> rng = np.random.default_rng(0)
    >>> parts = [(rng.normal(size=(20, 4)), rng.integers(0, 2, 20)) for _ in range(3)]
    >>> data = federated_from_arrays(clients=parts, held_out=parts)
    >>> def make_model():
    ...     return build_model("logistic", data.shape, data.classes, seed=0)
    >>> with ClientRunner(data, make_model, seed=0) as runner:
    ...     task = LocalTask(client=2, round=1, epochs=1, learning_rate=0.1)
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
        per_round: int = 1,
        time_limit: float | None = None,
    ) -> None:
        _check(batch_size, momentum, processes, time_limit)
        # A copy, because a caller may hand out one and the same module again and again.
        model = FlatModel(copy.deepcopy(make_model()), pick_device(device))
        self.data = data
        self._layout = model.layout
        self._initial = model.read()
        # Without a test set of its own, the held-out data of all clients are the test set.
        self._test = HELD if data.test_x is data.held_x else TEST
        judged = [
            (data.held_x, data.held_y),
            (data.test_x, data.test_y),
            (data.validation_x, data.validation_y),
        ]
        chosen = pick_trainer(trainer, model, data.shape, batch_size, momentum, per_round)
        bench = Workbench(
            data, chosen, seed, time_limit, judged, model.layout.size, model.device.type
        )
        self._bench = bench
        self._runner: InProcess | Pool = InProcess(bench)
        if processes > 1:
            try:
                self._runner = Pool(bench, processes)
            except CannotForkError as reason:
                warnings.warn(f"using one process: {reason}", stacklevel=2)

    @property
    def layout(self) -> Layout:
        """What the flat vector of weights is made of."""
        return self._layout

    @property
    def initial_params(self) -> Params:
        """The weights before the first round."""
        return self._initial.copy()

    @property
    def trainer(self) -> str:
        """What trains the clients: torch or lanes."""
        return self._bench.trainer.name

    @property
    def processes(self) -> int:
        """How many processes train clients."""
        return self._runner.processes

    def train(self, params: Params, tasks: Sequence[LocalTask]) -> list[Report]:
        """Return a report for every task, in the order of the tasks.

        An abstaining client is reported as such. What goes wrong at a client (it is late, it
        raises, its process dies, it has no data) is its report's ``failure``; weights that are
        not finite are returned as they are. ``epochs`` of a report are those of the task, 0 if
        it failed.
        """
        samples = self.data.samples[np.array([task.client for task in tasks], dtype=np.int64)]
        reports: dict[int, Report] = {}
        for place, (task, size) in enumerate(zip(tasks, samples.tolist(), strict=True)):
            if task.abstains or size == 0:
                failure = "" if task.abstains else "no training data"
                reports[place] = Report(task.client, None, int(size), epochs=0, failure=failure)
        batches = self._batches(tasks, samples, sorted(set(range(len(tasks))) - reports.keys()))

        def done(number: int, outcomes: list[Outcome], weights: Weights) -> None:
            for row, (place, outcome) in enumerate(zip(batches[number], outcomes, strict=True)):
                task, failed = tasks[place], bool(outcome.failure)
                reports[place] = Report(
                    client=task.client,
                    params=None if failed else weights[row].copy(),
                    samples=int(samples[place]),
                    epochs=0 if failed else task.epochs,
                    loss=outcome.loss,
                    seconds=outcome.seconds,
                    failure=outcome.failure,
                )

        self._run(params, [Batch(tuple(tasks[p] for p in places)) for places in batches], done)
        return [reports[place] for place in range(len(tasks))]

    def evaluate(self, params: Params) -> Scores:
        """Return how good the weights are for every client and on the common test set.

        A client without held-out data has NaN.
        """
        self._judge(params, sorted({HELD, self._test}))
        losses, right = self._bench.scores(HELD)
        test_losses, test_right = self._bench.scores(self._test)
        offsets = self.data.held_offsets
        return Scores(
            accuracy=100 * means(right, offsets),
            loss=means(losses, offsets),
            samples=np.diff(offsets),
            test_accuracy=100 * mean(test_right),
            test_loss=mean(test_losses),
        )

    def validate(self, params: Params) -> tuple[float, float]:
        """Return the loss and the accuracy in percent on the server's own validation set.

        Both are NaN if it is empty.
        """
        self._judge(params, [VALIDATION])
        losses, right = self._bench.scores(VALIDATION)
        return mean(losses), 100 * mean(right)

    def close(self) -> None:
        """End the worker processes."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _batches(
        self, tasks: Sequence[LocalTask], samples: Ints, places: list[int]
    ) -> list[list[int]]:
        """Return which tasks are trained together, the largest first.

        One at a time goes to whichever process is free. Many at once are dealt out so that
        every process has about the same work, in as few batches as there is room for.
        """

        def size(place: int) -> int:
            task, own = tasks[place], int(samples[place])
            if task.iterations is None:
                return task.epochs * own
            return task.iterations * min(self._bench.trainer.batch_size, own)

        order = sorted(places, key=lambda place: (-size(place), place))
        if self._bench.trainer.width == 1:
            return [[place] for place in order]
        room = self._bench.room
        count = max(min(self.processes, len(order)), -(-len(order) // room))
        return [order[first::count] for first in range(count) if order[first::count]]

    def _judge(self, params: Params, parts: Sequence[int]) -> None:
        spans: list[Job] = list(self._bench.spans(parts, SPANS_PER_PROCESS * self.processes))

        def done(number: int, outcomes: list[Outcome], weights: Weights) -> None:
            span = spans[number]
            if outcomes[0].failure and isinstance(span, Span):
                # Once more here: either it goes well, or it raises where the user can see it.
                with one_thread():
                    self._bench.judge(span, params)

        self._run(params, spans, done)

    def _run(self, params: Params, jobs: Sequence[Job], done: Done) -> None:
        if params.shape != self._initial.shape:
            raise FlammaError(
                f"the model is a vector of {self._initial.size} numbers, "
                f"but weights of shape {params.shape} were given."
            )
        self._runner.run(params, jobs, done)


def _check(batch_size: int, momentum: float, processes: int, time_limit: float | None) -> None:
    if batch_size < 1:
        raise ConfigError(f"the batch size must be at least 1, not {batch_size}.")
    if not 0 <= momentum < 1:
        raise ConfigError(f"momentum must be at least 0 and below 1, not {momentum:g}.")
    if processes < 1:
        raise ConfigError(f"at least 1 process is needed, not {processes}.")
    if time_limit is not None and not (math.isfinite(time_limit) and time_limit > 0):
        raise ConfigError(f"the time limit must be a positive number of seconds, not {time_limit}.")
