"""The heat map and the table of an audited case: clients by deviations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flamma.errors import FlammaError
from flamma.experiments.findings import (
    AUDIT_FILE,
    Audit,
    AuditedCase,
    Finding,
    deviation_of,
    mean_share,
    percent,
    read_audit,
)
from flamma.reports.document import (
    MAX_FACTS,
    Chart,
    Charts,
    Code,
    Document,
    Facts,
    Plotly,
    Section,
    Table,
    TableCell,
    View,
    axes,
    heatmap,
    notice,
)
from flamma.strategies import label_of

FULL_COLOUR = 1.0
"""The relative gain from which on cells have the darkest colour."""

_SMALLEST_RANGE = 1.0
"""Changes of accuracy are coloured as if at least one of them was of this size."""

_ROW_PIXELS, _CHART_PIXELS = 25, 110
"""The height of a heat map: for each row, and for all that is around them."""

_CHANGES = (
    ("accuracy_change", "own accuracy", "percentage points", "good"),
    ("others_accuracy_change", "others' accuracy", "percentage points", "good"),
    ("others_variance_change", "others' variance", "percent squared", "bad"),
    ("others_worst_change", "others' worst", "percentage points", "good"),
)
"""What else changes: the attribute, what it is called, its unit, and whether more is good."""


def _gains_map(case: AuditedCase, name: str) -> Charts:
    """Return the heat map of gains, with the changes of accuracies as further views."""
    rows = [[case.of(subject, d) for subject in case.subjects] for d in case.deviations]
    views = [_view(case, rows, _gain, _gain_text, "gain, share of honest utility", "bad", "gain")]
    for attribute, label, unit, more_is in _CHANGES:

        def value(finding: Finding, attribute: str = attribute) -> float | None:
            found: float | None = getattr(finding, attribute)
            return found

        views.append(_view(case, rows, value, _change_text, unit, more_is, label))
    seeds = len(case.baselines)
    over = "" if seeds == 1 else f", in the mean over {seeds} seeds"
    aid = (
        "What a client gains in utility at its true cost when it alone deviates, as a share of "
        f"its honest utility{over}. Red is a gain, or harm to others; blue the opposite."
    )
    height = _CHART_PIXELS + _ROW_PIXELS * len(rows)
    chart = Chart(f"gains-{name}", "Gain by deviating", aid, views, wide=True, height=height)
    return Charts([chart])


def _gains_table(case: AuditedCase, name: str) -> Table:
    """Return the gains as numbers, with what they did to the others and whether it was noticed."""
    header = ["Deviation", *(_client(subject) for subject in case.subjects)]
    header += ["Own accuracy", "Others", "Variance", "Worst", "Flagged"]
    rows: list[list[str | TableCell]] = []
    for deviation in case.deviations:
        own = [f for f in case.findings if f.deviation == deviation]
        line: list[str | TableCell] = [deviation]
        line += [_gain_cell(case.of(subject, deviation)) for subject in case.subjects]
        for attribute, *_ in _CHANGES:
            mean = _mean([getattr(finding, attribute) for finding in own])
            line.append(TableCell(_change_text(mean), mean))
        flagged = [finding for finding in own if finding.flagged]
        text = f"{len(flagged)} of {len(own)}" if flagged else "no"
        rows.append([*line, TableCell(text, note=flagged[0].flag if flagged else "")])
    notes = [
        "Gains are in utility, pay less true cost over all rounds, as a share of the honest "
        "utility (a multiple where it ends in x; in utility itself, in brackets, where the honest "
        "utility is 0), mean ± standard deviation over seeds. The other columns are changes over "
        "the last evaluated rounds, ten at most, in the mean over all audited clients: of the "
        "client's own accuracy, and of the mean, the variance and the lowest accuracy of all "
        "others, in percentage points and, of the variance, in percent squared."
    ]
    if any(len(finding.group) > 1 for finding in case.findings):
        notes.append("Where clients deviate together, the gain is theirs together.")
    return Table(f"audit-{name}", "Gains and harm", header, rows, notes)


def _view(
    case: AuditedCase,
    rows: Sequence[Sequence[Sequence[Finding]]],
    of: Callable[[Finding], float | None],
    text: Callable[[float | None], str],
    unit: str,
    more_is: str,
    label: str,
) -> View:
    values = [[_mean([of(finding) for finding in cell]) for cell in row] for row in rows]
    sizes = [abs(value) for row in values for value in row if value is not None]
    most = FULL_COLOUR if of is _gain else max([_SMALLEST_RANGE, *sizes])
    more: Plotly = {
        "scale": "diverging",
        "reversescale": more_is == "bad",
        "zmin": -most,
        "zmax": most,
        "text": [[text(value) for value in row] for row in values],
        "hovertext": [[_hover(cell, of, text) for cell in row] for row in rows],
    }
    clients = [_client(subject) for subject in case.subjects]
    layout = axes(
        "client", "deviation", x_type="category", y_type="category", y_autorange="reversed"
    )
    return View([heatmap(clients, case.deviations, values, unit, **more)], layout, label)


def _hover(
    cell: Sequence[Finding],
    of: Callable[[Finding], float | None],
    text: Callable[[float | None], str],
) -> str:
    """Return what a cell tells when one points at it: every seed, and what the server noticed."""
    parts = [f"seed {f.seed}, client {f.client}: {text(of(f))}" for f in cell]
    flags = sorted({finding.flag for finding in cell if finding.flag})
    return "; ".join([*parts, *(f"flagged: {flag}" for flag in flags)])


def _gain(finding: Finding) -> float | None:
    return finding.relative_gain


def _gain_text(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _change_text(value: float | None) -> str:
    if value is None:
        return "-"
    return "0" if abs(value) < 0.05 else f"{value:+.1f}"


def _gain_cell(findings: Sequence[Finding]) -> str | TableCell:
    known = [f.relative_gain for f in findings if f.relative_gain is not None]
    if known:
        return TableCell(mean_share(known), sum(known) / len(known), deviation_of(known))
    absolute = _mean([finding.gain for finding in findings])
    return "not run" if absolute is None else TableCell(f"({absolute:+.3g})")


def _client(subject: str) -> str:
    return f"client {subject}" if subject.isdigit() else subject


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# The page of an audit, and the section of it in the page of the run that was audited.

_AUDIT_OF_RUN = "audit"
"""Where the audit of a run is, in its directory."""


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
    if not is_audit(run / _AUDIT_OF_RUN):
        return []
    try:
        return [_section(case) for case in read_audit(run / _AUDIT_OF_RUN).cases]
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
    return Facts(facts[:MAX_FACTS])


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
        [_gains_map(case, name), _gains_table(case, name)],
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
