"""The table of metrics: one entry each, read by ``show``, tables, CSV, pages and pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from flamma.metrics import functions
from flamma.metrics.kinds import (
    BesideLocalMetric,
    EqualWorkMetric,
    Metric,
    RoundMetric,
    RunMetric,
    ScoreMetric,
    TimeToMetric,
)
from flamma.numerics import total
from flamma.records import RoundRecord
from flamma.registry import Registry
from flamma.types import Scores


def _accuracy(function: Callable[[ArrayLike], float]) -> Callable[[Scores], float]:
    """Return the metric of the clients' accuracies."""
    return lambda scores: function(scores.accuracy)


def _end(
    function: Callable[[ArrayLike], float], opposite: Callable[[ArrayLike], float]
) -> Callable[[Scores], float]:
    """Return the metric of one end of the clients; the other end where less is better."""
    return lambda scores: (opposite if scores.kind.less_is_better else function)(scores.accuracy)


def _amounts(function: Callable[[ArrayLike], float]) -> Callable[[Scores], float]:
    """Return the metric of accuracies as shares of a whole; NaN where one is negative."""

    def score(scores: Scores) -> float:
        known = scores.accuracy[~np.isnan(scores.accuracy)]
        whole = scores.is_share or bool((np.isfinite(known) & (known >= 0)).all())
        return function(known) if whole else math.nan

    return score


def _mean_loss(scores: Scores) -> float:
    scored = scores.loss[~np.isnan(scores.accuracy)]
    return total(scored) / scored.size if scored.size else math.nan


def _took_part(records: Sequence[RoundRecord], clients: int) -> dict[str, float]:
    counts, epochs = np.zeros(clients), np.zeros(clients)
    for record in records:
        selected, done = np.array(record.selected, int), np.array(record.local_epochs, float)
        np.add.at(counts, selected, 1)
        if record.failed:
            done[np.isin(selected, list(record.failed))] = 0
        np.add.at(epochs, selected, done)
    return functions.participation(counts, epochs)


def _participation(name: str) -> Callable[[Sequence[RoundRecord], int], float | None]:
    return lambda records, clients: finite_or_none(_took_part(records, clients)[name])


def _rational_moves(records: Sequence[RoundRecord], clients: int) -> float | None:
    moves = [u for record in records for u in record.client_utilities or () if u is not None]
    return functions.ir_ratio(moves) if moves else None


def _certified(name: str) -> Callable[[RoundRecord], float | None]:
    return lambda record: (
        None if record.certificate is None else float(getattr(record.certificate, name))
    )


def _warmed_up(name: str) -> Callable[[RoundRecord], float]:
    return lambda first: 0 if first.warmup is None else getattr(first.warmup, name)


METRICS: Registry[Metric] = Registry(
    "metric",
    "flamma.metrics",
    {
        "accuracy": ScoreMetric(
            label="accuracy", unit="%", better="higher", score=_accuracy(functions.mean)
        ),
        "accuracy_variance": ScoreMetric(
            label="variance", unit="%²", better="lower", score=_accuracy(functions.variance)
        ),
        "accuracy_variance_weighted": ScoreMetric(
            label="variance by samples",
            unit="%²",
            better="lower",
            shown=(),
            score=lambda scores: functions.variance_weighted(scores.accuracy, scores.samples),
        ),
        "accuracy_std": ScoreMetric(
            label="standard deviation",
            unit="%",
            better="lower",
            shown=(),
            score=_accuracy(functions.std),
        ),
        "worst_10": ScoreMetric(
            label="worst 10%",
            unit="%",
            better="higher",
            shown=("show", "csv", "page"),
            score=_end(functions.worst_10, functions.best_10),
        ),
        "best_10": ScoreMetric(
            label="best 10%",
            unit="%",
            better="higher",
            shown=("show", "csv"),
            score=_end(functions.best_10, functions.worst_10),
        ),
        "min": ScoreMetric(
            label="worst accuracy",
            unit="%",
            better="higher",
            shown=(),
            score=_end(functions.lowest, functions.highest),
        ),
        "range": ScoreMetric(
            label="range of accuracy",
            unit="%",
            better="lower",
            shown=(),
            score=_accuracy(functions.spread),
        ),
        "jain": ScoreMetric(
            label="Jain's index", better="higher", shown=(), score=_amounts(functions.jain)
        ),
        "gini": ScoreMetric(
            label="Gini coefficient", better="lower", shown=(), score=_amounts(functions.gini)
        ),
        "entropy": ScoreMetric(
            label="entropy",
            unit="nats",
            better="higher",
            shown=(),
            score=_amounts(functions.entropy),
        ),
        "kl_uniform": ScoreMetric(
            label="divergence from even",
            unit="nats",
            better="lower",
            shown=(),
            score=_amounts(functions.kl_uniform),
        ),
        "clients_scored": ScoreMetric(
            label="clients scored",
            shown=(),
            score=lambda scores: float(np.count_nonzero(~np.isnan(scores.accuracy))),
        ),
        "test_accuracy": ScoreMetric(
            label="test accuracy",
            unit="%",
            better="higher",
            shown=("show", "csv"),
            score=lambda scores: scores.test_accuracy,
        ),
        "loss": ScoreMetric(
            label="held-out loss", better="lower", shown=("show",), score=_mean_loss
        ),
        "equal_work_accuracy": EqualWorkMetric(
            label="accuracy at equal work",
            unit="%",
            better="higher",
            shown=("csv",),
            of="accuracy",
        ),
        "equal_work_accuracy_variance": EqualWorkMetric(
            label="variance at equal work",
            unit="%²",
            better="lower",
            shown=("csv",),
            of="accuracy_variance",
        ),
        "better_off": BesideLocalMetric(
            label="share better off",
            unit="%",
            better="higher",
            shown=("table", "csv", "page"),
            about="clients at least as accurate as alone, in the run of local with the same seed",
            compare=lambda alone, joint: 100 * functions.better_off(alone, joint, ties=True),
        ),
        "epochs_total": RoundMetric(
            label="local epochs",
            shown=("csv", "page"),
            read=lambda record: record.epochs_total,
            over_rounds="sum",
            warmup=_warmed_up("epochs"),
        ),
        "bytes_up": RoundMetric(
            label="sent by clients",
            unit="bytes",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.bytes_up,
            over_rounds="sum",
            warmup=_warmed_up("bytes_up"),
        ),
        "bytes_down": RoundMetric(
            label="sent to clients",
            unit="bytes",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.bytes_down,
            over_rounds="sum",
            warmup=_warmed_up("bytes_down"),
        ),
        "seconds": RoundMetric(
            label="time",
            unit="s",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.seconds,
            over_rounds="sum",
            warmup=_warmed_up("seconds"),
        ),
        "virtual_seconds": RoundMetric(
            label="virtual time",
            unit="virtual s",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.virtual_seconds,
            over_rounds="max",
        ),
        "seconds_to_accuracy": TimeToMetric(
            label="time to accuracy",
            unit="virtual s",
            better="lower",
            shown=("table", "csv", "page"),
            reaches=(("accuracy", "higher"),),
        ),
        "seconds_to_fairness": TimeToMetric(
            label="time to fairness",
            unit="virtual s",
            better="lower",
            shown=("table", "csv", "page"),
            reaches=(("accuracy", "higher"), ("accuracy_variance", "lower")),
        ),
        "selection_jain": RunMetric(
            label="Jain's index of selections",
            better="higher",
            shown=("csv",),
            group="participation",
            measure=_participation("selection_jain"),
        ),
        "selection_gini": RunMetric(
            label="Gini of selections",
            better="lower",
            shown=(),
            group="participation",
            measure=_participation("selection_gini"),
        ),
        "selection_coverage": RunMetric(
            label="clients ever selected",
            better="higher",
            shown=(),
            group="participation",
            measure=_participation("selection_coverage"),
        ),
        "epochs_jain": RunMetric(
            label="Jain's index of epochs",
            better="higher",
            shown=("csv",),
            group="participation",
            measure=_participation("epochs_jain"),
        ),
        "epochs_gini": RunMetric(
            label="Gini of epochs",
            better="lower",
            shown=(),
            group="participation",
            measure=_participation("epochs_gini"),
        ),
        "epochs_coverage": RunMetric(
            label="clients that ever trained",
            better="higher",
            shown=(),
            group="participation",
            measure=_participation("epochs_coverage"),
        ),
        "follower_gap": RoundMetric(
            label="follower gap",
            unit="utility",
            better="lower",
            shown=("csv", "page"),
            group="certificate",
            read=_certified("follower_gap"),
            over_rounds="max",
        ),
        "leader_regret": RoundMetric(
            label="leader regret",
            unit="utility",
            better="lower",
            shown=("csv", "page"),
            group="certificate",
            read=_certified("leader_regret"),
            over_rounds="max",
        ),
        "leader_regret_uncertainty": RoundMetric(
            label="uncertainty of the leader regret",
            unit="utility",
            better="lower",
            shown=(),
            group="certificate",
            read=_certified("leader_regret_uncertainty"),
            over_rounds="max",
        ),
        "individual_rationality_slack": RoundMetric(
            label="smallest utility",
            unit="utility",
            better="higher",
            shown=(),
            group="certificate",
            read=_certified("individual_rationality_slack"),
            over_rounds="min",
        ),
        "individual_rationality_ratio": RunMetric(
            label="moves without a loss",
            better="higher",
            shown=("csv",),
            group="certificate",
            measure=_rational_moves,
        ),
    },
)
"""All metrics by name, in the order in which they are listed."""


def finite_or_none(value: float) -> float | None:
    """Return a number, or None where JSON has no number for it."""
    return float(value) if math.isfinite(value) else None
