"""The tables of docs/incentives.md, from finished audits: who gains by what, and who is harmed.

    flamma audit incentives --out out/incentives
    flamma audit benchmarks/incentives-mnist.toml --clients median --out out/incentives-mnist
    python benchmarks/incentives.py out/incentives [--table docs/results/incentives-digits.csv]

Gains are the largest over clients and seeds, and harms are means, both over everything audited.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev

from flamma.experiments.findings import AuditedCase, read_audit
from flamma.experiments.run import Run
from flamma.io import write_atomically
from flamma.strategies import label_of

LAST_ROUNDS = 10

Rows = list[list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("audit", type=Path)
    parser.add_argument("--table", type=Path, help="where to copy the findings to")
    options = parser.parse_args()
    cases = read_audit(options.audit).cases
    names = [label_of(case.strategy) for case in cases]
    deviations = cases[0].deviations
    print("Largest gain of a client, as a share of its honest utility:\n")
    rows = [[d, *(gain(case, d) for case in cases)] for d in deviations]
    print(markdown_table(["Deviation", *names], rows))
    print("\nThe others' accuracy, variance and worst, changed by (mean):\n")
    rows = [[d, *(harm(case, d) for case in cases)] for d in deviations]
    print(markdown_table(["Deviation", *names], rows))
    print("\nHow often it was flagged:\n")
    rows = [[d, *(flagged(case, d) for case in cases)] for d in deviations]
    print(markdown_table(["Deviation", *names], rows))
    print("\nAll honest, mean of the last ten rounds ± standard deviation over seeds:\n")
    rows = [[name, *honest(case, options.audit)] for name, case in zip(names, cases, strict=True)]
    print(markdown_table(["Strategy", "Accuracy", "Variance", "Epochs", "Inspected"], rows))
    if options.table is not None:
        write_atomically(options.table, (options.audit / "audit.csv").read_bytes())


def markdown_table(header: list[str], rows: Rows) -> str:
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows))


def gain(case: AuditedCase, deviation: str) -> str:
    found = [f.relative_gain for f in case.findings if f.deviation == deviation]
    known = [share for share in found if share is not None]
    largest = max(known) if known else 0.0
    return f"{largest:.1f}x" if largest >= 2 else f"{100 * largest:.1f}%"


def harm(case: AuditedCase, deviation: str) -> str:
    found = [f for f in case.findings if f.deviation == deviation]
    changes = ("others_accuracy_change", "others_variance_change", "others_worst_change")
    means = [fmean(getattr(f, name) or 0.0 for f in found) for name in changes]
    return "0" if not any(means) else " / ".join(f"{mean:+.1f}" for mean in means)


def flagged(case: AuditedCase, deviation: str) -> str:
    found = [bool(f.flagged) for f in case.findings if f.deviation == deviation]
    return f"{sum(found)} of {len(found)}" if any(found) else "-"


def honest(case: AuditedCase, audit: Path) -> list[str]:
    runs = [Run.load(audit / baseline.folder).history for baseline in case.baselines]
    cells = []
    for metric in ("accuracy", "accuracy_variance"):
        values = [
            fmean(found[-LAST_ROUNDS:])
            for history in runs
            if (found := [v for r in history if (v := r.metric(metric)) is not None])
        ]
        cells.append(f"{fmean(values):.1f} ± {stdev(values):.1f}")
    epochs = fmean(sum(r.outcome.epochs_total for r in history) for history in runs)
    visits = sum(len(r.outcome.inspected) for history in runs for r in history)
    asked = sum(len(r.selected) for history in runs for r in history)
    return [*cells, f"{epochs:.0f}", f"{visits / asked:.0%}" if visits else "-"]


if __name__ == "__main__":
    main()
