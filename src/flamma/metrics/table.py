"""The table of metrics: one entry each, read by ``show``, tables, CSV, pages and pictures."""

from __future__ import annotations

import numpy as np

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
from flamma.metrics.readings import (
    mean_held_out_loss,
    of_accuracies,
    of_amounts,
    of_certificate,
    of_one_end,
    of_participation,
    of_warmup,
    rational_moves,
)
from flamma.registry import Registry

METRICS: Registry[Metric] = Registry(
    "metric",
    "flamma.metrics",
    {
        "accuracy": ScoreMetric(
            label="accuracy", unit="%", better="higher", score=of_accuracies(functions.mean)
        ),
        "accuracy_variance": ScoreMetric(
            label="variance", unit="%²", better="lower", score=of_accuracies(functions.variance)
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
            score=of_accuracies(functions.std),
        ),
        "worst_10": ScoreMetric(
            label="worst 10%",
            unit="%",
            better="higher",
            shown=("show", "csv", "page"),
            score=of_one_end(functions.worst_10, functions.best_10),
        ),
        "best_10": ScoreMetric(
            label="best 10%",
            unit="%",
            better="higher",
            shown=("show", "csv"),
            score=of_one_end(functions.best_10, functions.worst_10),
        ),
        "min": ScoreMetric(
            label="worst accuracy",
            unit="%",
            better="higher",
            shown=(),
            score=of_one_end(functions.lowest, functions.highest),
        ),
        "range": ScoreMetric(
            label="range of accuracy",
            unit="%",
            better="lower",
            shown=(),
            score=of_accuracies(functions.spread),
        ),
        "jain": ScoreMetric(
            label="Jain's index", better="higher", shown=(), score=of_amounts(functions.jain)
        ),
        "gini": ScoreMetric(
            label="Gini coefficient", better="lower", shown=(), score=of_amounts(functions.gini)
        ),
        "entropy": ScoreMetric(
            label="entropy",
            unit="nats",
            better="higher",
            shown=(),
            score=of_amounts(functions.entropy),
        ),
        "kl_uniform": ScoreMetric(
            label="divergence from even",
            unit="nats",
            better="lower",
            shown=(),
            score=of_amounts(functions.kl_uniform),
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
            label="held-out loss", better="lower", shown=("show",), score=mean_held_out_loss
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
            warmup=of_warmup("epochs"),
        ),
        "bytes_up": RoundMetric(
            label="sent by clients",
            unit="bytes",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.bytes_up,
            over_rounds="sum",
            warmup=of_warmup("bytes_up"),
        ),
        "bytes_down": RoundMetric(
            label="sent to clients",
            unit="bytes",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.bytes_down,
            over_rounds="sum",
            warmup=of_warmup("bytes_down"),
        ),
        "seconds": RoundMetric(
            label="time",
            unit="s",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.seconds,
            over_rounds="sum",
            warmup=of_warmup("seconds"),
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
            measure=of_participation("selection_jain"),
        ),
        "selection_gini": RunMetric(
            label="Gini of selections",
            better="lower",
            shown=(),
            group="participation",
            measure=of_participation("selection_gini"),
        ),
        "selection_coverage": RunMetric(
            label="clients ever selected",
            better="higher",
            shown=(),
            group="participation",
            measure=of_participation("selection_coverage"),
        ),
        "epochs_jain": RunMetric(
            label="Jain's index of epochs",
            better="higher",
            shown=("csv",),
            group="participation",
            measure=of_participation("epochs_jain"),
        ),
        "epochs_gini": RunMetric(
            label="Gini of epochs",
            better="lower",
            shown=(),
            group="participation",
            measure=of_participation("epochs_gini"),
        ),
        "epochs_coverage": RunMetric(
            label="clients that ever trained",
            better="higher",
            shown=(),
            group="participation",
            measure=of_participation("epochs_coverage"),
        ),
        "follower_gap": RoundMetric(
            label="follower gap",
            unit="utility",
            better="lower",
            shown=("csv", "page"),
            group="certificate",
            read=of_certificate("follower_gap"),
            over_rounds="max",
        ),
        "leader_regret": RoundMetric(
            label="leader regret",
            unit="utility",
            better="lower",
            shown=("csv", "page"),
            group="certificate",
            read=of_certificate("leader_regret"),
            over_rounds="max",
        ),
        "leader_regret_uncertainty": RoundMetric(
            label="uncertainty of the leader regret",
            unit="utility",
            better="lower",
            shown=(),
            group="certificate",
            read=of_certificate("leader_regret_uncertainty"),
            over_rounds="max",
        ),
        "individual_rationality_slack": RoundMetric(
            label="smallest utility",
            unit="utility",
            better="higher",
            shown=(),
            group="certificate",
            read=of_certificate("individual_rationality_slack"),
            over_rounds="min",
        ),
        "individual_rationality_ratio": RunMetric(
            label="moves without a loss",
            better="higher",
            shown=("csv",),
            group="certificate",
            measure=rational_moves,
        ),
    },
)
"""All metrics by name, in the order in which they are listed."""
