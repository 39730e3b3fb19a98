"""The game of a round in its record, certified by what clients answered."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flamma.game import certify, client_utility, server_utility
from flamma.records import RoundGame, RoundRecord
from flamma.strategies.base import Offer
from flamma.types import Floats


def certified(record: RoundRecord, offer: Offer, costs: Floats | None) -> RoundRecord:
    """Return the record with the game of the round, certified for the clients that answered.

    Their true costs are used where they are known. Where clients have decay factors of their own,
    each is measured by its own, and the leader's regret is what these cost the server against the
    best common one. Without a game, or without an answer, there is nothing to certify.
    """
    game = offer.game
    answered = [k for k, c in enumerate(record.selected) if c not in record.failed]
    if game is None:
        return replace(record, client_utilities=_paid_utilities(record, costs))
    record = replace(
        record,
        game=RoundGame(
            price=game.price,
            decay_bounds=game.decay_bounds,
            epoch_bounds=game.epoch_bounds,
            whole_epochs=game.whole_epochs,
            costs=tuple(game.costs.tolist()),
            effective=offer.effective,
            measure=offer.measure,
        ),
    )
    if not answered:
        return record
    taken = game.costs[answered]
    true = taken if costs is None else costs[np.array(record.selected)[answered]]
    played = game.replace(
        contributions=game.contributions[answered],
        costs=np.where(np.isnan(true), taken, true),
        whole_epochs=True,  # what clients really play, whatever the server solved for
    )
    epochs = np.array(record.local_epochs)[answered]
    own = record.decay_factors is not None
    gamma = np.array(record.decay_factors)[answered] if own else np.array(record.decay_factor)
    utilities: list[float | None] = [None] * len(record.selected)
    worth = client_utility(played, gamma, epochs, one_each=own)
    for k, utility in zip(answered, worth, strict=True):
        utilities[k] = float(utility)
    if record.credited or record.efforts or record.fines:
        for k, cost in zip(answered, played.costs, strict=True):
            utilities[k] = record.payment(k) - float(cost) * record.effort(k)
    return replace(
        record,
        certificate=certify(played, gamma, epochs),
        server_utility=float(server_utility(played, gamma, epochs, one_each=own)),
        client_utilities=tuple(utilities),
    )


def _paid_utilities(record: RoundRecord, costs: Floats | None) -> tuple[float | None, ...] | None:
    """Return what clients earn less their cost where they are paid without a game of epochs.

    None where nobody is paid, or where no cost is known.
    """
    if record.payments is None or costs is None:
        return None
    utilities = (
        record.payment(place) - float(costs[client]) * record.effort(place)
        for place, client in enumerate(record.selected)
    )
    return tuple(
        None if client in record.failed or math.isnan(utility) else utility
        for client, utility in zip(record.selected, utilities, strict=True)
    )
