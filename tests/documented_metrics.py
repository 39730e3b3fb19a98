"""The table of metrics in the documentation, made from the code.

``python tests/documented_metrics.py`` writes it into docs/reference/metrics.md.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points

from documented import ROOT
from flamma.metrics import METRICS

PAGE = ROOT / "docs" / "reference" / "metrics.md"
BLOCK = re.compile(r"(<!-- metrics -->\n).*?(<!-- end of metrics -->)", re.DOTALL)
HEADER = ("Name", "Label", "Unit", "Better", "Of a run", "Shown in")


def own_metrics() -> list[str]:
    """The names of our metrics: those of other packages are theirs to document."""
    others = {point.name for point in entry_points(group=METRICS.group)}
    return [name for name in METRICS if name not in others]


def metrics_table() -> str:
    """The table as Markdown."""
    rows = [HEADER, ("---",) * len(HEADER)]
    for name in own_metrics():
        metric = METRICS[name]
        better = "" if metric.better == "neither" else metric.better
        places = ", ".join(metric.shown)
        rows.append((f"`{name}`", metric.label, metric.unit, better, metric.aggregation, places))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page_with(table: str) -> str:
    """The page with this table in it."""
    text = PAGE.read_text(encoding="utf-8")
    assert BLOCK.search(text), "the page has no place for the table"
    return BLOCK.sub(lambda found: f"{found[1]}\n{table}\n{found[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(page_with(metrics_table()), encoding="utf-8")
