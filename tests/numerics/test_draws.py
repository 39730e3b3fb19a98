import math

import numpy as np
import pytest
from scipy import special, stats

from flamma.numerics import dirichlet, gumbel, normal, normal_float32
from flamma.numerics.draws import log_gamma_deviates, normal_quantile
from flamma.seeding import stream

COUNT = 40_000


class Always:
    """Stands for a random stream whose uniform deviates are all the same."""

    def __init__(self, value):
        self.value = value

    def random(self, size):
        return np.full(size, self.value)


@pytest.mark.parametrize("p", [np.linspace(1e-9, 1 - 1e-9, 2001), 10.0 ** -np.arange(1, 300.0)])
def test_quantiles_are_those_of_the_normal_distribution(p):
    assert normal_quantile(p) == pytest.approx(special.ndtri(p), rel=3e-15, abs=1e-15)


def test_deviates_have_their_distributions():
    rng = stream(3, "draws")
    drawn = {
        "norm": normal(rng, COUNT),
        "gumbel_r": gumbel(rng, COUNT),
    }
    for name, values in drawn.items():
        assert stats.kstest(values, name).pvalue > 0.01
    assert stats.kstest(normal_float32(rng, COUNT).astype(np.float64), "norm").pvalue > 0.01


@pytest.mark.parametrize("shape", [0.02, 0.5, 1.0, 2.5, 1e4])
def test_gamma_deviates_have_their_distribution(shape):
    drawn = np.exp(log_gamma_deviates(stream(3, "gamma"), shape, COUNT))
    assert stats.kstest(drawn, "gamma", args=(shape,)).pvalue > 0.01


@pytest.mark.parametrize("alpha", [1e-3, 0.3, 1.0, 1e6])
def test_dirichlet_shares_add_up_and_have_the_right_spread(alpha):
    rows = np.stack([dirichlet(stream(k, "shares"), alpha, 5) for k in range(2000)])
    assert rows.sum(axis=1) == pytest.approx(1)
    assert (rows >= 0).all()
    variance = 0.2 * 0.8 / (5 * alpha + 1)
    assert rows.var() == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("value", [0.0, 1 - 2.0**-53])
def test_the_extreme_uniform_deviates_give_finite_ones(value):
    assert math.isfinite(normal(Always(value), 1)[0])
    assert math.isfinite(gumbel(Always(value), 1)[0])


def test_a_longer_draw_begins_with_the_shorter_one():
    for draw in (normal, normal_float32, gumbel):
        assert np.array_equal(draw(stream(0, "n"), 100)[:30], draw(stream(0, "n"), 30))
