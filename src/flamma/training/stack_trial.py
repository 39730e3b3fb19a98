"""A trial that tells whether a model can be stacked: the same steps, one after the other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flamma.seeding import StreamKey
from flamma.tasks.contract import Task
from flamma.training.jobs import Trained, TrainingJob
from flamma.types import LocalTask, Params

TRIAL_BATCH_SIZE = 3
"""The mini-batch of the trial that compares a stack with training one after the other."""

TRIAL_DIFFERENCE = 0.03
"""How far apart both may be in the trial, as a share of the update.

Beside the kinks of a deep net, rounding alone can make a hundredth of it.
"""


def trial_jobs(task: Task, shape: tuple[int, ...]) -> list[TrainingJob]:
    """Return a step of two clients, of which the second has a smaller mini-batch."""
    rng = np.random.default_rng(0)
    jobs = []
    for client, samples in enumerate((TRIAL_BATCH_SIZE, TRIAL_BATCH_SIZE - 1)):
        x, y = task.blank(samples, shape)
        if not task.takes_tokens:
            x = rng.random((samples, *shape), dtype=np.float32)
        step = LocalTask(client, 0, epochs=0, learning_rate=0.01, iterations=1)
        jobs.append(TrainingJob(step, x, y, StreamKey.of(client, "trial", 0, client)))
    return jobs


def why_different(
    trainable: int, received: Params, stacked: Mapping[int, Trained], single: Mapping[int, Trained]
) -> str:
    """Return why the clients of a trial differ from those trained alone, empty if they do not."""
    for number, one in single.items():
        many = stacked[number]
        if many.params is None or one.params is None:
            return f"vmap does not support the model ({first_line(many.error or one.error)})"
        for part in (slice(0, trainable), slice(trainable, None)):
            update = np.linalg.norm(one.params[part] - received[part])
            rounding = 1e-6 * np.linalg.norm(received[part])
            apart = np.linalg.norm(many.params[part] - one.params[part])
            if not apart <= TRIAL_DIFFERENCE * update + rounding:
                return (
                    "the model treats the samples of a mini-batch as a whole or keeps a state "
                    "(as batch norm does)"
                )
    return ""


def first_line(error: Exception | None) -> str:
    """Return what an error says, up to the end of its first line or sentence."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(". ")
