"""PropFair: clients minimise a logarithm of how far their loss is below a bound.

Zhang et al., "Proportional fairness in federated learning", TMLR 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from flamma.errors import StrategyError
from flamma.strategies.fedavg import FedAvg
from flamma.types import Terms


@dataclass(frozen=True)
class PropFair(FedAvg):
    """Clients minimise -M log(1 - ℓ / M) in place of the loss ℓ of a mini-batch.

    Its gradient is that of ℓ times M / (M - ℓ), so that clients with a larger loss move further;
    near M and beyond the factor stays what it is there. M → ∞ is FedAvg.

    Parameters
    ----------
    loss_bound : float
        M, the loss that counts as worthless. The smaller, the longer are the steps of clients with
        large losses: small bounds want a small step size.
    """

    name: ClassVar[str] = "propfair"
    label: ClassVar[str] = "PropFair"
    summary: ClassVar[str] = "FedAvg with the local loss -M log(1 - loss / M)"
    family: ClassVar[str] = "fairness"

    loss_bound: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.loss_bound > 0:
            raise StrategyError(f"loss_bound must be above 0, not {self.loss_bound:g}.")

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Return FedAvg's terms with the bound of the loss."""
        return replace(super().terms(client, round), loss_bound=self.loss_bound)
