"""Records of rounds: there and back again, old lines read, damaged and newer ones refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.errors import RecordError
from flamma.game import Certificate
from flamma.records import RECORD_VERSION, Evaluation, RoundGame, RoundRecord, Warmup
from made_runs import sign, signed_line

RECORD = RoundRecord(
    round=3,
    selected=(1, 4),
    abstained=(4,),
    failed={1: "late: over 2 s"},
    decay_factor=0.25,
    local_epochs=(0, 0),
    contributions=(0.5, 0.75),
    epochs_total=0,
    evaluation=Evaluation({"accuracy": 71.5, "loss": None}, {2: "not connected"}),
    game=RoundGame(2.5, (0.1, 1.0), (1.0, 10.0), True, (0.1, 0.2), (0.5, 0.3), "distance"),
    certificate=Certificate(0.0, 1e-3, 0.0, 0.3, 0.0, 0.5),
    server_utility=1.5,
    client_utilities=(None, 0.0),
    bytes_up=4,
    bytes_down=8,
    seconds_train=0.5,
    seconds_evaluate=0.25,
    seconds=1.0,
    warmup=Warmup({0: "failed"}, 10, 20, 0.5, 3.25),
)


def test_a_record_comes_back_as_it_was():
    line = RECORD.to_json()
    assert "\n" not in line
    assert json.loads(line)["version"] == RECORD_VERSION
    assert RoundRecord.from_json(line) == RECORD
    plain = replace(RECORD, evaluation=None, game=None, certificate=None, warmup=None)
    plain = replace(plain, contributions=None, client_utilities=None, server_utility=None)
    assert RoundRecord.from_json(plain.to_json()) == plain


def test_an_amount_for_a_round_is_paid_in_place_of_a_contribution():
    paid = replace(RECORD, payments=(2.0,) * len(RECORD.selected), fines={RECORD.selected[0]: 0.5})
    assert RoundRecord.from_json(paid.to_json()) == paid
    assert [paid.payment(0), paid.payment(1)] == [1.5, 2.0]
    unpaid = replace(paid, contributions=None, payments=None)
    assert paid.is_paid
    assert not unpaid.is_paid
    assert unpaid.payment(0) == 0.0
    with pytest.raises(RecordError, match="one entry"):
        replace(paid, payments=(1.0,))


numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 100), numbers), max_size=8),
    st.dictionaries(st.text(max_size=12), st.none() | numbers, max_size=5),
    numbers,
)
def test_any_record_comes_back_bit_for_bit(clients, metrics, gamma):
    record = RoundRecord(
        round=7,
        selected=tuple(c for c, _, _ in clients),
        abstained=(),
        failed={},
        decay_factor=gamma,
        local_epochs=tuple(e for _, e, _ in clients),
        contributions=tuple(o for _, _, o in clients),
        epochs_total=1,
        evaluation=Evaluation(metrics),
    )
    assert RoundRecord.from_json(record.to_json()) == record


def test_a_line_of_a_newer_version_is_refused_with_what_to_do():
    line = signed_line(TABLE | {"version": RECORD_VERSION + 1})
    with pytest.raises(RecordError, match="install a newer one") as caught:
        RoundRecord.from_json(line)
    assert caught.value.newer


def test_any_changed_byte_of_a_line_is_noticed():
    line = RECORD.to_json().encode()
    for place in range(len(line)):
        changed = line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]
        with pytest.raises(RecordError):
            RoundRecord.from_json(changed)
    with pytest.raises(RecordError):
        RoundRecord.from_json(line[: line.rindex(b',"checksum"')] + b"}")


TABLE = {k: v for k, v in json.loads(RECORD.to_json()).items() if k != "checksum"}
BAD = {
    "no JSON": "{",
    "a list": "[]",
    "a number that JSON does not have": RECORD.to_json().replace("0.25", "NaN", 1),
    "a version that is none": signed_line(TABLE | {"version": "2"}),
    "a truth for a version": signed_line(TABLE | {"version": True}),
    "no round": signed_line({k: v for k, v in TABLE.items() if k != "round"}),
    "a text for a round": signed_line(TABLE | {"round": "3"}),
    "a truth for a round": signed_line(TABLE | {"round": True}),
    "a negative client": signed_line(TABLE | {"selected": [-1, 4]}),
    "too few epochs": signed_line(TABLE | {"local_epochs": [1]}),
    "a table for a list": signed_line(TABLE | {"selected": {}}),
    "a failure of nobody": signed_line(TABLE | {"failed": {"x": "late"}}),
    "a metric that is a text": signed_line(TABLE | {"evaluation": {"metrics": {"accuracy": "1"}}}),
    "no decay factor": signed_line(TABLE | {"decay_factor": None}),
    "one bound": signed_line(TABLE | {"game": {"price": 1, "decay_bounds": [1]}}),
    "infinite": sign(json.dumps(TABLE).replace("71.5", "1e999")),
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("case", BAD)
def test_a_damaged_line_is_refused(case):
    with pytest.raises(RecordError):
        RoundRecord.from_json(BAD[case])


def test_lines_made_by_hand_with_the_right_checksum_are_read():
    assert RoundRecord.from_json(signed_line(TABLE)) == RECORD
