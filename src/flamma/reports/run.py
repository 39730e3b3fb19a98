"""The section of a run's page on its ledger: payments, fines, flags and the budget."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flamma.errors import FlammaError
from flamma.experiments.accounts import Accounts, accounts_of
from flamma.experiments.folder import CONFIG, POPULATION
from flamma.experiments.ledger import Ledger, LedgerConfig, read_ledger
from flamma.experiments.result import sample_text
from flamma.io import folder_bytes
from flamma.metrics import METRICS, ScoreMetric, shown_in
from flamma.registry import from_table
from flamma.reports import run_charts
from flamma.reports.audit import audit_sections
from flamma.reports.document import (
    SHOWN_CLIENTS,
    Chart,
    Charts,
    Code,
    Document,
    Explorer,
    Facts,
    Item,
    Plotly,
    Section,
    Table,
    View,
    axes,
    byte_size,
    even_sample,
    fact,
    line,
    notice,
    number_text,
    short_numbers,
)
from flamma.reports.reading import ConfinedRunFolder, RunView, read_run, run_progress
from flamma.reports.run_charts import RANKS, is_crowd
from flamma.strategies import label_of

_SHOWN_REASONS = 12
"""Reasons of payments in the table, the most frequent ones."""


def _ledger_section(run: RunView) -> list[Section]:
    """Return the section of the ledger, none if there is no ledger or it is not as written.

    What is wrong with it is added to the problems of the run.
    """
    if not run.config:  # its currency and factor are lost, and the problem is named already
        return []
    try:
        config = LedgerConfig(**from_table(LedgerConfig, run.table("ledger"), "ledger."))
        folder = ConfinedRunFolder(run.path, run.problems)
        text = folder.text(POPULATION)
        ledger = read_ledger(folder, config, text, run.rounds, ended=run.finished)
    except FlammaError as error:
        run.problems.append(str(error).rstrip("."))
        return []
    if ledger is None:
        if any(record.run and record.is_paid for record in run.rounds):
            run.problems.append("ledger.csv is missing: what clients are owed is not shown")
        return []
    if not ledger.lines:
        return []
    per_round = run.config.get("per_round")
    if not isinstance(per_round, int):
        per_round = max(len(record.selected) for record in run.rounds)
    payments = max(1, run.planned_rounds * per_round)
    accounts = accounts_of(ledger, run.rounds, payments)
    items: list[Item] = [
        _ledger_facts(accounts),
        Charts([_clients(run, accounts), _rounds(run, ledger)]),
    ]
    reasons = Counter(entry.reason for entry in ledger.lines if entry.reason)
    if reasons:
        rows = [[reason, f"{times}"] for reason, times in reasons.most_common(_SHOWN_REASONS)]
        items.append(
            Table("payment-reasons", "Flags, failures, abstentions", ["reason", "times"], rows)
        )
    lead = (
        f"What each client is owed for its work. The hashes of all {accounts.lines:,} lines were "
        f"checked; the last one is {accounts.last_hash}."
    )
    return [Section("ledger", "Ledger", lead, items)]


def _ledger_facts(accounts: Accounts) -> Facts:
    flags = sum(own.flags for own in accounts.clients)
    facts = [
        ("paid", number_text(accounts.net), f"{accounts.currency}, net of fines"),
        ("fines", number_text(accounts.fines), accounts.currency),
        ("flags", str(flags), "answers that looked wrong"),
    ]
    if accounts.budget is not None and accounts.left is not None:
        capped = f"it capped {accounts.capped} of {accounts.lines} offers"
        facts += [
            ("budget", number_text(accounts.budget), f"{accounts.currency}; {capped}"),
            ("left", number_text(accounts.left), accounts.currency),
        ]
    return Facts(facts)


def _clients(run: RunView, accounts: Accounts) -> Chart:
    """Return the payments of each client, or of very many from the least to the best paid."""
    unit = accounts.currency
    if is_crowd(run):
        paid = np.zeros(run.clients)
        for own in accounts.clients:
            paid[own.client] = own.net
        shares = np.linspace(0, 100, RANKS)
        ranked = line("paid", shares, np.quantile(paid, shares / 100))
        return Chart(
            "payments",
            "Payments of the clients",
            f"All {run.clients:,} clients from the least to the best paid, over all rounds.",
            [View([ranked], axes("share of the clients, %", unit))],
        )
    by_client = {own.client: own for own in accounts.clients}
    rows = even_sample(run.clients, SHOWN_CLIENTS)
    names = [run.client_label(client) for client in rows]

    def bars(name: str, values: Sequence[float | None], series: int) -> Plotly:
        shown = short_numbers(values)
        return {"type": "bar", "name": name, "x": names, "y": shown, "series": series}

    paid_out = [by_client[c].net if c in by_client else 0.0 for c in rows]
    traces = [bars("paid", paid_out, 0)]
    if accounts.fines:
        fined = [by_client[c].fines or None if c in by_client else None for c in rows]
        traces.append(bars("fines", fined, 5))
    note = "" if len(rows) == run.clients else f" Shown are {len(rows)}, evenly chosen."
    return Chart(
        "payments",
        "Payments of every client",
        "What each client is owed over all rounds, net of its fines; bars of equal height are "
        "equal pay." + note,
        [View(traces, axes("client", unit, x_type="category"))],
    )


def _rounds(run: RunView, ledger: Ledger) -> Chart:
    """Return what was paid up to each round, and the budget."""
    totals = {entry.round: entry.run_total for entry in ledger.lines}
    rounds, unit, budget = list(totals), ledger.config.currency, ledger.config.budget
    traces = [line("paid", rounds, list(totals.values()))]
    aid = "All payments up to each round."
    if budget is not None:
        traces.append(line("budget", rounds, [budget] * len(rounds), 4))
        aid = "All payments up to each round stay below the budget, the dashed line."
        if ledger.lines[-1].run_total > budget:
            aid = "All payments up to each round, which exceed the budget, the dashed line."
    layout = axes("round", unit, y_rangemode="tozero")
    return Chart("paid-total", "Payments over the rounds", aid, [View(traces, layout)])


# The page of one run.

_SHOWN_CONFIG_CHARACTERS = 100_000
"""Characters of a configuration that are shown; a real one has a thousand."""

_VERSIONS = ("flamma", "python", "numpy", "torch", "trainer", "machine", "started", "finished")
_EVENNESS = {
    "selection_jain": "1 is even",
    "selection_gini": "0 is even",
    "selection_coverage": "share of all clients",
}
"""Metrics of participation that are facts of its section, and how to read them."""


def run_document(path: Path) -> Document:
    """Return the page of a run directory, of what can be read of it."""
    return _document_of(read_run(path))


def _document_of(run: RunView) -> Document:
    """Return the page of a run."""
    data, model = run.table("data"), run.table("model")
    dataset, split = data.get("dataset", "unknown data"), data.get("split", "unknown split")
    subtitle = (
        f"{model.get('name', 'unknown model')}, {run.clients:,} clients, "
        f"{run.config.get('per_round', 'some')} per round, "
        f"{len(run.rounds)} of {run.planned_rounds} rounds, "
        f"seed {run.config.get('seed', 'unknown')}"
        f"{'' if run.stopped is None else f'; {run.stopped}'}"
    )
    facts, sections = _facts(run), [part for part in _sections(run) if part.items]
    return Document(
        kind="run",
        title=f"{label_of(run.strategy)} on {dataset} ({split})",
        subtitle=subtitle,
        # Drawing may have added problems.
        notices=[notice(text) for text in (run.diverged, *run.problems) if text],
        facts=facts,
        sections=sections,
        footer=f"Made by FLamma from {run.path.name or run.path}",
        progress=run_progress(run),
    )


def _facts(run: RunView) -> Facts:
    """Return every metric of the page that the run has, and what those of a sample are over."""
    values = {name: run.of_run(name) for name in shown_in("page")} if run.rounds else {}
    over = "" if run.sample is None else f", over {sample_text(run.sample, run.clients)}"
    over += ", of clients' own models" * run.personal
    facts = []
    for name, value in values.items():
        if value is not None:
            metric = METRICS[name].scored_by(run.score_kind)
            label, text, note = fact(metric, value, run.of_rounds(name))
            facts.append((label, text, note + over * isinstance(metric, ScoreMetric)))
    if run.rounds and (spent := run.rounds[-1].privacy):
        told = f"{spent}, of each client (zero-out neighbours)"
        facts.append(("Privacy ε", f"{spent.epsilon:.4g}", told))
    return Facts(facts)


def _sections(run: RunView) -> list[Section]:
    parts: list[Section] = []
    if run.rounds:
        model = "Each client's own model" if run.personal else "The global model"
        lead = f"{model} on every client's own held-out data."
        if run.sample is not None:
            over = sample_text(run.sample, run.clients)
            lead = f"{model} on the held-out data of {over}, drawn once by the seed."
        quality: list[Charts] = [run_charts.quality(run)]
        if run.scores.rounds:
            quality.append(run_charts.client_accuracy(run))
        parts.append(Section("quality", "Model quality", lead, quality))
        parts += _game_sections(run)
        parts.append(_participation(run))
        parts += _ledger_section(run)
        parts += audit_sections(run.path, run.problems)
    if run.population.samples.size:
        parts.append(
            Section(
                "data",
                "The clients' data",
                "What each client trains on.",
                [run_charts.local_data(run)],
            )
        )
    parts.append(_reproduction(run))
    return parts


def _game_sections(run: RunView) -> list[Section]:
    if not run_charts.has_game(run):
        return []
    sections = [
        Section(
            "game",
            "The game",
            "In each round the server announces γ, and every selected client answers with the "
            "number of epochs that is best for itself.",
            [
                run_charts.decay(run),
                run_charts.contributions(run),
                run_charts.utilities(run),
                run_charts.certificate(run),
            ],
        )
    ]
    offered = run_charts.explorer_games(run)
    if offered:
        sections.append(
            Section(
                "explorer",
                "Game explorer",
                run_charts.EXPLORER_LEAD,
                [Explorer(offered)],
            )
        )
    return sections


def _participation(run: RunView) -> Section:
    failures = sum(len(record.outcome.failed) for record in run.rounds)
    abstentions = sum(len(record.outcome.abstained) for record in run.rounds)
    facts = [
        (METRICS[name].label, number_text(run.of_run(name), 3), note)
        for name, note in _EVENNESS.items()
    ]
    facts += [
        ("failures", str(failures), "over all rounds"),
        ("abstentions", str(abstentions), "over all rounds"),
    ]
    if surveys := [record.survey for record in run.rounds if record.survey is not None]:
        asked, sent = (sum(getattr(s, of) for s in surveys) for of in ("asked", "bytes_down"))
        note = f"before selections; {byte_size(sent)} of weights sent for it"
        facts.append(("losses asked for", f"{asked:,}", note))
    items: list[Item] = [Facts(facts), run_charts.selections(run), run_charts.local_epochs(run)]
    reasons = Counter(reason for record in run.rounds for reason in record.outcome.failed.values())
    for record in run.rounds:
        unscored = {} if record.evaluation is None else record.evaluation.unscored
        reasons.update(f"no score: {reason}" for reason in unscored.values())
    if reasons:
        rows = [[reason, f"{times}"] for reason, times in reasons.most_common(12)]
        items.append(Table("reasons", "Why clients failed", ["reason", "times"], rows))
    lead = "Which clients were selected, how much each trained, and which failed or abstained."
    return Section("participation", "Participation", lead, items)


def _reproduction(run: RunView) -> Section:
    items: list[Item] = []
    if run.config_text:
        again = f"flamma run {shlex.quote(str(run.path / CONFIG))} --out runs/again"
        items.append(Code("Run it again, exactly", again))
    if run.command:
        items.append(Code("The command of this run", run.command))
    rows = [[name, str(run.about[name])] for name in _VERSIONS if name in run.about]
    rows.append(["run directory", byte_size(folder_bytes(run.path))])
    if run.finished and "params_sha256" in run.about:
        rows.append(["weights, SHA-256", str(run.about["params_sha256"])])
    if rows:
        items.append(Table("versions", "Versions and fingerprint", ["what", "value"], rows))
    if run.config_text:
        text = run.config_text[:_SHOWN_CONFIG_CHARACTERS]
        items.append(Code("The whole configuration", text, folded=True))
    return Section("again", "Run it again", "Everything that determines this run.", items)
