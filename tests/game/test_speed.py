"""How fast and how lean the exact solver is; what measures time is marked slow."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from flamma.game import Game, solve


def seconds(call, repeats=5):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def population(clients):
    rng = np.random.default_rng(0)
    return rng.random(clients), rng.lognormal(-2, 1, clients)


@pytest.mark.slow
def test_a_million_clients_cost_at_most_15_sorts():
    contributions, costs = population(1_000_000)
    game = Game(contributions, costs, round=3_000_000, whole_epochs=False)
    sort = seconds(lambda: np.argsort(costs))
    assert 0 < solve(game).decay_factor < 1
    assert seconds(lambda: solve(game)) <= 15 * sort


@pytest.mark.slow
def test_a_hundred_thousand_clients_with_whole_epochs_take_under_two_seconds():
    game = Game(*population(100_000), round=300_000)
    assert seconds(lambda: solve(game), repeats=2) < 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads its memory as Linux tells it")
def test_a_million_clients_need_under_a_gigabyte():
    # Not ru_maxrss: a child starts with the one of the process that it was forked from.
    script = (
        "import numpy as np; from flamma.game import Game, solve\n"
        "rng = np.random.default_rng(0); n = 1_000_000\n"
        "solve(Game(rng.random(n), rng.lognormal(-2, 1, n), n, whole_epochs=False))\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert int(done.stdout) < 1_000_000  # kilobytes
