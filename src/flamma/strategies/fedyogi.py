"""FedYogi: FedAvg whose server takes the steps of Yogi.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flamma.strategies.fedadam import AdaptiveServer
from flamma.types import Floats


@dataclass(frozen=True)
class FedYogi(AdaptiveServer):
    """The server's step is Yogi's: v ← v - (1 - β₂) D² sign(v - D²)."""

    name: ClassVar[str] = "fedyogi"
    label: ClassVar[str] = "FedYogi"
    summary: ClassVar[str] = "FedAvg with Yogi on the server"

    def second_moment(self, before: Floats, squares: Floats) -> Floats:
        """Return v after a round: it moves towards D² by D², however far that is."""
        return before - (1 - self.beta_2) * squares * np.sign(before - squares)
