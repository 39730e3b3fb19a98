"""What a client may send instead of its honest work, where contribution measures are studied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flamma.numerics import norm, normal
from flamma.seeding import stream
from flamma.types import Floats, Params

IDLE_NOISE = 1e-3
"""The length of a free-rider's noise, as a share of the length of the received weights."""


@dataclass(frozen=True, eq=False)
class RoundKnowledge:
    """What a client knows that makes up its answer in a round, and its honest work.

    Attributes
    ----------
    seed, round, client : int
        Key the noise.
    received, last_received : ndarray
        The global model now, and a round ago; the same in the first round.
    honest : sequence of ndarray
        What every client would send by honest work.
    last_move : ndarray
        What this client added to the received model a round ago; in the first round its honest
        work of now.
    """

    seed: int
    round: int
    client: int
    received: Params
    last_received: Params
    honest: Sequence[Params]
    last_move: Floats

    def noise(self) -> Floats:
        """Return noise of an expected length of 1."""
        rng = stream(self.seed, "deviation-noise", self.round, self.client)
        size = self.received.size
        noise: Floats = normal(rng, size) / np.sqrt(size)
        return noise


def _free_rider(now: RoundKnowledge) -> Floats:
    """Send the received model back with a little noise."""
    return IDLE_NOISE * norm(now.received) * now.noise()


def _noise_sender(now: RoundKnowledge) -> Floats:
    """Add noise to the received model, as long as the others' updates are on average."""
    others = [w for client, w in enumerate(now.honest) if client != now.client]
    lengths = [norm(w - now.received) for w in others]
    return sum(lengths) / max(1, len(lengths)) * now.noise()


def _repeater(now: RoundKnowledge) -> Floats:
    """Work in the first round, and send that update again in all others."""
    return now.last_move


def _step_rider(now: RoundKnowledge) -> Floats:
    """Take the last step of the global model once more, which every client knows for free."""
    step = now.received.astype(np.float64) - now.last_received
    return step if step.any() else _free_rider(now)


def _duplicate(now: RoundKnowledge) -> Floats:
    """Send what the next client sends."""
    other = now.honest[(now.client + 1) % len(now.honest)]
    return other.astype(np.float64) - now.received


UpdateDeviation = Callable[[RoundKnowledge], Floats]
"""Returns what a client adds to the received model."""

UPDATE_DEVIATIONS: dict[str, UpdateDeviation] = {
    "free-rider": _free_rider,
    "noise": _noise_sender,
    "repeater": _repeater,
    "step-rider": _step_rider,
    "duplicate": _duplicate,
}
"""All deviations by name."""
