"""The work of a client from flat settings, as most tests want it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flamma.types import OWN_DATA, DataUse, LocalWork, Objective, ReportedLoss, Terms


def work(
    client: int = 0,
    round: int = 1,
    epochs: int = 1,
    learning_rate: float = 0.1,
    *,
    batches: int | None = None,
    report_loss: ReportedLoss = "no",
    train: bool = True,
    data: DataUse = OWN_DATA,
    personal: bool = False,
    **objective: Any,
) -> LocalWork:
    terms = Terms(
        client,
        round,
        batches=batches,
        objective=Objective(**objective),
        report_loss=report_loss,
        train=train,
    )
    return LocalWork(terms, epochs, learning_rate, data, personal)


def on_terms(done: LocalWork, **changes: Any) -> LocalWork:
    return replace(done, terms=replace(done.terms, **changes))
