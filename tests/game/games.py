"""Random games for the property tests, as exact fractions and as the package's floats."""

from __future__ import annotations

from fractions import Fraction

from exact import ExactGame
from hypothesis import strategies as st

from flamma.game import Game

SHARES = st.one_of(
    st.sampled_from([Fraction(0), Fraction(1), Fraction(1, 2), Fraction(3, 10)]),
    st.integers(0, 20).map(lambda k: Fraction(k, 20)),
    st.integers(0, 997).map(lambda k: Fraction(k, 997)),
)
BOOLEANS = st.booleans()
COSTS = st.one_of(
    st.sampled_from([Fraction(1, 10), Fraction(1, 20), Fraction(1)]),
    st.integers(1, 200).map(lambda k: Fraction(k, 100)),
    st.integers(1, 1009).map(lambda k: Fraction(k, 1009)),
    st.integers(1, 9).map(lambda k: Fraction(k, 10**6)),
)


@st.composite
def exact_games(draw, most=5, whole=BOOLEANS):
    n = draw(st.integers(1, most))
    if draw(st.booleans()):
        omega = [draw(SHARES) for _ in range(n)]
        cost = [draw(COSTS) for _ in range(n)]
    else:  # equal clients
        omega, cost = [draw(SHARES)] * n, [draw(COSTS)] * n
    low = draw(st.integers(0, 4))
    gammas = sorted((draw(SHARES), draw(SHARES)))
    if draw(st.booleans()):
        gammas = [Fraction(0), Fraction(1)]
    return ExactGame(
        omega=tuple(omega),
        cost=tuple(cost),
        round=draw(st.integers(1, 60)),
        price=draw(
            st.one_of(st.just(Fraction(1)), st.integers(0, 300).map(lambda k: Fraction(k, 100)))
        ),
        low=low,
        high=max(1, low + draw(st.integers(0, 6))),
        whole=draw(whole),
        gamma_min=gammas[0],
        gamma_max=gammas[1],
    )


def floats(game: ExactGame) -> Game:
    return Game(
        contributions=[float(x) for x in game.omega],
        costs=[float(x) for x in game.cost],
        round=game.round,
        price=float(game.price),
        epoch_bounds=(game.low, game.high),
        whole_epochs=game.whole,
        decay_bounds=(float(game.gamma_min), float(game.gamma_max)),
    )


def scale(game: ExactGame) -> float:
    """The size of the terms of the leader's utility; rounding is measured against it."""
    return float(len(game.omega) * (1 + game.high) + game.price * game.round)
