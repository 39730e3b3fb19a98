"""Statistics over settings as text: for terminals and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from flamma.experiments.best import CONFIDENCE
from flamma.experiments.statistics import (
    RANKED_METRICS,
    AcrossSettings,
    AgainstReference,
    across_settings,
)
from flamma.experiments.table import Row
from flamma.metrics import METRICS
from flamma.strategies import label_of

SMALLEST_P = 0.001


def statistics_of(rows: Sequence[Row]) -> list[AcrossSettings]:
    """Return the statistics of the metrics that are ranked, none where settings are too few."""
    found = (across_settings(rows, metric) for metric in RANKED_METRICS)
    return [own for own in found if own is not None]


def statistics_table(found: AcrossSettings) -> tuple[str, list[str], list[list[str]]]:
    """Return a caption, a header and a line for each strategy, the best mean rank first."""
    metric = METRICS[found.metric]
    which = "higher is better" if metric.better == "higher" else "lower is better"
    caption = f"{metric.label} over {len(found.settings)} settings ({which})"
    against = {own.strategy: own for own in found.against}
    header = ["Algorithm", "Mean rank"]
    if against:
        reference = label_of(found.reference)
        interval = f"{CONFIDENCE:.0%} interval"
        header += [f"Won-tied-lost against {reference}", "Difference", interval]
        header += ["p (sign)", "p (Wilcoxon)", "p (Holm)"]
    lines = []
    for name, rank in found.ranks.items():
        cells = _cells(against[name]) if name in against else ["-"] * (len(header) - 2)
        lines.append([label_of(name), f"{rank:.2f}", *cells])
    return caption, header, lines


def statistics_note(found: Sequence[AcrossSettings]) -> str:
    """Return what the numbers are, and what the tests of all strategies together say."""
    told = []
    for own in found:
        label = METRICS[own.metric].label
        told.append(
            f"{label}: Friedman's test p {p_text(own.friedman_p)}, mean ranks that differ by less "
            f"than {own.critical_difference:.2f} are not significantly different (Nemenyi)"
        )
    left_out = dict.fromkeys(label_of(name) for own in found for name in own.left_out)
    missing = f" Not in every setting, and left out: {', '.join(left_out)}." if left_out else ""
    return (
        "Mean ranks are over settings. Won and lost: clear by differences paired over seeds. "
        "Difference: the mean over settings of paired differences, with a bootstrap interval over "
        f"settings and seeds. {'; '.join(told)}.{missing}"
    )


def p_text(p: float) -> str:
    """Return a p-value, not more exactly than it is worth.

    Examples
    --------
    >>> p_text(0.0421), p_text(0.00002)
    ('0.042', '<0.001')
    """
    return f"<{SMALLEST_P:g}" if p < SMALLEST_P else f"{p:.3f}"


def _cells(own: AgainstReference) -> list[str]:
    return [
        f"{own.wins}-{own.ties}-{own.losses}",
        f"{own.difference:+.2f}",
        f"{own.low:+.2f} to {own.high:+.2f}",
        p_text(own.sign_p),
        p_text(own.wilcoxon_p),
        p_text(own.holm_p),
    ]
