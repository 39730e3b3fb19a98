"""Runs in which nobody trained: they end like any other, and must not be taken for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flamma.errors import EmptyRunError
from flamma.records import RoundRecord


def check_trained(history: Sequence[RoundRecord], where: str = "") -> None:
    """Refuse to call a run done in which no update of any client was used.

    Parameters
    ----------
    history : sequence of RoundRecord
        The rounds of the run.
    where : str
        Where it is recorded, for the message.

    Raises
    ------
    EmptyRunError
        If there are rounds, and all of them are empty; it says why they are.
    """
    if not history or any(record.used for record in history):
        return
    recorded = f" The rounds are recorded in {where}." if where else ""
    raise EmptyRunError(
        f"the model is untrained: no update of any client was used in {len(history)} "
        f"round{'s' if len(history) > 1 else ''}; {why_empty(history)}.{recorded}"
    )


def why_empty(history: Sequence[RoundRecord]) -> str:
    """Return why the rounds of a run are empty: who abstained, and the most frequent failure."""
    reasons = Counter(reason for record in history for reason in record.failed.values())
    abstained = sum(len(record.abstained) for record in history)
    parts = []
    if reasons:
        most, count = reasons.most_common(1)[0]
        parts.append(f'{reasons.total()} answers failed, {count} of them with "{most}"')
    if abstained:
        parts.append(f"{abstained} times a client abstained, {_why_abstained(history)}")
    return " and ".join(parts) or "nobody was there to be selected"


def _why_abstained(history: Sequence[RoundRecord]) -> str:
    told = [value for record in history for value in record.contributions or ()]
    if told and not any(told):
        return "as every contribution was 0: try a smaller learning rate or momentum"
    return "as training did not pay at these decay factors: lower the costs or change the strategy"
