import math

import numpy as np
import pytest

from flamma.errors import MissingExtraError
from flamma.privacy import epsilon_spent


def best_order(noise_multiplier, releases, delta):
    """Return ε by the formula of Balle et al. (2020), minimised over a fine grid of orders."""
    orders = (1 + 10 ** (k / 1000) for k in range(-4000, 6000))
    return min(
        releases * a / (2 * noise_multiplier**2)
        + math.log((a - 1) / a)
        - (math.log(delta) + math.log(a)) / (a - 1)
        for a in orders
    )


@pytest.mark.parametrize(
    ("noise_multiplier", "releases", "delta"),
    [(1.0, 1, 1e-5), (4.0, 100, 1e-5), (0.3, 30, 1e-6), (50.0, 10, 1e-3), (1.0, 100_000, 1e-5)],
)
def test_epsilon_is_the_best_over_orders(noise_multiplier, releases, delta):
    found, best = (f(noise_multiplier, releases, delta) for f in (epsilon_spent, best_order))
    assert best - 1e-9 <= found <= best * 1.01


def test_opacus_own_accountant_says_the_same():
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for _ in range(20):
        accountant.step(noise_multiplier=4.0, sample_rate=1.0)
    assert epsilon_spent(4.0, 20, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)


def test_more_releases_and_less_noise_cost_more():
    costs = [epsilon_spent(z, n, 1e-5) for z, n in [(4.0, 0), (4.0, 1), (4.0, 2), (2.0, 2)]]
    assert costs[0] == 0
    assert costs == sorted(set(costs))


def test_almost_no_noise_is_still_a_number_and_no_warning():
    assert epsilon_spent(1e-4, 1000, 1e-5) > 1e10


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01, 0.5, 0.99])
def test_epsilon_is_never_negative(delta):
    for noise_multiplier in np.geomspace(0.1, 1e6, 15):
        costs = [
            epsilon_spent(noise_multiplier, releases, delta) for releases in (0, 1, 30, 10_000)
        ]
        assert min(costs) >= 0
        assert costs == sorted(costs)


def test_without_opacus_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(MissingExtraError, match=r"\.\[privacy\]"):
        epsilon_spent(1.0, 1, 1e-5)
