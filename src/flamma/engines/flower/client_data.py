"""What a client of a Flower run has: samples of its own, and perhaps a cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flamma.tasks import DEFAULT_TASK
from flamma.types import Inputs, Targets


class ClientData(Protocol):
    """What a client has: its name, its samples and their targets, and its cost if it has one."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def cost(self) -> float | None: ...  # noqa: D102
    @property
    def tells_cost(self) -> bool: ...  # noqa: D102
    @property
    def x(self) -> Inputs: ...  # noqa: D102
    @property
    def y(self) -> Targets: ...  # noqa: D102
    @property
    def held_x(self) -> Inputs: ...  # noqa: D102
    @property
    def held_y(self) -> Targets: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def classes(self) -> int: ...  # noqa: D102
    @property
    def task(self) -> str: ...  # noqa: D102
    @property
    def labels(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def columns_sha256(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class SimulatedClientData:
    """One client's part of a federation whose data are all on this machine."""

    name: str
    x: Inputs
    y: Targets
    held_x: Inputs
    held_y: Targets
    classes: int
    cost: float | None = None
    tells_cost: bool = True
    task: str = DEFAULT_TASK
    labels: tuple[str, ...] = ()
    columns_sha256: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])
