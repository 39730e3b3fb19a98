"""What a client of a Flower run has: samples of its own, and perhaps a cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flamma.types import Ints

if TYPE_CHECKING:
    from flamma.data.federated import Images


class ClientData(Protocol):
    """What a client has: its name, its samples and their labels, and its cost if it has one."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def cost(self) -> float | None: ...  # noqa: D102
    @property
    def tells_cost(self) -> bool: ...  # noqa: D102
    @property
    def x(self) -> Images: ...  # noqa: D102
    @property
    def y(self) -> Ints: ...  # noqa: D102
    @property
    def held_x(self) -> Images: ...  # noqa: D102
    @property
    def held_y(self) -> Ints: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def classes(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class SimulatedClientData:
    """One client's part of a federation whose data are all on this machine."""

    name: str
    x: Images
    y: Ints
    held_x: Images
    held_y: Ints
    classes: int
    cost: float | None = None
    tells_cost: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])
