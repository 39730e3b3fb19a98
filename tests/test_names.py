"""An unknown name is answered with the nearest known one and with all of them."""

from __future__ import annotations

import pytest

from flamma.errors import ConfigError
from flamma.io import MOST_NAME_BYTES, check_folder_name, nearest, printable, quoted, unknown

KNOWN = ("fedavg", "fedprox", "flamma", "flamma-plus", "q-ffl")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("flama", "flamma"),
        ("FLamma", "flamma"),
        ("FedAvg", "fedavg"),
        ("fed_prox", "fedprox"),
        ("qffl", "q-ffl"),
        ("flamma_plus", "flamma-plus"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_nearest_forgives_slips_and_case_but_not_everything(typed, meant):
    assert nearest(typed, KNOWN) == meant


def test_a_sentence_names_the_kind_the_nearest_and_all():
    assert unknown("strategy", "flama", KNOWN) == (
        "unknown strategy 'flama': did you mean flamma? "
        "(known: fedavg, fedprox, flamma, flamma-plus, q-ffl)."
    )


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("test", ("least", "type_costs", "rest_of_it"), ""),
        ("fare", ("fair", "mean"), "fair"),
        ("num_clients", ("clients", "costs"), "clients"),
        ("ort", ("oort", "maxfl"), "oort"),
        ("mnits", ("digits", "mnist"), "mnist"),
    ],
)
def test_a_name_that_begins_otherwise_is_suggested_only_if_it_is_very_similar(typed, known, meant):
    assert nearest(typed, known) == meant


def test_nothing_is_suggested_where_nothing_is_near():
    assert unknown("model", "zzz", ["lenet"]) == "unknown model 'zzz' (known: lenet)."
    assert unknown("model", "zzz", []) == "unknown model 'zzz' (known: none)."


def test_the_known_names_may_come_from_an_iterator():
    assert unknown("model", "lnet", iter(["lenet"])).endswith("lenet? (known: lenet).")


@pytest.mark.parametrize("name", ["a", "fedavg", "γ = 0.5", "v1.2", "x" * MOST_NAME_BYTES])
def test_names_that_can_be_folders(name):
    assert check_folder_name(name, "strategies") == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/tmp/x", "a/b", "../x", "a\\b", ".hidden", "end.", " a", "a "),
        *("a\0b", "a\nb", "\x1b[2J", "\u202eabc", "\ud800", "x" * (MOST_NAME_BYTES + 1), "γ" * 60),
    ],
)
def test_names_that_lead_elsewhere_or_cannot_be_folders_are_refused(name):
    with pytest.raises(ConfigError, match="cannot be the name of a folder") as caught:
        check_folder_name(name, "strategies")
    assert str(caught.value).isprintable()


def test_values_are_quoted_on_one_short_line():
    assert quoted("a\nb") == r"'a\nb'"
    assert quoted(["x"]) == "['x']"
    for value in (10**400, 16**9000, "a" * 10**6, [1] * 10**5):
        assert len(quoted(value)) <= 200


def test_what_a_terminal_would_obey_is_replaced():
    assert printable("\x1b[31mred\x07\n", 100) == "�[31mred�"
    assert printable("x" * 100, 10) == "xxxxxxx..."


def test_a_very_long_name_is_near_to_none():
    assert unknown("key", "a" * 10**6, ["rounds"]).endswith("(known: rounds).")
