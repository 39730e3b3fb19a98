"""Runs in which nobody trained, or that diverged: they must not be taken for any other run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flamma.errors import DivergedError, EmptyRunError
from flamma.records import RoundRecord
from flamma.strategies.well_formed import NOT_FINITE

SHORTEST_STANDSTILL = 3
"""Rounds without a contribution at the end of a run from which on it stands still."""

DIVERGED_SHARE = 0.75
"""A run has diverged if more than this share of its answers were refused as not finite."""

END_OF_RUN = 0.25
"""The share of the rounds that also count alone: a run may diverge late."""

SMALL_CONTRIBUTION = 0.1
"""Where no client contributes as much, training changes models so much that none is alike."""


def check_trained(
    history: Sequence[RoundRecord],
    where: str = "",
    learning_rate: float | None = None,
    finite: bool = True,
) -> None:
    """Refuse to call a run done that diverged, or in which nobody trained.

    Parameters
    ----------
    history : sequence of RoundRecord
        The rounds of the run.
    where : str
        Where it is recorded, for the message.
    learning_rate : float, optional
        That of the clients, for the message.
    finite : bool
        Whether its final weights are finite.

    Raises
    ------
    DivergedError
        If the final weights are not finite, or most answers were refused since theirs were not.
    EmptyRunError
        If no update was used in any round, or if in the second half of the run, three rounds at
        least, all clients abstained since their contributions are 0, which nothing can change any
        more. It says why.
    """
    recorded = f" The rounds are recorded in {where}." if where else ""
    if diverged := why_diverged(history, learning_rate, finite):
        raise DivergedError(f"the run diverged: {diverged}.{recorded}")
    empty = empty_at_end(history)
    if not empty or not (len(empty) == len(history) or _stands_still(empty, len(history))):
        return
    what = f"the model is untrained: no client's update was used in {len(history)} rounds"
    if len(empty) < len(history):
        last = history[-len(empty) - 1].round
        what = f"the run stood still: no client's update was used after round {last}"
    raise EmptyRunError(f"{what}; {why_empty(empty)}.{recorded}")


def why_diverged(
    history: Sequence[RoundRecord], learning_rate: float | None = None, finite: bool = True
) -> str:
    """Return in what a run has diverged, and what the likely cause is; empty if it has not."""
    rate = "the learning rate" if learning_rate is None else f"the learning rate {learning_rate:g}"
    either = f"{rate} or a step of the server"
    if not finite:  # the server made them so, since it refuses answers that are not finite
        return (
            f"its final weights are not finite; most likely {either} is too large: try a smaller "
            f"one"
        )
    at_once = NOT_FINITE in history[0].failed.values() if history else False
    end = history[-max(SHORTEST_STANDSTILL, round(END_OF_RUN * len(history))) :]
    for part in (history, end):
        refused = sum(reason == NOT_FINITE for record in part for reason in record.failed.values())
        answers = refused + sum(record.used for record in part)
        if refused > DIVERGED_SHARE * answers:
            when = f" of the last {len(part)} rounds" if len(part) < len(history) else ""
            return (
                f"{refused} of {answers} answers{when} were refused as not finite; most likely "
                f"{rate if at_once else either} is too large: try a smaller one"
            )
    return ""


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
    if most := _small_contribution(history):
        return (
            f"as no contribution was above {most:.2g}, of 1 at most: try a smaller learning rate "
            f"or momentum"
        )
    return "as training did not pay at these decay factors: lower the costs or change the strategy"


def _small_contribution(history: Sequence[RoundRecord]) -> float:
    """Return the largest contribution if it is small, and a full one would pay; else 0."""
    most = max((value for record in history for value in record.contributions or ()), default=1.0)
    games = [record.game for record in history if record.game is not None]
    pays = any(
        game.costs and game.epoch_bounds and min(game.costs) * game.epoch_bounds[0] <= 1.0
        for game in games
    )
    return most if pays and most < SMALL_CONTRIBUTION else 0.0
