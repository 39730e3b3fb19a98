""""""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.errors import ConfigError, MissingExtraError
from flamma.privacy import PrivacyConfig, PrivateRounds, epsilon_spent
from flamma.types import Update

SIZE = 20_000
"""Weights enough for the deviation of their noise to be within 2% of its own."""


def rounds(seed=7, **options):
    config = PrivacyConfig(**{"clip": 1.0, "noise_multiplier": 0.5} | options)
    return PrivateRounds(config, seed, lambda releases: 0.1 * releases)


def reports(*moves, received, samples=None, loss=0.3):
    counts = samples or [10] * len(moves)
    return tuple(
        Update(k, (received + move).astype(np.float32), own, 1, loss=loss)
        for k, (move, own) in enumerate(zip(moves, counts, strict=True))
    )


def released_update(mechanism, given_reports, received, number=1):
    models = [report.params for report in mechanism.release(received, number, given_reports)]
    return [model.astype(np.float64) - received for model in models]


def test_the_mean_has_noise_of_the_multiplier_times_clip_over_clients():
    received = np.zeros(SIZE, dtype=np.float32)
    still = reports(*[np.zeros(SIZE)] * 4, received=received)
    found = released_update(rounds(clip=2.0, noise_multiplier=0.5), still, received)
    assert all(np.array_equal(found[0], other) for other in found)  # the mean, and nothing else
    # Four standard errors of a mean and of a deviation of 20,000 normal numbers.
    assert abs(found[0].mean()) < 4 * 0.25 / math.sqrt(SIZE)
    assert abs(found[0].std() / (0.5 * 2.0 / 4) - 1) < 4 / math.sqrt(2 * SIZE)
    below = np.mean(found[0] < 0.25)  # one deviation: Φ(1) = 0.8413
    assert abs(below - 0.8413) < 4 * math.sqrt(0.8413 * 0.1587 / SIZE)


def test_noise_on_updates_is_independent_and_not_divided():
    received = np.zeros(SIZE, dtype=np.float32)
    still = reports(np.zeros(SIZE), np.zeros(SIZE), received=received)
    first, second = released_update(rounds(noise_on="updates"), still, received)
    for noise in (first, second):
        assert abs(noise.std() / 0.5 - 1) < 4 / math.sqrt(2 * SIZE)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(SIZE)


def test_noise_depends_on_seed_and_round_alone():
    received = np.zeros(50, dtype=np.float32)
    still = reports(np.zeros(50), received=received)
    [one] = released_update(rounds(seed=1), still, received)
    assert np.array_equal(one, released_update(rounds(seed=1), still, received)[0])
    for other in (rounds(seed=2), rounds(seed=2**100 + 1)):
        assert not np.array_equal(one, released_update(other, still, received)[0])
    assert not np.array_equal(one, released_update(rounds(seed=1), still, received, number=2)[0])


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3),
    st.lists(st.integers(1, 1000), min_size=2, max_size=5),
    st.integers(1, 1000),
    st.floats(0.01, 10.0),
    st.integers(0, 4),
)
def test_no_update_moves_the_mean_further_than_the_noise_is_made_for(
    move, samples, cap, clip, place
):
    """The noise is the same in both runs, so their difference is what one client changes."""
    place %= len(samples)
    received = np.zeros(3, dtype=np.float32)
    mechanism = rounds(clip=clip, noise_multiplier=1.0, samples_cap=cap)
    others = [np.full(3, 0.1 * k) for k in range(len(samples))]
    without = [np.zeros(3) if k == place else other for k, other in enumerate(others)]
    with_it = [np.array(move) if k == place else other for k, other in enumerate(others)]
    usable = [reports(*m, received=received, samples=samples) for m in (with_it, without)]
    one, other = (mechanism._noisy_mean(received, 1, mine) for mine in usable)
    counted = np.minimum(samples, cap)
    sensitivity = clip * counted.max() / counted.sum()
    assert np.linalg.norm(one - other) <= sensitivity * (1 + 1e-9)
    noise = one - sum(
        c / counted.sum() * u * min(1.0, clip / max(np.linalg.norm(u), 1e-300))
        for c, u in zip(counted, with_it, strict=True)
    )
    from flamma.numerics import normal
    from flamma.seeding import stream

    expected = sensitivity * normal(stream(7, "privacy", 1), 3)
    assert np.allclose(noise, expected, rtol=1e-6, atol=1e-9 * clip)


@given(
    st.lists(
        st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=3, max_size=6
    ),
    st.lists(st.integers(1, 100), min_size=6, max_size=6),
    st.integers(1, 100),
)
def test_sensitivity_of_each_neighbouring_relation(moves, samples, cap):
    """The bounds of the table in docs/how-to/privacy.md, on released models of a whole round."""
    received, clip, tiny = np.zeros(3, dtype=np.float32), 1.5, 1e-9
    mechanism = rounds(clip=clip, noise_multiplier=tiny, samples_cap=cap)
    *moves, other = map(np.array, moves)
    samples = samples[: len(moves)]
    counted = np.minimum(samples, cap)
    share = counted[0] / counted.sum()

    def mean(*moves, samples=samples):
        return released_update(
            mechanism, reports(*moves, received=received, samples=samples), received
        )[0]

    whole, rest = mean(*moves), moves[1:]
    bound = share * clip + 1e-5
    assert np.linalg.norm(whole - mean(np.zeros(3), *rest)) <= bound
    assert np.linalg.norm(whole - mean(other, *rest)) <= 2 * bound
    assert np.linalg.norm(whole - mean(*rest, samples=samples[1:])) <= 2 * bound


def test_sensitivities_are_attained():
    """Opposite updates: another client, or its absence, moves the mean twice as far as zeros do."""
    received, up = np.zeros(1, dtype=np.float32), np.ones(1)
    mechanism = rounds(clip=1.0, noise_multiplier=1e-9)

    def mean(*moves):
        return released_update(mechanism, reports(*moves, received=received), received)[0]

    whole = mean(9 * up, -9 * up, -9 * up, -9 * up)
    moved = [mean(0 * up, -up, -up, -up), mean(-9 * up, -up, -up, -up), mean(-up, -up, -up)]
    assert [abs(whole - own)[0] for own in moved] == pytest.approx([1 / 4, 2 / 4, 2 / 4])


def test_neighbours_have_the_same_noise():
    received, noisy = np.zeros(200, dtype=np.float32), rounds(noise_multiplier=2.0, samples_cap=9)
    far = [np.full(200, 0.1 * k) for k in range(1, 5)]
    quiet = rounds(noise_multiplier=1e-12, samples_cap=9)

    def noise(*moves):
        told = reports(*moves, received=received, samples=[3, 5, 8, 30])
        return released_update(noisy, told, received)[0] - released_update(quiet, told, received)[0]

    zeroed = noise(*[np.zeros(200)], *far[1:])
    assert noise(*far) == pytest.approx(zeroed, abs=1e-6)
    assert zeroed.std() == pytest.approx(2.0 * 9 / 25, rel=0.2)


def test_a_long_update_is_cut_and_a_short_one_is_not():
    received = np.ones(2, dtype=np.float32)
    mechanism = rounds(clip=5.0, noise_multiplier=1e-12)
    moves = reports(np.array([30.0, 40.0]), np.array([0.0, 1.0]), received=received)
    [mean, _] = released_update(mechanism, moves, received)
    assert mean == pytest.approx([1.5, 2.5])  # half of (3, 4) and half of (0, 1)


def test_a_cap_of_samples_weighs_clients_up_to_it():
    received = np.zeros(1, dtype=np.float32)
    moves = reports(np.array([1.0]), np.array([-1.0]), received=received, samples=[1000, 1])
    found = [
        released_update(rounds(noise_multiplier=1e-12, samples_cap=cap), moves, received)[0][0]
        for cap in (1, 3, 10_000)
    ]
    assert found == pytest.approx([0.0, 0.5, 999 / 1001], abs=1e-6)


def test_losses_and_what_is_not_usable_stay_outside():
    received = np.zeros(3, dtype=np.float32)
    failed = Update(1, None, 0, 0, loss=0.7, failure="late")
    given_reports = (*reports(np.ones(3), received=received), failed)
    kept = rounds().release(received, 1, given_reports)
    assert all(math.isnan(report.loss) for report in kept)
    assert kept[1].failure == "late"
    assert kept[1].params is None
    assert rounds().release(received, 1, (failed,))[0].failure == "late"


def test_releases_are_counted_with_the_warm_up():
    mechanism = PrivateRounds(PrivacyConfig(clip=1.0, delta=1e-6), 0, lambda n: 0.1 * n, 1)
    spent = mechanism.spent(4)
    assert (spent.releases, spent.epsilon, spent.delta) == (5, 0.5, 1e-6)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"noise_multiplier": 2.0}, "privacy.clip is missing"),
        ({"clip": 0.0}, "privacy.clip must be above 0"),
        ({"clip": 1.0, "noise_multiplier": 0.0}, "noise_multiplier"),
        ({"clip": 1.0, "delta": 1.0}, "delta"),
        ({"clip": 1.0, "samples_cap": 0}, "samples_cap"),
    ],
)
def test_impossible_tables_are_refused(options, word):
    with pytest.raises(ConfigError, match=word):
        PrivacyConfig(**options)


# accounting


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
