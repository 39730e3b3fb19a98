"""What metrics read in clients' scores, in the record of a round, and in all records of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from flamma.metrics import functions
from flamma.numerics import total
from flamma.records import RoundRecord
from flamma.types import Scores


def of_accuracies(function: Callable[[ArrayLike], float]) -> Callable[[Scores], float]:
    """Return the metric of the clients' accuracies."""
    return lambda scores: function(scores.accuracy)


def of_one_end(
    function: Callable[[ArrayLike], float], opposite: Callable[[ArrayLike], float]
) -> Callable[[Scores], float]:
    """Return the metric of one end of the clients; the other end where less is better."""
    return lambda scores: (opposite if scores.kind.less_is_better else function)(scores.accuracy)


def of_amounts(function: Callable[[ArrayLike], float]) -> Callable[[Scores], float]:
    """Return the metric of accuracies as shares of a whole; NaN where one is negative."""

    def score(scores: Scores) -> float:
        known = scores.accuracy[~np.isnan(scores.accuracy)]
        whole = scores.is_share or bool((np.isfinite(known) & (known >= 0)).all())
        return function(known) if whole else math.nan

    return score


def mean_held_out_loss(scores: Scores) -> float:
    """Return the mean held-out loss of the clients that gave a score."""
    scored = scores.loss[~np.isnan(scores.accuracy)]
    return total(scored) / scored.size if scored.size else math.nan


def of_participation(name: str) -> Callable[[Sequence[RoundRecord], int], float | None]:
    """Return the metric of how often clients were selected, or of the epochs they trained."""
    return lambda records, clients: finite_or_none(_took_part(records, clients)[name])


def rational_moves(records: Sequence[RoundRecord], clients: int) -> float | None:
    """Return the share of moves by which a client did not lose; None where no game was played."""
    moves = [u for record in records for u in record.client_utilities or () if u is not None]
    return functions.ir_ratio(moves) if moves else None


def of_certificate(name: str) -> Callable[[RoundRecord], float | None]:
    """Return the metric that a number of a round's certificate is."""
    return lambda record: (
        None if record.certificate is None else float(getattr(record.certificate, name))
    )


def of_warmup(name: str) -> Callable[[RoundRecord], float]:
    """Return what reads a number of the warm-up, which is told with the first round."""
    return lambda first: 0 if first.warmup is None else getattr(first.warmup, name)


def finite_or_none(value: float) -> float | None:
    """Return a number, or None where JSON has no number for it."""
    return float(value) if math.isfinite(value) else None


def _took_part(records: Sequence[RoundRecord], clients: int) -> dict[str, float]:
    counts, epochs = np.zeros(clients), np.zeros(clients)
    for record in records:
        selected, done = np.array(record.selected, int), np.array(record.local_epochs, float)
        np.add.at(counts, selected, 1)
        if record.failed:
            done[np.isin(selected, list(record.failed))] = 0
        np.add.at(epochs, selected, done)
    return functions.participation(counts, epochs)
