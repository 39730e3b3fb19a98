"""Costs: each kind gives what it says, and says in one sentence why it cannot."""

from __future__ import annotations

import numpy as np
import pytest

from flamma.clients.costs import COSTS, CostedClients, read_clients, true_costs
from flamma.errors import ConfigError, InputFileError


def draw_costs(kind, clients, seed, seconds_per_epoch=None, **options):
    seconds = None if seconds_per_epoch is None else (lambda: seconds_per_epoch)
    choice = COSTS.choose({"kind": kind, **options}, "costs", key="kind")
    return true_costs(choice, CostedClients(clients, seed, seconds))


def test_constant_costs_are_the_value():
    costs = draw_costs("constant", 3, seed=0, value=0.25)
    assert costs.dtype == np.float64
    assert costs.tolist() == [0.25, 0.25, 0.25]


def test_drawn_costs_have_the_median_and_spread_asked_for():
    costs = draw_costs("lognormal", 100_000, seed=1, value=0.3, spread=0.5)
    # The standard error of a median is 1.25 sigma / sqrt(n) = 0.002, that of sigma is 0.0011.
    assert np.median(np.log(costs / 0.3)) == pytest.approx(0, abs=0.01)
    assert np.std(np.log(costs)) == pytest.approx(0.5, abs=0.006)


def test_drawn_costs_depend_on_the_seed_and_the_client_and_on_nothing_else():
    few, many = (draw_costs("lognormal", n, seed=4, spread=1.0) for n in (5, 5_000))
    assert few.tolist() == many[:5].tolist()
    assert len(set(many)) == many.size
    assert not np.any(few == draw_costs("lognormal", 5, seed=5, spread=1.0))


def test_a_wider_spread_only_stretches_the_same_draw():
    narrow, wide = (draw_costs("lognormal", 9, seed=2, value=1.0, spread=s) for s in (0.4, 0.8))
    np.testing.assert_allclose(wide, narrow**2)


def test_no_spread_is_constant():
    drawn = draw_costs("lognormal", 4, seed=0, value=0.1, spread=0.0)
    assert drawn.tolist() == draw_costs("constant", 4, seed=0, value=0.1).tolist()


def test_measured_costs_are_seconds_times_the_price_of_one():
    costs = draw_costs("measured", 3, seed=0, value=0.5, seconds_per_epoch=[2, 0.5, 8])
    assert costs.tolist() == [1.0, 0.25, 4.0]


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (None, "training can be timed"),
        ([1.0, 2.0], "for each of 3 clients"),
        ([[1.0, 2.0, 3.0]], "for each of 3 clients"),
        ([1.0, 0.0, 2.0], "client 1 has 0"),
        ([1.0, 2.0, float("nan")], "client 2 has nan"),
        ([float("inf"), 2.0, 1.0], "client 0 has inf"),
    ],
)
def test_measured_costs_need_positive_seconds_of_every_client(seconds, says):
    with pytest.raises(ConfigError, match=says):
        draw_costs("measured", 3, seed=0, seconds_per_epoch=seconds)


def test_csv_costs_come_in_the_order_of_the_file(tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("name, cost, note\nsite a, 0.2, x\n, 3e-1, y\n")
    assert draw_costs("csv", 2, seed=0, file=str(path)).tolist() == [0.2, 0.3]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,price\na,1\n", "needs the column cost, but its first line has name, price"),
        ("", "its first line has nothing"),
        ("cost\n0.1\nx\n", "line 3: the cost 'x' is not a number"),
        ("name,cost\na,\n", "line 2: the cost is missing"),
        ("cost\n0\n", "line 2: the cost must be positive and finite, not 0"),
        ("cost\nnan\n", "line 2: the cost must be positive"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_line(tmp_path, text, says):
    path = tmp_path / "costs.csv"
    path.write_text(text)
    with pytest.raises(InputFileError, match=says):
        draw_costs("csv", 1, seed=0, file=str(path))


def test_a_file_must_have_as_many_clients_as_there_are(tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("cost\n0.1\n0.2\n")
    with pytest.raises(ConfigError, match="lists costs for 2 clients, but the federation has 3"):
        draw_costs("csv", 3, seed=0, file=str(path))
    with pytest.raises(ConfigError, match="path of a file"):
        draw_costs("csv", 3, seed=0)
    with pytest.raises(InputFileError, match="cannot read"):
        draw_costs("csv", 3, seed=0, file=str(tmp_path / "absent.csv"))


def test_a_table_of_clients_needs_both_columns(tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text("contribution,cost\n0.5,0.1\n")
    assert read_clients(path) == (["client 0"], [0.5], [0.1])
    path.write_text("cost\n0.1\n")
    with pytest.raises(InputFileError, match="needs the columns contribution and cost, but"):
        read_clients(path)
    path.write_text("contribution,cost\n1.5,0.1\n")
    with pytest.raises(InputFileError, match=r"contribution must lie in \[0, 1\]"):
        read_clients(path)


def test_an_unknown_kind_names_its_nearest():
    with pytest.raises(ConfigError) as caught:
        draw_costs("log-normal", 3, seed=0)
    assert str(caught.value) == (
        f"unknown kind of costs 'log-normal': did you mean lognormal? (known: {', '.join(COSTS)})."
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"value": 0.0}, "costs.value must be above 0"),
        ({"value": -1.0}, "costs.value must be above 0"),
        ({"value": float("nan")}, "costs.value must be a finite number"),
        ({"spread": -0.1}, "costs.spread must be at least 0"),
        ({"spread": float("inf")}, "costs.spread must be a finite number"),
        ({"clients": 0}, "at least one client, not 0"),
        ({"spread": 1e6}, "must come out positive and finite"),
    ],
)
def test_numbers_that_cannot_work_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        draw_costs("lognormal", **{"clients": 3, "seed": 0, **options})


def test_names_of_clients_are_printable_and_short(tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text(
        'name,contribution,cost\n"\x1b[2Ja\nb",0.5,0.1\n' + "x" * 999 + ",0.5,0.1\n\x1b,0.5,0.1\n"
    )
    names, _, _ = read_clients(path)
    assert all(name.isprintable() and 0 < len(name) <= 60 for name in names)
    assert names[0].endswith("[2Ja b")


@pytest.mark.parametrize(
    "cost", ["9" * 400, "1e-200", "1e200", "inf", "nan", "\x1b[2J", "x" * 9999]
)
def test_numbers_that_no_cost_can_be_are_refused_in_one_short_line(cost, tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text(f"contribution,cost\n0.5,{cost}\n")
    with pytest.raises(InputFileError, match="line 2: the cost") as caught:
        read_clients(path)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) - len(str(path)) < 300


def test_costs_beyond_what_a_game_can_have_are_refused():
    for value in (1e-200, 1e200):
        with pytest.raises(ConfigError, match="positive and finite"):
            draw_costs("constant", 3, 0, value=value)
