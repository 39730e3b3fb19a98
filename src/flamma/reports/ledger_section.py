"""The section of a run's page on its ledger: payments, fines, flags and the budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from flamma.errors import FlammaError
from flamma.experiments.accounts import Accounts, accounts_of
from flamma.experiments.folder import POPULATION
from flamma.experiments.ledger import LedgerConfig
from flamma.experiments.ledger_file import Ledger, read_ledger
from flamma.options import from_table
from flamma.reports.confined import ConfinedRunFolder
from flamma.reports.crowd_charts import RANKS, is_crowd
from flamma.reports.document import (
    Chart,
    Charts,
    Facts,
    Section,
    Table,
    View,
    axes,
    even_sample,
    line,
    number_text,
    short_numbers,
)
from flamma.reports.reading import RunView
from flamma.reports.run_charts import SHOWN_CLIENTS

SHOWN_REASONS = 12
"""Reasons of payments in the table, the most frequent ones."""


def ledger_section(run: RunView) -> list[Section]:
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
    payments = max(1, run.planned_rounds * _per_round(run))
    accounts = accounts_of(ledger, run.rounds, payments)
    items: list[Any] = [_facts(accounts), Charts([_clients(run, accounts), _rounds(run, ledger)])]
    reasons = Counter(entry.reason for entry in ledger.lines if entry.reason)
    if reasons:
        rows = [[reason, f"{times}"] for reason, times in reasons.most_common(SHOWN_REASONS)]
        items.append(
            Table("payment-reasons", "Flags, failures, abstentions", ["reason", "times"], rows)
        )
    lead = (
        f"What each client is owed for its work. The hashes of all {accounts.lines:,} lines were "
        f"checked; the last one is {accounts.last_hash}."
    )
    return [Section("ledger", "Ledger", lead, items)]


def _per_round(run: RunView) -> int:
    told = run.config.get("per_round")
    return told if isinstance(told, int) else max(len(record.selected) for record in run.rounds)


def _facts(accounts: Accounts) -> Facts:
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

    def bars(name: str, values: Sequence[float | None], series: int) -> dict[str, Any]:
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
