"""The table of an audited case: what each client gains by each deviation, and what else changes."""

from __future__ import annotations

from flamma.experiments.auditing.findings import AuditedCase, Finding
from flamma.experiments.auditing.shares import percent


def audit_header(case: AuditedCase) -> list[str]:
    """Return the titles of the columns: the audited clients, then what changes for whom."""
    changes = ["own acc.", "others' acc.", "variance", "worst", "flagged"]
    return ["deviation", *case.subjects, *changes]


def audit_line(case: AuditedCase, deviation: str) -> list[str]:
    """Return a deviation's line: the gain of each client, and the changes in the mean over all."""
    found = [f for f in case.findings if f.deviation == deviation]
    gains = [_gain(case.of(subject, deviation)) for subject in case.subjects]
    changes = [
        _mean([getattr(f, name) for f in found])
        for name in (
            "accuracy_change",
            "others_accuracy_change",
            "others_variance_change",
            "others_worst_change",
        )
    ]
    flagged = sum(f.flagged > 0 for f in found)
    return [deviation, *gains, *changes, f"{flagged} of {len(found)}" if flagged else "-"]


def _gain(findings: list[Finding]) -> str:
    """Return the mean relative gain over seeds, in brackets if it is only known in utility."""
    known = [f.relative_gain for f in findings if f.relative_gain is not None]
    if known:
        return percent(sum(known) / len(known))
    return f"({sum(f.gain for f in findings) / len(findings):+.3g})" if findings else "-"


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = sum(known) / len(known)
    return "0" if abs(mean) < 0.05 else f"{mean:+.1f}"
