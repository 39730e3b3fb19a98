"""Reports as they come in: one for each selected client, those refused that are not well formed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from flamma.strategies.exchange import Offer, State
from flamma.types import Report, Terms

NOT_FINITE = "refused: weights that are not finite"
"""Why an answer is refused whose training has diverged."""


def well_formed_reports(
    state: State,
    offer: Offer,
    reports: Sequence[Report],
    epoch_range: Callable[[Terms], tuple[int, int]],
) -> tuple[Report, ...]:
    """Return one report for each selected client, in order, without what is not well formed."""
    # Clients that did not introduce themselves are taken to have one sample each.
    introduced = bool((state.samples > 1).any())
    told = state.samples if introduced else np.full_like(state.samples, 2**62)
    return tuple(
        well_formed_report(report, state.params.size, epoch_range(terms), told[report.client])
        for report, terms in zip(one_each(offer, reports), offer.terms, strict=True)
    )


def one_each(offer: Offer, reports: Sequence[Report]) -> list[Report]:
    """Return one report for each selected client, in order; a failed one where none was sent."""
    by_client: dict[int, Report] = {}
    for report in sorted(reports, key=lambda r: r.client):
        by_client.setdefault(report.client, report)
    missing = "no answer"
    return [
        by_client.get(c) or Report(c, params=None, samples=0, epochs=0, failure=missing)
        for c in offer.selected
    ]


def well_formed_report(report: Report, size: int, epochs: tuple[int, int], told: int) -> Report:
    """Return the report as it is, or without its weights and with the reason.

    A failed or refused report has done no epochs that count.
    """
    reason = ""
    fewest, most = epochs
    if report.failure:
        return replace(report, params=None, epochs=0)
    if report.params is None:
        return replace(report, epochs=0)
    if report.params.shape != (size,) or report.params.dtype != np.float32:
        reason = f"refused: {report.params.dtype} weights of shape {report.params.shape}"
    elif not np.isfinite(report.params).all():
        reason = NOT_FINITE
    elif report.samples <= 0:
        reason = f"refused: {report.samples} samples"
    elif report.samples > told:
        reason = f"refused: {report.samples} samples of a client that had {told}"
    elif not fewest <= report.epochs <= most:
        allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        reason = f"refused: {report.epochs} epochs where {allowed} were on offer"
    elif report.loss < 0:
        reason = f"refused: a loss of {report.loss:g}"
    return replace(report, params=None, epochs=0, failure=reason) if reason else report
