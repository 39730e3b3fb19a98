"""The results of a study of contribution measures, as a table, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flamma.files import write_atomically
from flamma.numerics import total
from flamma.types import Floats


@dataclass(frozen=True, eq=False)
class MeasureResult:
    """How one measure does.

    Attributes
    ----------
    spearman, kendall : tuple of float
        Rank correlations with the exact Shapley values, one for each seed; NaN where a measure
        tells no clients apart.
    earned : mapping
        What a client that deviates earns on average, as a share of what an honest client earns
        on average when all are honest.
    most_earned : mapping
        The same of the client and the seed for which deviating pays best.
    seconds : float
        Seconds for a round.
    needs_validation : bool
        Whether the server needs a validation set.
    contributions : ndarray
        The sum over all rounds of each client's contributions, one row for each seed.
    """

    spearman: tuple[float, ...]
    kendall: tuple[float, ...]
    earned: Mapping[str, float]
    most_earned: Mapping[str, float]
    seconds: float
    needs_validation: bool
    contributions: Floats

    def as_json(self) -> dict[str, Any]:
        """Return plain values; what is not a number is None."""
        return {
            "spearman": [_plain(value) for value in self.spearman],
            "kendall": [_plain(value) for value in self.kendall],
            "earned": {name: _plain(value) for name, value in self.earned.items()},
            "most_earned": {name: _plain(value) for name, value in self.most_earned.items()},
            "seconds_per_round": self.seconds,
            "needs_validation": self.needs_validation,
            "contributions": self.contributions.tolist(),
        }


@dataclass(frozen=True, eq=False)
class MeasureStudy:
    """All measures compared with the exact Shapley values, which have one row for each seed."""

    config: str
    seeds: tuple[int, ...]
    utility: str
    exact: Floats
    measures: Mapping[str, MeasureResult]

    def as_json(self) -> dict[str, Any]:
        """Return the whole study as plain values."""
        return {
            "config": self.config,
            "seeds": list(self.seeds),
            "utility": self.utility,
            "exact_shapley": self.exact.tolist(),
            "measures": {name: result.as_json() for name, result in self.measures.items()},
        }

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return a header and one row for each measure."""
        deviations = list(next(iter(self.measures.values())).earned)
        header = ["measure", "spearman", "kendall", *deviations, "ms a round", "validation set"]
        rows = [
            [
                name,
                _mean_and_spread(result.spearman),
                _mean_and_spread(result.kendall),
                *(f"{result.earned[name]:.2f}" for name in deviations),
                f"{1000 * result.seconds:.1f}",
                "yes" if result.needs_validation else "no",
            ]
            for name, result in self.measures.items()
        ]
        return header, rows


def compare_measures(
    exact: Floats,
    honest: Floats,
    cheated: Mapping[str, Floats],
    seconds: float,
    needs_validation: bool,
) -> MeasureResult:
    """Return how one measure does.

    Parameters
    ----------
    exact : ndarray
        The exact Shapley values, seeds x clients.
    honest : ndarray
        Each client's contributions over all rounds when all are honest, seeds x clients.
    cheated : mapping
        For each deviation each client's own contributions when it alone deviates, likewise.
    seconds, needs_validation
        As in :class:`MeasureResult`.
    """
    from scipy.stats import kendalltau, spearmanr

    def correlations(function: Any) -> tuple[float, ...]:
        return tuple(
            float(function(true, told)[0]) if np.ptp(true) > 0 and np.ptp(told) > 0 else math.nan
            for true, told in zip(exact, honest, strict=True)
        )

    usual = np.array([total(row) / row.size for row in honest])[:, np.newaxis]
    shares = {
        name: np.divide(own, usual, out=np.full(own.shape, np.nan), where=usual > 0)
        for name, own in cheated.items()
    }
    return MeasureResult(
        spearman=correlations(spearmanr),
        kendall=correlations(kendalltau),
        earned={name: total(share) / share.size for name, share in shares.items()},
        most_earned={name: float(np.max(share)) for name, share in shares.items()},
        seconds=seconds,
        needs_validation=needs_validation,
        contributions=honest,
    )


def write_study(study: MeasureStudy, folder: Path) -> None:
    """Write ``contributions.json`` and ``contributions.csv``."""
    text = json.dumps(study.as_json(), indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "contributions.json", text.encode())
    table = io.StringIO()
    rows = [_csv_row(name, result) for name, result in study.measures.items()]
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "contributions.csv", table.getvalue().encode())


def _csv_row(name: str, result: MeasureResult) -> dict[str, Any]:
    correlations = {"spearman": result.spearman, "kendall": result.kendall}
    return {
        "measure": name,
        "needs_validation": result.needs_validation,
        "seconds_per_round": result.seconds,
        **{f"{k}_mean": _plain(float(np.mean(v))) for k, v in correlations.items()},
        **{f"{k}_std": _plain(float(np.std(v))) for k, v in correlations.items()},
        **{f"earned_{k}": _plain(v) for k, v in result.earned.items()},
        **{f"most_earned_{k}": _plain(v) for k, v in result.most_earned.items()},
    }


def _mean_and_spread(values: tuple[float, ...]) -> str:
    known = np.array([value for value in values if math.isfinite(value)])
    if not known.size:
        return "-"
    spread = f" ± {known.std():.2f}" if known.size > 1 else ""
    return f"{known.mean():.2f}{spread}"


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
