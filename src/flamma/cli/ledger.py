"""``flamma ledger``: what the clients of a run are owed, checked before it is told."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.cli.console import print_json
from flamma.cli.parser import Parser
from flamma.errors import FlammaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flamma.experiments.accounts import Account, Accounts, Deterred
    from flamma.experiments.run import Run

_EXAMPLES = """\
examples:
  flamma ledger runs/first                  an account for each client, totals, budget
  flamma ledger runs/first --csv            the same for a spreadsheet
  flamma ledger runs/first --fine 5         how often to inspect, if a fine is 5
  flamma ledger runs/first --rate 0.1       the fine that deters, if one answer in ten is inspected

The ledger is checked first: a line that was changed, removed, moved or added by hand is named, and
nothing else is printed. Amounts are in the currency of the [ledger] table.
"""

_MAX_TABLE_ACCOUNTS = 40
"""Accounts that the table on a terminal shows."""

_ACCOUNT_COLUMNS = ("client", "name", "rounds_paid", "gross", "fines", "net", "share", "flags")
_DETERRED_COLUMNS = ("client", "name", "gain", "rate", "fine")


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma ledger`` to the command line."""
    parser = commands.add_parser(
        "ledger",
        help="what each client of a run is owed, and how often to inspect",
        description="Check the ledger of a run, and print an account for each client.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("dir", type=Path, metavar="RUN", help="the run directory")
    inspections = parser.add_argument_group(
        "inspections", "what deters every client from claiming epochs that it has not done"
    ).add_mutually_exclusive_group()
    inspections.add_argument(
        "--fine", type=float, help="print the smallest inspection rates for this fine"
    )
    inspections.add_argument(
        "--rate", type=float, help="print the smallest fines for this inspection rate"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON instead of a table")
    output.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    parser.set_defaults(run=_run_ledger_command)


def _run_ledger_command(options: argparse.Namespace) -> None:
    """Run ``flamma ledger``."""
    if options.fine is not None and not (options.fine >= 0 and math.isfinite(options.fine)):
        raise FlammaError(f"--fine must be a number from 0 on, not {options.fine:g}.")
    if options.rate is not None and not 0 < options.rate <= 1:
        raise FlammaError(f"--rate must be above 0 and at most 1, not {options.rate:g}.")
    from flamma.experiments.accounts import accounts_of, run_ledger
    from flamma.experiments.run import Run

    run = Run.load(options.dir)
    ledger = run_ledger(run)
    if options.fine is not None or options.rate is not None:
        from flamma.experiments.accounts import deterrence, true_costs_of
        from flamma.experiments.folder import POPULATION, RunFolder

        costs = true_costs_of(RunFolder(run.path).text(POPULATION))
        found = deterrence(ledger, run.history, costs, fine=options.fine, rate=options.rate)
        _print_deterred(run, ledger.config.currency, found, options)
        return
    accounts = accounts_of(ledger, run.history, run.config.rounds * run.config.per_round)
    if options.json:
        print_json({"path": str(run.path), "finished": run.finished, **accounts.as_json()})
    elif options.csv:
        _print_csv(_ACCOUNT_COLUMNS, accounts.clients)
    else:
        _print_accounts(run, accounts)


def _print_accounts(run: Run, accounts: Accounts) -> None:
    print(f"ledger intact: {accounts.lines} lines, the last hash is {accounts.last_hash}\n")
    most = sorted(accounts.clients, key=lambda own: (-own.net, own.client))[:_MAX_TABLE_ACCOUNTS]
    shown = sorted(most, key=lambda own: own.client)
    rows = [_account_row(own) for own in shown]
    totals = [_amount(value) for value in (accounts.gross, accounts.fines, accounts.net)]
    flags = sum(own.flags for own in accounts.clients)
    rows.append(["all", "", *totals, "100%", str(flags)])
    header = ["client", "rounds paid", "gross", "fines", "net", "share", "flags"]
    _print_table(header, rows)
    if left_out := len(accounts.clients) - len(shown):
        print(f"These are the {len(shown)} best paid; --csv has the other {left_out:,} too.")
    print(f"\nAmounts are in {accounts.currency}.{_budget_text(accounts)}")
    if not run.finished:
        print(f"The run is not finished: {len(run.history)} of {run.config.rounds} rounds.")


def _account_row(own: Account) -> list[str]:
    share = "-" if own.share is None else f"{own.share:.1%}"
    return [
        f"{own.client} {own.name}".strip(),
        str(own.rounds_paid),
        _amount(own.gross),
        _amount(own.fines),
        _amount(own.net),
        share,
        str(own.flags),
    ]


def _budget_text(accounts: Accounts) -> str:
    if accounts.budget is None or accounts.left is None:
        return " There is no budget."
    if accounts.left < 0:
        return (
            f" The budget of {_amount(accounts.budget)} is exceeded by {_amount(-accounts.left)}."
        )
    binds = (
        f"it capped {accounts.capped} of {accounts.lines} offers"
        if accounts.capped
        else "it capped no offer"
    )
    return (
        f" Of the budget of {_amount(accounts.budget)}, {_amount(accounts.left)} is left; {binds}."
    )


def _print_deterred(
    run: Run, currency: str, found: Sequence[Deterred], options: argparse.Namespace
) -> None:
    key = "rate" if options.rate is None else "fine"
    most = max(getattr(own, key) for own in found)
    if options.json:
        clients = [{name: getattr(own, name) for name in _DETERRED_COLUMNS} for own in found]
        given = {"fine": options.fine, "rate": options.rate}
        told = {k: most if v is None else v for k, v in given.items()}
        print_json({"path": str(run.path), "currency": currency, **told, "clients": clients})
        return
    if options.csv:
        _print_csv(_DETERRED_COLUMNS, found)
        return
    shown = sorted(
        sorted(found, key=lambda own: (-getattr(own, key), own.client))[:_MAX_TABLE_ACCOUNTS],
        key=lambda own: own.client,
    )
    rows = [
        [f"{own.client} {own.name}".strip(), _amount(own.gain), _amount(getattr(own, key))]
        for own in shown
    ]
    _print_table(["client", "largest gain", f"smallest {key}"], rows)
    if left_out := len(found) - len(shown):
        print(f"These need the most; --csv has the other {left_out:,} too.")
    per_round = run.config.per_round
    if key == "rate":
        sentence = (
            f"With a fine of {_amount(options.fine)} {currency}, inspecting every answer with "
            f"probability {most:.4g} deters every client in every round: {most * per_round:.3g} "
            f"inspections a round."
        )
    else:
        sentence = (
            f"If every answer is inspected with probability {options.rate:.4g}, a fine of "
            f"{_amount(most)} {currency} deters every client in every round."
        )
    print(f"\n{sentence}\nGains are in {currency}, of claiming the most epochs for no work.")


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from flamma.experiments.result import text_table

    print(text_table(header, rows))


def _print_csv(columns: Sequence[str], entries: Sequence[object]) -> None:
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for entry in entries:
        writer.writerow([getattr(entry, column) for column in columns])


def _amount(value: float) -> str:
    return "0" if abs(value) < 1e-9 else f"{value:.6g}"
