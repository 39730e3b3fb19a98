"""What a run came to, from its records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flamma import metrics

LAST = 10
AVERAGED = (
    "accuracy",
    "accuracy_variance",
    "test_accuracy",
    "loss",
    "worst_10",
    "best_10",
    "jain",
    "gini",
)
ROUNDING = 1e-12
"""A utility this little below 0 counts as 0."""

Record = Mapping[str, Any]


def summarise_run(records: Sequence[Record], clients: int) -> dict[str, Any]:
    """Return final and last-ten-rounds metrics, totals, participation and the worst certificate.

    Everything is None that the rounds do not tell. Means over the last ten rounds, of those that
    were judged, are marked by the prefix ``last_10_``.
    """
    judged = [record for record in records if record.get("accuracy") is not None]
    final = judged[-1] if judged else {}
    warmup = {"epochs": 0.0} | (records[0].get("warmup", {}) if records else {})
    return {
        "rounds": len(records),
        **{name: final.get(name) for name in AVERAGED},
        **{f"last_10_{name}": _mean(name, records[-LAST:]) for name in AVERAGED},
        "epochs_total": sum(record["epochs_total"] for record in records) + warmup["epochs"],
        "epochs_warmup": warmup["epochs"],
        "bytes_up": _total("bytes_up", records),
        "bytes_down": _total("bytes_down", records),
        "seconds": _total("seconds", records),
        "decay_factor": records[-1]["decay_factor"] if records else None,
        "failures": sum(len(record["failed"]) for record in records),
        "abstentions": sum(len(record["abstained"]) for record in records),
        "participation": _participation(records, clients),
        "certificate": {
            "follower_gap": _worst("follower_gap", records, max),
            "leader_regret": _worst("leader_regret", records, max),
            "leader_regret_uncertainty": _worst("leader_regret_uncertainty", records, max),
            "individual_rationality_slack": _worst("individual_rationality_slack", records, min),
            "individual_rationality_ratio": _rational(records),
        },
    }


def at_budget(records: Sequence[Record], epochs: float) -> dict[str, float | None]:
    """Return accuracy and variance over the last ten rounds within a budget of local epochs.

    The first round counts in any case, so that there is something to tell.
    """
    spent = records[0].get("warmup", {}).get("epochs", 0.0) if records else 0.0
    within: list[Record] = []
    for record in records:
        spent += record["epochs_total"]
        if spent > epochs and within:
            break
        within.append(record)
    return {name: _mean(name, within[-LAST:]) for name in ("accuracy", "accuracy_variance")}


def _mean(name: str, records: Sequence[Record]) -> float | None:
    values = [record[name] for record in records if record.get(name) is not None]
    return float(np.mean(values)) if values else None


def _total(name: str, records: Sequence[Record]) -> float:
    warmup = records[0].get("warmup", {}).get(name, 0) if records else 0
    return float(sum(record[name] for record in records) + warmup)


def _worst(name: str, records: Sequence[Record], worst: Any) -> float | None:
    values = [record[name] for record in records if record.get(name) is not None]
    return float(worst(values)) if values else None


def _rational(records: Sequence[Record]) -> float | None:
    """Return the share of all moves in the game by which the client did not lose; 1 is all."""
    told = (record.get("client_utilities") or () for record in records)
    utilities = [u for moves in told for u in moves if u is not None]
    return sum(u >= -ROUNDING for u in utilities) / len(utilities) if utilities else None


def _participation(records: Sequence[Record], clients: int) -> dict[str, float | None]:
    counts, epochs = np.zeros(clients), np.zeros(clients)
    for record in records:
        for client, done in zip(record["selected"], record["local_epochs"], strict=True):
            counts[client] += 1
            if str(client) not in record["failed"]:
                epochs[client] += done
    found = metrics.participation(counts, epochs)
    return {name: float(v) if np.isfinite(v) else None for name, v in found.items()}
