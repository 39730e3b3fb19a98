"""Records of rounds: there and back again, old lines read, damaged and newer ones refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.errors import RecordError
from flamma.game import Certificate
from flamma.records import (
    RECORD_VERSION,
    CostRecord,
    Evaluation,
    GameRecord,
    OfferRecord,
    Outcomes,
    RoundRecord,
    Warmup,
    damaged_scores,
)
from made_runs import with_changes

RECORD = RoundRecord(
    round=3,
    selected=(1, 4),
    offer=OfferRecord(0.25, (0.5, 0.75)),
    outcome=Outcomes((4,), {1: "late: over 2 s"}, (0, 0), 0, client_utilities=(None, 0.0)),
    evaluation=Evaluation({"accuracy": 71.5, "loss": None}, {2: "not connected"}),
    game=GameRecord(
        *(2.5, (0.1, 1.0), (1.0, 10.0), True, (0.1, 0.2), (0.5, 0.3), "distance"),
        certificate=Certificate(0.0, 1e-3, 0.0, 0.3, 0.0, 0.5),
        server_utility=1.5,
    ),
    cost=CostRecord(4, 8, 0.5, 0.25, 1.0),
    warmup=Warmup({0: "failed"}, 10, 20, 0.5, 3.25),
)
FLAT = (
    '{"version":2,"round":3,"selected":[1,4],"abstained":[4],"failed":{"1":"late: over 2 s"},'
    '"decay_factor":0.25,"local_epochs":[0,0],"contributions":[0.5,0.75],"epochs_total":0,'
    '"evaluation":{"metrics":{"accuracy":71.5,"loss":null},"unscored":{"2":"not connected"},'
    '"sample":null,"personal":false,"scored_by":"","less_is_better":false},"game":{"price":2.5,'
    '"decay_bounds":[0.1,1.0],"epoch_bounds":[1.0,10.0],"whole_epochs":true,"costs":[0.1,0.2],'
    '"effective":[0.5,0.3],"measure":"distance"},"certificate":{"follower_gap":0.0,'
    '"leader_regret":0.001,"leader_regret_uncertainty":0.0,"better_decay_factor":0.3,'
    '"individual_rationality_slack":0.0,"abstaining_share":0.5},"server_utility":1.5,'
    '"client_utilities":[null,0.0],"decay_factors":null,"credited":null,"fines":{},"flags":{},'
    '"inspected":[],"efforts":null,"bytes_up":4,"bytes_down":8,"seconds_train":0.5,'
    '"seconds_evaluate":0.25,"seconds":1.0,"warmup":{"failed":{"0":"failed"},"bytes_up":10,'
    '"bytes_down":20,"seconds":0.5,"epochs":3.25},"survey":null,"scores_checksum":null,'
    '"run":null,"payments":null,"privacy":null,"virtual_seconds":null,'
    '"checksum":"1d5a17d86f3b9179"}'
)
"""The line that version 0.2 wrote of this record."""


def test_a_record_comes_back_as_it_was():
    line = RECORD.to_json()
    assert "\n" not in line
    assert json.loads(line)["version"] == RECORD_VERSION
    assert RoundRecord.from_json(line) == RECORD
    outcome = replace(RECORD.outcome, client_utilities=None)
    plain = replace(RECORD, offer=OfferRecord(0.25), outcome=outcome, game=None, warmup=None)
    assert RoundRecord.from_json(plain.to_json()) == plain


@pytest.mark.parametrize("name", ["failed", "decay_factor", "certificate", "seconds"])
def test_a_name_of_version_0_2_leads_to_the_part_that_has_it(name):
    with pytest.warns(DeprecationWarning, match=rf"now (outcome|offer|game|cost)\.{name}; the old"):
        value = getattr(RECORD, name)
    parts = (RECORD.offer, RECORD.outcome, RECORD.game, RECORD.cost)
    assert value in [getattr(part, name) for part in parts if hasattr(part, name)]
    with pytest.raises(AttributeError, match="'failled'"):
        _ = RECORD.failled


def test_an_amount_for_a_round_is_paid_in_place_of_a_contribution():
    outcome = replace(RECORD.outcome, payments=(2.0, 2.0), fines={RECORD.selected[0]: 0.5})
    paid = replace(RECORD, outcome=outcome)
    assert RoundRecord.from_json(paid.to_json()) == paid
    assert [paid.payment(0), paid.payment(1)] == [1.5, 2.0]
    unpaid = replace(paid, offer=OfferRecord(), outcome=replace(outcome, payments=None))
    assert paid.is_paid
    assert not unpaid.is_paid
    assert unpaid.payment(0) == 0.0
    with pytest.raises(RecordError, match="one entry"):
        replace(paid, outcome=replace(outcome, payments=(1.0,)))


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
        offer=OfferRecord(gamma, tuple(o for _, _, o in clients)),
        outcome=Outcomes((), {}, tuple(e for _, e, _ in clients), 1),
        evaluation=Evaluation(metrics),
    )
    assert RoundRecord.from_json(record.to_json()) == record


def test_a_line_of_a_newer_version_is_refused_with_what_to_do():
    line = json.dumps(TABLE | {"version": RECORD_VERSION + 1})
    with pytest.raises(RecordError, match="install a newer one") as caught:
        RoundRecord.from_json(line)
    assert caught.value.newer


def test_a_line_of_version_2_is_read_for_good():
    assert RoundRecord.from_json(FLAT) == RECORD
    with pytest.raises(RecordError, match="checksum"):
        RoundRecord.from_json(FLAT.replace("0.25", "0.35", 1))


def test_any_changed_byte_of_a_line_of_version_2_is_noticed():
    line = FLAT.encode()
    for place in range(len(line)):
        changed = line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]
        with pytest.raises(RecordError):
            RoundRecord.from_json(changed)
    with pytest.raises(RecordError):
        RoundRecord.from_json(line[: line.rindex(b',"checksum"')] + b"}")


def test_scores_of_version_2_are_checked_by_the_line_of_their_round():
    rows = "3,0,71.5,0.5,25\n3,1,50,0.7,25\n"
    digest = hashlib.sha256(rows.removesuffix("\n").encode()).hexdigest()[:16]
    line = FLAT.replace('"scores_checksum":null', f'"scores_checksum":"{digest}"')
    assert damaged_scores(f"{line}\n", {"3": rows}) == set()
    assert damaged_scores(f"{line}\n", {"3": rows.replace("71", "72")}) == {"3"}
    assert damaged_scores(f"{line}\n", {}) == {"3"}
    assert damaged_scores(f"{FLAT}\n{RECORD.to_json()}\n", {}) == set()


TABLE = json.loads(RECORD.to_json())
BAD = {
    "no JSON": "{",
    "a list": "[]",
    "a number that JSON does not have": RECORD.to_json().replace("0.25", "NaN", 1),
    "a version that is none": json.dumps(TABLE | {"version": "2"}),
    "a truth for a version": json.dumps(TABLE | {"version": True}),
    "no round": json.dumps({k: v for k, v in TABLE.items() if k != "round"}),
    "a text for a round": json.dumps(TABLE | {"round": "3"}),
    "a truth for a round": json.dumps(TABLE | {"round": True}),
    "a negative client": json.dumps(TABLE | {"selected": [-1, 4]}),
    "too few epochs": json.dumps(with_changes(TABLE, {"outcome": {"local_epochs": [1]}})),
    "a table for a list": json.dumps(TABLE | {"selected": {}}),
    "a failure of nobody": json.dumps(with_changes(TABLE, {"outcome": {"failed": {"x": "late"}}})),
    "a metric that is a text": json.dumps(TABLE | {"evaluation": {"metrics": {"accuracy": "1"}}}),
    "no decay factor": json.dumps(with_changes(TABLE, {"offer": {"decay_factor": None}})),
    "one bound": json.dumps(TABLE | {"game": {"price": 1, "decay_bounds": [1]}}),
    "infinite": json.dumps(TABLE).replace("71.5", "1e999"),
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("case", BAD)
def test_a_damaged_line_is_refused(case):
    with pytest.raises(RecordError):
        RoundRecord.from_json(BAD[case])


def test_lines_made_by_hand_are_read():
    assert RoundRecord.from_json(json.dumps(TABLE)) == RECORD
