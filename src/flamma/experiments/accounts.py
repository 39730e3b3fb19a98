"""What a ledger comes to: an account for each client, the budget, and inspections that deter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from flamma.errors import RunError
from flamma.experiments.folder import POPULATION, RunFolder
from flamma.experiments.ledger import FLAGGED, LEDGER, Ledger, LedgerLine, pays, read_ledger
from flamma.experiments.population import read_columns
from flamma.experiments.run import Run
from flamma.game import Game
from flamma.game.costs import deterring_fine, free_riding, smallest_inspection_rate
from flamma.io import JsonTable
from flamma.records import RoundRecord
from flamma.types import Floats

_AT_THE_CAP = 1e-6
"""An offer that is this near to its share of the budget, relatively, was capped by it."""


@dataclass(frozen=True)
class Account:
    """What one client was paid over all rounds, in the ledger's currency.

    ``share`` is its part of all payments, None where these come to nothing; ``rounds_paid`` counts
    the rounds in which it was owed something, and ``flags`` those in which it was flagged.
    """

    client: int
    name: str
    rounds_paid: int
    gross: float
    fines: float
    net: float
    share: float | None
    flags: int


@dataclass(frozen=True)
class Accounts:
    """The accounts of a run.

    Attributes
    ----------
    currency : str
        What the amounts are counted in.
    clients : tuple of Account
        By client; only those that were ever selected.
    gross, fines, net : float
        Over all clients.
    budget, left : float
        None where there is no budget. What is left is negative where it was exceeded.
    lines : int
        Payments, which are also the offers that were made.
    capped : int
        Offers whose pay for the most epochs is just a share of the budget.
    last_hash : str
        The hash of the last line.
    """

    currency: str
    clients: tuple[Account, ...]
    gross: float
    fines: float
    net: float
    budget: float | None
    left: float | None
    lines: int
    capped: int
    last_hash: str

    def as_json(self) -> JsonTable:
        """Return the accounts as JSON has them."""
        return asdict(self)


@dataclass(frozen=True)
class Deterred:
    """What keeps one client from free-riding in every round.

    ``gain`` is the most that it could gain in a round by claiming the most epochs without any
    work; ``rate`` and ``fine`` together make that pay in no round. Amounts are in the ledger's
    currency.
    """

    client: int
    name: str
    gain: float
    rate: float
    fine: float


def run_ledger(run: Run) -> Ledger:
    """Return the ledger of a run.

    Raises
    ------
    RunError
        If it has none, or a line of it is not as it was written.
    """
    folder = RunFolder(run.path)
    ledger = read_ledger(
        folder, run.config.ledger, folder.text(POPULATION), run.history, ended=run.finished
    )
    if ledger is None:
        raise RunError(f"{run.path} has no {LEDGER}: runs whose strategy pays nothing have none.")
    return ledger


def accounts_of(ledger: Ledger, records: Sequence[RoundRecord], payments: int) -> Accounts:
    """Return the accounts of a ledger.

    Parameters
    ----------
    ledger : Ledger
    records : sequence of RoundRecord
        Of the same run; they know how many epochs were on offer.
    payments : int
        Into how many shares the budget is divided: rounds times clients per round.
    """
    by_client: dict[int, list[LedgerLine]] = {}
    for line in ledger.lines:
        by_client.setdefault(line.client, []).append(line)
    net = ledger.lines[-1].run_total if ledger.lines else 0.0
    accounts = tuple(_account(by_client[client], net) for client in sorted(by_client))
    budget = ledger.config.budget
    return Accounts(
        currency=ledger.config.currency,
        clients=accounts,
        gross=math.fsum(line.gross for line in ledger.lines),
        fines=math.fsum(line.fine for line in ledger.lines),
        net=net,
        budget=budget,
        left=None if budget is None else budget - net,
        lines=len(ledger.lines),
        capped=_capped(ledger, records, payments),
        last_hash=ledger.last_hash,
    )


def deterrence(
    ledger: Ledger,
    records: Sequence[RoundRecord],
    costs: Floats | None,
    *,
    fine: float | None = None,
    rate: float | None = None,
) -> list[Deterred]:
    """Return, for each client, the inspections that make free-riding pay in no round.

    A client that is caught is paid nothing for the round and fined. Against being honest it loses
    the fine and its honest utility; what it gains if it is not caught is in
    :func:`flamma.game.costs.free_riding`.

    Parameters
    ----------
    ledger : Ledger
    records : sequence of RoundRecord
        Of the same run.
    costs : ndarray, optional
        The clients' true costs, NaN where they are not known. There the cost is taken that the
        server went by.
    fine : float, optional
        In the ledger's currency; the smallest rate follows from it.
    rate : float, optional
        The probability of an inspection, if no fine is given; the smallest fine follows from it.

    Raises
    ------
    RunError
        If no record says how many epochs were on offer.
    """
    factor = ledger.config.factor
    found: dict[int, tuple[float, float, float]] = {}
    for record in records:
        if record.game is None or not pays(record):
            continue
        gain, honest = _free_riding(record, costs)
        if fine is not None:
            fines = np.full(gain.shape, fine)
            rates = smallest_inspection_rate(gain, np.maximum(fine / factor + honest, 0.0))
        else:
            rates = np.full(gain.shape, rate)
            fines = np.maximum(deterring_fine(gain, rates) - honest, 0.0) * factor
        for place, client in enumerate(record.selected):
            own = (gain[place] * factor, rates[place], fines[place])
            before = found.get(client, (0.0, 0.0, 0.0))
            g, r, f = (max(float(new), old) for new, old in zip(own, before, strict=True))
            found[client] = (g, r, f)
    if not found:
        raise RunError(f"the records beside {LEDGER} do not say how many epochs were on offer.")
    names = {line.client: line.name for line in ledger.lines}
    return [Deterred(client, names.get(client, ""), *found[client]) for client in sorted(found)]


def true_costs_of(population: str) -> Floats | None:
    """Return the column of costs of the text of ``population.csv``, None if it cannot be read."""
    try:
        return read_columns(population)["cost"]
    except (KeyError, ValueError):
        return None


def _account(lines: Sequence[LedgerLine], total: float) -> Account:
    last = lines[-1]
    return Account(
        client=last.client,
        name=last.name,
        rounds_paid=sum(line.gross > 0 for line in lines),
        gross=math.fsum(line.gross for line in lines),
        fines=math.fsum(line.fine for line in lines),
        net=last.client_total,
        share=last.client_total / total if total > 0 else None,
        flags=sum(line.reason.startswith(FLAGGED) for line in lines),
    )


def _capped(ledger: Ledger, records: Sequence[RoundRecord], payments: int) -> int:
    budget = ledger.config.utility_budget
    if budget is None:
        return 0
    most: Mapping[int, float] = {
        record.round: record.game.epoch_bounds[1] for record in records if record.game is not None
    }
    share = budget / payments
    offered = (
        line.decay_factor * line.contribution * most.get(line.round, 0.0) for line in ledger.lines
    )
    return sum(math.isclose(offer, share, rel_tol=_AT_THE_CAP) for offer in offered)


def _free_riding(record: RoundRecord, costs: Floats | None) -> tuple[Floats, Floats]:
    """Return the gains of free-riding in a round and the honest utilities, by selected client."""
    game = record.game
    assert game is not None
    offer = record.offer
    assert offer.contributions is not None
    selected = np.array(record.selected, dtype=np.int64)
    taken = np.array(game.costs)
    true = taken if costs is None else costs[selected]
    played = Game(
        offer.contributions,
        np.where(np.isnan(true), taken, true),
        epoch_bounds=game.epoch_bounds,
    )
    gammas = offer.decay_factor if offer.decay_factors is None else offer.decay_factors
    return free_riding(played, gammas)
