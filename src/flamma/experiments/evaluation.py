"""When a run evaluates its model, and on how many clients."""

from __future__ import annotations

from dataclasses import dataclass

from flamma.errors import ConfigError

ALL_EVALUATED_UP_TO = 100_000
"""With more clients than this, a sample of them is evaluated unless the configuration says more."""

EVALUATED_SAMPLE = 10_000
"""The size of that sample."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How often the model is evaluated, and on how many clients.

    Parameters
    ----------
    every : int
        Evaluate after every so many rounds; the last round is always evaluated.
    clients : int, optional
        Evaluate on the held-out data of so many clients, drawn once for the whole run by the
        seed; 0 for all. If left out, all clients are evaluated up to 100,000 of them, and 10,000
        where there are more.
    metric : str
        What a client's score is: a metric of the task, such as ``balanced-accuracy`` or ``auc`` of
        classification, ``perplexity`` of next tokens, or ``loss``; that of the dataset, or the
        first one that the task has, if left out. ``own`` for one given from Python.
    """

    every: int = 1
    clients: int | None = None
    metric: str = ""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"evaluation.every must be at least 1, not {self.every}.")
        if self.clients is not None and self.clients < 0:
            raise ConfigError(f"evaluation.clients must be at least 0, not {self.clients}.")

    def sample_of(self, clients: int) -> int | None:
        """Return how many of so many clients are drawn for evaluation, None if all are evaluated.

        Examples
        --------
        >>> EvaluationConfig().sample_of(1_000_000), EvaluationConfig(clients=0).sample_of(1000)
        (10000, None)
        """
        wanted = self.clients
        if wanted is None:
            wanted = 0 if clients <= ALL_EVALUATED_UP_TO else EVALUATED_SAMPLE
        return wanted if 0 < wanted < clients else None
