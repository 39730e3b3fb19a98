"""What server and clients tell each other, before it is packed and after it is read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flamma.engines.flower.arrays import WireError


class ClientError(WireError):
    """A client says that it could not do what it was asked to; the message is its own."""


@dataclass(frozen=True)
class Order:
    """What a client is asked to do, complete: it may be a process that knows nothing else.

    Attributes
    ----------
    config : str
        The run's configuration as TOML.
    client, name : int, str
        Whom the server takes the client for; -1 and nothing when it asks who is there.
    trainer : str
        What all clients train with.
    judge : bool
        Whether to score the weights on the held-out data.
    wants_cost : bool
        Whether the server asks for the client's cost.
    cost : float
        What the server knows of the client's cost, NaN if nothing.
    classes : int
        How many classes the model tells apart, of which a client may have fewer; 0 if the
        server does not know yet.
    """

    config: str
    client: int = -1
    name: str = ""
    trainer: str = "torch"
    judge: bool = False
    wants_cost: bool = False
    cost: float = math.nan
    classes: int = 0


@dataclass(frozen=True)
class SiteProfile:
    """What a client says of itself.

    ``cost`` is NaN unless the client has one that the configuration does not tell and was asked
    for it; ``own_cost`` is whether it has one. ``lanes`` is whether it can train in lanes.
    """

    name: str
    samples: int
    held_out: int
    cost: float
    own_cost: bool
    shape: tuple[int, ...]
    classes: int
    lanes: bool


@dataclass(frozen=True)
class Score:
    """How good the weights it received are for one client; accuracy in percent."""

    accuracy: float
    loss: float
    held_out: int
