"""What the server of FLamma-plus knows between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from flamma.numerics import total
from flamma.strategies.base import model_of
from flamma.strategies.levelling import LevellingState
from flamma.strategies.rows import Rows
from flamma.types import Floats, Ints, Params, Report


@dataclass(frozen=True, eq=False)
class PlusState(LevellingState):
    """What FLamma knows of every client, their last updates, and how the model moves.

    Attributes
    ----------
    averaged : Params
        The served model.
    stand_ins : ndarray
        Σ q_i y_i over the clients heard from, q their last shares in a round.
    shares : ndarray
        The share of each client, by its data, in the last round that it was in.
    answered : Rows
        The models r that the kept updates answered, each in a place of its own.
    places : ndarray
        The place of the model that each client's last update answered; -1 before there is one.
    answered_sum : ndarray
        Σ q_i r_i over the clients heard from.
    seen : ndarray
        Sums of products that the slopes of new updates on old ones are fitted to.
    step_mean, step_square, step_weight : ndarray, float, float
        Means of recent steps.
    start : float
        The share of the rounds at which γ leaves 1; 1 before it is measured.
    """

    averaged: Params
    stand_ins: Floats
    shares: Floats
    answered: Rows
    places: Ints
    answered_sum: Floats
    seen: Floats
    step_mean: Floats
    step_square: float = 0.0
    step_weight: float = 0.0
    start: float = 1.0

    @property
    def served(self) -> Params:
        """The mean of recent models."""
        return self.averaged

    def remembering(self, accepted: Sequence[Report], shares: Floats, number: int) -> Self:
        """Return the state with these updates, of this model, in place of the last ones.

        ``shares`` are those of the clients in round ``number``.
        """
        size, received = self.trainable_size, self.params
        clients = np.array([report.client for report in accepted])
        every = self.shares.copy()
        every[clients] = shares
        before = clients[self.kept.slots[clients] >= 0]
        updates = (model_of(report)[:size] - received[:size] for report in accepted)
        kept = self.kept.updated(clients.tolist(), updates, clients[:0])
        stand_ins = self.stand_ins + kept.weighted_sum(clients, shares)
        sent = received[:size].astype(np.float64)
        answered_sum = self.answered_sum + total(shares) * sent
        if before.size:
            stand_ins -= self.kept.weighted_sum(before, self.shares[before])
            answered_sum -= self.answered.weighted_sum(self.places[before], self.shares[before])
        heard, places = self.heard.copy(), self.places.copy()
        heard[clients] = number
        place = int(np.argmin(self.answered.slots))  # -1, where none is
        places[clients] = place
        gone = np.setdiff1d(self.answered.known, places)
        return replace(
            self,
            kept=kept,
            heard=heard,
            stand_ins=stand_ins,
            answered=self.answered.updated([place], [received[:size]], gone),
            places=places,
            shares=every,
            answered_sum=answered_sum,
        )
