"""What each answer adds to the aggregate, on the server's validation set."""

from __future__ import annotations

from typing import Any

from flamma.errors import StrategyError
from flamma.strategies.base import Answers, Strategy, data_shares
from flamma.types import Params


def marginal_gains(strategy: Strategy[Any], received: Params, answers: Answers) -> list[float]:
    """Return the validation loss of the aggregate without each answer, minus that with all.

    An answer above 0 helped. Without the only one there is, the aggregate is the received model. A
    gain is not finite if one of the losses is not.

    Raises
    ------
    StrategyError
        If the server has no validation set.
    """
    accepted, validate, reference = answers.accepted, answers.validate, answers.reference
    if validate is None:
        raise StrategyError(f"{strategy.name} needs a validation set: set data.validation_samples.")
    shares = data_shares(accepted)
    together = validate(strategy.average(accepted, shares, reference))[0]
    gains = []
    for k in range(len(accepted)):
        others = [*accepted[:k], *accepted[k + 1 :]]
        rest = [*shares[:k], *shares[k + 1 :]]
        without = strategy.average(others, rest, reference) if others else received
        gains.append(validate(without)[0] - together)
    return gains
