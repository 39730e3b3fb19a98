"""What releases cost, by the accountant of Opacus.

Rényi differential privacy composes the Gaussian mechanism over rounds (Mironov, "Rényi differential
privacy", CSF 2017). No amplification by sampling is counted: a round has a fixed number of clients
rather than each with a probability of its own, games choose them by what they sent before, and the
record tells who was selected. Every release counts in full, as if the client had been in all.
"""

from __future__ import annotations

import warnings
from typing import Any

from flamma.extras import require

ORDERS = [1 + 2.0 ** (k / 4) for k in range(-48, 81)]
"""The orders among which the best is sought: wide enough for any noise in use."""


def require_accountant() -> Any:
    """Return Opacus' functions of Rényi differential privacy.

    Raises
    ------
    MissingExtraError
        If Opacus is not installed.
    """
    require("differential privacy", "opacus")
    from opacus.accountants.analysis import rdp

    return rdp


def epsilon_spent(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return the epsilon of so many releases by the Gaussian mechanism, at a delta; at least 0.

    ``noise_multiplier`` is in units of the sensitivity, which doubles if neighbours replace a
    client's updates by others rather than by zero: halve it for that relation.
    """
    if releases == 0:
        return 0.0
    rdp = require_accountant()
    spent = rdp.compute_rdp(q=1.0, noise_multiplier=noise_multiplier, steps=releases, orders=ORDERS)
    with warnings.catch_warnings():
        # At the outermost order the bound holds, it could only be tighter.
        warnings.filterwarnings("ignore", message="Optimal order")
        epsilon, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)
    return max(0.0, float(epsilon))  # the conversion falls below 0 where delta alone suffices
