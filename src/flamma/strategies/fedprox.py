"""FedProx: FedAvg whose clients are held near the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from flamma.errors import StrategyError
from flamma.strategies.fedavg import FedAvg
from flamma.types import Terms


@dataclass(frozen=True)
class FedProx(FedAvg):
    """The local step is w_k ← w_k - η (∇F_k + μ (w_k - w)); μ = 0 is FedAvg.

    Parameters
    ----------
    mu : float
        μ, the weight of the proximal term.
    """

    name: ClassVar[str] = "fedprox"
    label: ClassVar[str] = "FedProx"
    summary: ClassVar[str] = "FedAvg with a proximal term (mu) in the local loss"
    family: ClassVar[str] = "optimisation"

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mu >= 0:
            raise StrategyError(f"mu must be at least 0, not {self.mu:g}.")

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Return FedAvg's terms with the proximal weight."""
        return replace(super().terms(client, round), proximal=self.mu)
