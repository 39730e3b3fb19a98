"""The page of an audit, and the section of it in the page of the run that was audited."""

from __future__ import annotations

from pathlib import Path

from flamma.errors import FlammaError
from flamma.experiments.auditing.audit_files import AUDIT_FILE, read_audit
from flamma.experiments.auditing.findings import Audit, AuditedCase
from flamma.experiments.auditing.shares import percent
from flamma.reports.audit_charts import gains_map, gains_table
from flamma.reports.document import Code, Document, Facts, Section, Table, notice
from flamma.strategies import label_of

AUDIT_OF_RUN = "audit"
"""Where the audit of a run is, in its directory."""

MAX_AUDIT_FACTS = 8


def is_audit(path: Path) -> bool:
    """Return whether a directory holds a finished audit."""
    return (path / AUDIT_FILE).exists()


def audit_document(path: Path) -> Document:
    """Return the page of an audit's directory."""
    audit = read_audit(path)
    first = audit.cases[0]
    parts = [
        f"{len(first.deviations)} deviations",
        f"{len(first.subjects)} of {first.clients:,} clients",
        f"{len(first.baselines)} seed{'s' * (len(first.baselines) != 1)}",
        f"{first.rounds} rounds",
    ]
    return Document(
        kind="audit",
        title=f"Audit: {audit.name}",
        subtitle=", ".join(parts),
        notices=[notice(f"the run {run} failed: {why}") for run, why in audit.failed.items()],
        facts=_facts(audit),
        sections=[*(_section(case) for case in audit.cases), _again(audit)],
        footer=f"Made by FLamma from {path.name or path}",
    )


def audit_sections(run: Path, problems: list[str]) -> list[Section]:
    """Return the section of a run's own audit, none if there is no audit; damage is named."""
    if not is_audit(run / AUDIT_OF_RUN):
        return []
    try:
        return [_section(case) for case in read_audit(run / AUDIT_OF_RUN).cases]
    except FlammaError as error:
        problems.append(str(error).rstrip("."))
        return []


def _facts(audit: Audit) -> Facts:
    facts = []
    for case in audit.cases:
        most = case.most
        note = "no deviation gains" if most is None else f"the most: {most.deviation}"
        each = ", ".join(percent(value) for value in case.epsilons.values())
        title = f"ε of {label_of(case.strategy)}: {case.dataset}, {case.split}"
        facts.append((title, percent(case.epsilon), f"{note}; by seed {each}"))
    return Facts(facts[:MAX_AUDIT_FACTS])


def _section(case: AuditedCase) -> Section:
    name = f"{case.dataset}-{case.split}-{case.strategy}"
    pay = (
        ""
        if case.is_paid
        else " There is no game and so no pay: the utility is minus the cost of the work."
    )
    return Section(
        f"audit-{name}",
        f"What deviating brings: {label_of(case.strategy)} on {case.dataset} ({case.split})",
        case.sentence + pay,
        [gains_map(case, name), gains_table(case, name)],
    )


def _again(audit: Audit) -> Section:
    """Return the honest runs and their hashes, which a plain run of the configuration has too."""
    rows = [
        [
            f"{label_of(case.strategy)}, {case.dataset}, {case.split}",
            str(run.seed),
            run.params_sha256[:12],
            ", ".join(map(str, run.flagged)) or "none",
        ]
        for case in audit.cases
        for run in case.baselines
    ]
    header = ["Honest run", "Seed", "Weights", "Clients flagged"]
    items: list[Table | Code] = [
        Table("baselines", "The honest runs", header, rows),
        Code("The version", f"flamma {audit.flamma}"),
    ]
    lead = "What all deviations are compared with; a plain run of the same seed has these weights."
    return Section("again", "The honest runs", lead, items)
