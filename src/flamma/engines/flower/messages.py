"""What server and clients say to each other in a run over Flower; ``codec`` packs and reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flamma.errors import FlammaError
from flamma.tasks import DEFAULT_TASK
from flamma.types import Params, Terms


class MessageError(FlammaError):
    """A message is missing something or cannot be trusted; the text says what is wrong with it.

    Attributes
    ----------
    from_client : bool
        Whether the client, or Flower in its place, reported the failure. Otherwise the message
        itself was refused.
    """

    def __init__(self, why: str, from_client: bool = False) -> None:
        super().__init__(why)
        self.from_client = from_client

    @property
    def reason(self) -> str:
        """The reason as a record gives it."""
        return str(self) if self.from_client else f"refused: {self}"


@dataclass(frozen=True)
class Order:
    """A request to a client, complete, since the client's process may have no other information.

    Attributes
    ----------
    config : str
        The run's configuration as TOML.
    client, name : int, str
        The client that the server means; -1 and empty when it asks a node who it is.
    trainer : str
        What all clients train with.
    evaluate : bool
        Whether to score the weights on the held-out data.
    wants_cost : bool
        Whether the server asks for the client's cost.
    cost : float
        The client's cost as the server knows it, NaN if it does not.
    classes : int
        How many classes the model tells apart, of which a client may have fewer; 0 if the
        server does not know yet.
    run : str
        What tells the run from all others: hexadecimal digits.
    round : int
        The last finished round, -1 before a warm-up.
    earliest : int
        The earliest round that the run may go on from if it is interrupted. What a client kept
        before is not needed any more, but for the last of it.
    trainable_size : int
        How many of the weights are trained; 0 if the server does not know yet.
    evaluates_kept : bool
        Whether to score the model that the client keeps, if it has one.
    """

    config: str
    client: int = -1
    name: str = ""
    trainer: str = "torch"
    evaluate: bool = False
    wants_cost: bool = False
    cost: float = math.nan
    classes: int = 0
    run: str = ""
    round: int = 0
    earliest: int = 0
    trainable_size: int = 0
    evaluates_kept: bool = False


@dataclass(frozen=True, eq=False)
class OrderContent:
    """All that comes with an order.

    Attributes
    ----------
    order : Order
        What is asked for.
    terms : Terms or None
        To be answered by a report.
    params : Params or None
        The model that the client receives; None when it is only asked who it is.
    extra : Params or None
        What the server sends besides, as long as the trainable weights.
    """

    order: Order
    terms: Terms | None = None
    params: Params | None = None
    extra: Params | None = None

    @property
    def vectors(self) -> list[Params]:
        """The vectors that come with it."""
        return [vector for vector in (self.params, self.extra) if vector is not None]


@dataclass(frozen=True)
class SiteProfile:
    """What a client says about itself.

    ``own_cost`` is whether it has a cost of its own, given or measured, rather than one from the
    configuration. ``cost`` is that cost if the server asked for it and may know it, else NaN.
    ``lanes`` is whether it can train in lanes. ``task`` is what its targets are for. ``labels``
    are what its classes are called, empty if they have numbers only, and ``columns_sha256`` is of
    the columns that its table was read by, empty if it has none: both must be the same at all.
    """

    name: str
    samples: int
    held_out: int
    cost: float
    own_cost: bool
    shape: tuple[int, ...]
    classes: int
    lanes: bool
    task: str = DEFAULT_TASK
    labels: tuple[str, ...] = ()
    columns_sha256: str = ""


@dataclass(frozen=True)
class Score:
    """How well the received weights do on one client's held-out data.

    ``accuracy`` is in percent, and so is another metric of the run in its place.
    """

    accuracy: float
    loss: float
    held_out: int
