"""Who answers an offer and when, by simulated faults and the virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from flamma.clients.clock import Traffic, VirtualClock
from flamma.clients.faults import Faults
from flamma.seeding import stream
from flamma.strategies.base import Offer, S, Strategy
from flamma.strategies.flights import FlightState
from flamma.types import Download, Ints


@dataclass(frozen=True, eq=False)
class Timing(Generic[S]):
    """What faults and the clock make of the rounds of a strategy.

    ``clock`` is None where there is no virtual time; an asynchronous strategy needs one.
    """

    strategy: Strategy[S]
    seed: int
    faults: Faults
    clock: VirtualClock | None

    def advanced(self, state: S, present: Ints) -> S:
        """Return the state in which clients have answered that need not wait for each other."""
        if not self.strategy.asynchronous:
            return state
        assert self.clock is not None
        waited, sent = self.clock.waited, self.traffic(self.strategy.download(state))
        rng = stream(self.seed, "select", state.round + 1)
        return self.strategy.advance(state, present, rng, lambda terms: waited(terms, sent))

    def elapsed(self, state: S, before: float, download: Download, offer: Offer) -> float:
        """Return the virtual time when the answers of an offer have come, from that before it."""
        if isinstance(state, FlightState):
            return state.now
        if self.clock is None:
            return before
        struck = self.faults.strike(self.seed, offer.round, offer.selected)
        return before + self.clock.round_seconds(offer.terms, struck, self.traffic(download))

    def struck(self, download: Download, offer: Offer) -> dict[int, str]:
        """Return who gives no answer by simulated faults or the virtual clock, and why."""
        sent = self.traffic(download)
        late = {} if self.clock is None else self.clock.late(offer.terms, sent)
        return late | self.faults.strike(self.seed, offer.round, offer.selected)

    def traffic(self, download: Download) -> Traffic:
        """Return the bytes of weights that one client receives, and those that it sends back."""
        if not self.strategy.sends_models:
            return Traffic(0, 0)
        size = download.params.nbytes
        return Traffic(size + (0 if download.extra is None else download.extra.nbytes), size)
