"""An unknown name is answered with the nearest known one and with all of them."""

from __future__ import annotations

import pytest

from flamma.names import nearest, unknown

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


def test_nothing_is_suggested_where_nothing_is_near():
    assert unknown("model", "zzz", ["lenet"]) == "unknown model 'zzz' (known: lenet)."
    assert unknown("model", "zzz", []) == "unknown model 'zzz' (known: none)."


def test_the_known_names_may_come_from_an_iterator():
    assert unknown("model", "lnet", iter(["lenet"])).endswith("lenet? (known: lenet).")
