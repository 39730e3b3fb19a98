"""Runs in which nobody trained: they end like any other, and must not be taken for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flamma.errors import EmptyRunError
from flamma.records import RoundRecord

SHORTEST_STANDSTILL = 3
"""Rounds without a contribution at the end of a run from which on it stands still."""


def check_trained(history: Sequence[RoundRecord], where: str = "") -> None:
    """Refuse to call a run done in which nobody trained.

    Parameters
    ----------
    history : sequence of RoundRecord
        The rounds of the run.
    where : str
        Where it is recorded, for the message.

    Raises
    ------
    EmptyRunError
        If no update was used in any round, or if in the second half of the run, three rounds at
        least, all clients abstained since their contributions are 0, which nothing can change any
        more. It says why.
    """
    empty = empty_at_end(history)
    if not empty or not (len(empty) == len(history) or _stands_still(empty, len(history))):
        return
    recorded = f" The rounds are recorded in {where}." if where else ""
    what = f"the model is untrained: no client's update was used in {len(history)} rounds"
    if len(empty) < len(history):
        last = history[-len(empty) - 1].round
        what = f"the run stood still: no client's update was used after round {last}"
    raise EmptyRunError(f"{what}; {why_empty(empty)}.{recorded}")


def empty_at_end(history: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
    """Return the last rounds since an update was used."""
    used = [place for place, record in enumerate(history) if record.used]
    return history[used[-1] + 1 :] if used else history


def _stands_still(empty: Sequence[RoundRecord], rounds: int) -> bool:
    long = len(empty) >= max(SHORTEST_STANDSTILL, rounds / 2)
    return long and not any(record.failed for record in empty) and _is_worthless(empty)


def _is_worthless(history: Sequence[RoundRecord]) -> bool:
    """Whether contributions are known, and all of them are 0."""
    told = [value for record in history for value in record.contributions or ()]
    return bool(told) and not any(told)


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
    if _is_worthless(history):
        return "as every contribution was 0: try a smaller learning rate or momentum"
    return "as training did not pay at these decay factors: lower the costs or change the strategy"
