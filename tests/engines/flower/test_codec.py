"""Messages survive the trip, and what arrives is used only after it was checked."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from engines.flower.misbehaving import TORN_HEADER
from flamma.deploy.http_messages import _MAX_REQUEST_BYTES
from flamma.engines.flower import codec, payload
from flamma.engines.flower.messages import (
    MessageError,
    Order,
    OrderContent,
    Score,
    SiteProfile,
)
from flamma.engines.flower.payload import read_configuration
from flamma.errors import FlammaError
from flamma.types import Objective, Terms, Update

PARAMS = np.linspace(-1, 1, 7, dtype=np.float32)
TERMS = Terms(3, 2, 0.5, 0.25, step_scale=0.5, epochs=4, report_loss="received")
A_PROFILE = SiteProfile(
    "3", 40, 10, math.nan, False, (1, 28, 28), 2, True, labels=("ill", "well"), columns_sha256="f"
)


def travelled(content: RecordDict) -> RecordDict:
    return RecordDict.inflate(
        content.deflate(),
        children={
            key: type(child).inflate(child.deflate(), _children(child))
            for key, child in content.children.items()
        },
    )


def _children(thing):
    children = thing.children
    if not children:
        return None
    return {k: type(c).inflate(c.deflate(), _children(c)) for k, c in children.items()}


OTHER_TERMS = [
    None,
    TERMS,
    Terms(0, 0, batches=10),
    Terms(2, 1, train=False, report_loss="received"),
    Terms(1, 5, objective=Objective(bound=2.5), report_loss="trained"),
    Terms(1, 5, objective=Objective(tilt=-0.5)),
]
FULL_ORDER = Order(
    "rounds = 3",
    3,
    "three",
    "lanes",
    True,
    True,
    cost=0.5,
    classes=4,
    run="0123456789abcdef",
    round=7,
    earliest=5,
    trainable_size=5,
    evaluates_kept=True,
)


@pytest.mark.parametrize("terms", OTHER_TERMS)
@pytest.mark.parametrize("params", [None, PARAMS])
@pytest.mark.parametrize("extra", [None, PARAMS[:5]])
def test_an_order_arrives_as_it_was_sent(terms, params, extra):
    sent = OrderContent(FULL_ORDER, terms, params, extra)
    read = codec.read_order(travelled(codec.pack_order(sent)))
    assert read.order == FULL_ORDER
    assert repr(read.terms) == repr(terms)  # NaN is not equal to itself
    for came, went in ((read.params, params), (read.extra, extra)):
        assert (came is None) == (went is None)
        assert went is None or came.tobytes() == went.tobytes()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"run": "../other"}, "hexadecimal"),
        ({"run": "a" * 65}, "hexadecimal"),
        ({"round": -2, "earliest": -2}, "round -2"),
        ({"earliest": 8}, "go back to 8"),
        ({"round": 2**40}, "round 1099511627776"),
        ({"trainable_size": 8}, "8 trained weights of 7"),
        ({"trainable_size": -1}, "-1 trained weights"),
        ({"trainable_size": 4}, "take 20 bytes instead of 16"),
        ({"evaluates_kept": 1}, "evaluates_kept is a int"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(bad, reason):
    content = codec.pack_order(OrderContent(FULL_ORDER, TERMS, PARAMS, PARAMS[:5]))
    content[codec._ORDER_RECORD] = ConfigRecord({**content[codec._ORDER_RECORD], **bad})
    with pytest.raises(MessageError, match=reason):
        codec.read_order(content)


def test_an_answer_arrives_as_it_was_sent():
    report = Update(3, PARAMS, 40, 4, 0.7, 1.5, restarted=True)
    content = travelled(codec.pack_answer("three", report, Score(50.0, 0.6, 10)))
    read = codec.read_report(content, "three", TERMS, 40, 7)
    assert read.params.tobytes() == PARAMS.tobytes()
    assert (read.client, read.samples, read.epochs, read.loss) == (3, 40, 4, 0.7)
    assert read.restarted
    assert codec.read_score(content, "three", 10) == Score(50.0, 0.6, 10)


def test_a_loss_that_was_asked_for_arrives_without_weights():
    terms = replace(TERMS, train=False)
    told = codec.pack_answer("three", Update(3, None, 40, 0, 0.7, 1.5))
    read = codec.read_report(travelled(told), "three", terms, 40, 7)
    assert (read.params, read.loss, read.failure) == (None, 0.7, "")
    weights = codec.pack_answer("three", Update(3, PARAMS, 40, 0, 0.7, 1.5))
    with pytest.raises(MessageError, match="asked for a loss, and sent weights"):
        codec.read_report(weights, "three", terms, 40, 7)


def test_a_failure_arrives_as_one_short_line():
    report = Update(3, None, 40, 0, failure="it\nbroke\x1b[31m" + "x" * 100)
    read = codec.read_report(travelled(codec.pack_answer("t", report)), "t", TERMS, 40, 7)
    assert read.failure.startswith("it broke [31mx")
    content = codec.pack_answer("", failure="ValueError: no\nsuch thing")
    with pytest.raises(MessageError, match=r"^ValueError: no such thing$") as raised:
        codec.read_report(content, "t", TERMS, 40, 7)
    assert raised.value.from_client
    assert raised.value.reason == "ValueError: no such thing"
    with pytest.raises(MessageError, match=r"^there is no report in it$") as raised:
        codec.read_report(RecordDict(), "t", TERMS, 40, 7)
    assert not raised.value.from_client
    assert raised.value.reason == "refused: there is no report in it"


BAD_PROFILES = {
    "shape": [0],
    "samples": 0,
    "held_out": -1,
    "classes": 0,
    "cost": -0.5,
    "name": 7,
    "lanes": 1,
    "own_cost": None,
}


@pytest.mark.parametrize("key", BAD_PROFILES)
def test_a_bad_profile_is_refused(key):
    content = codec.pack_profile(A_PROFILE)
    record = dict(content[codec._PROFILE_RECORD])
    if BAD_PROFILES[key] is None:
        del record[key]
    else:
        record[key] = BAD_PROFILES[key]
    content[codec._PROFILE_RECORD] = ConfigRecord(record)
    with pytest.raises(MessageError):
        codec.read_profile(content)
    assert repr(codec.read_profile(codec.pack_profile(A_PROFILE))) == repr(A_PROFILE)


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": -1},
        {"round": 2**40},
        {"step_scale": math.inf},
        {"proximal": -1.0},
        {"bound": 0.0},
        {"bound": math.nan},
        {"tilt": math.inf},
        {"tilt": math.nan},
    ],
)
def test_terms_out_of_range_are_refused_by_the_client(bad):
    content = codec.pack_order(OrderContent(Order(""), TERMS, PARAMS))
    content[payload.TERMS_RECORD] = ConfigRecord({**content[payload.TERMS_RECORD], **bad})
    with pytest.raises(MessageError, match="the terms"):
        codec.read_order(content)


def test_an_order_of_another_version_is_refused():
    content = codec.pack_order(OrderContent(Order("")))
    content[codec._ORDER_RECORD]["version"] = codec._PROTOCOL_VERSION - 1
    with pytest.raises(MessageError, match="different versions"):
        codec.read_order(content)


def test_a_text_of_absurd_length_is_refused():
    content = codec.pack_profile(A_PROFILE)
    content[codec._PROFILE_RECORD]["name"] = "n" * 10_000
    with pytest.raises(MessageError, match="name is a text of 10000 characters"):
        codec.read_profile(content)


RAW = PARAMS.tobytes()


def as_array(data, shape=(7,), dtype="float32", stype=codec._RAW_FLOAT32):
    return Array(dtype, shape, stype, data)


@pytest.mark.parametrize(
    "array",
    [
        as_array(b""),
        as_array(RAW[:-1]),
        as_array(RAW[:-4], (6,)),
        as_array(RAW + b"more"),
        as_array(RAW, (10**12,)),
        as_array(RAW, (7, 1)),
        as_array(RAW, dtype="float64"),
        as_array(pickle.dumps(PARAMS), stype="pickle"),
        as_array(TORN_HEADER, stype="numpy.ndarray"),
        Array(PARAMS),
    ],
)
def test_weights_that_are_not_what_they_should_be_are_refused(array):
    content = RecordDict({codec._WEIGHTS_RECORD: ArrayRecord({"params": array})})
    with pytest.raises(MessageError, match="the weights"):
        codec._read_params(content, 7)


def test_weights_travel_as_little_endian_numbers_without_a_header():
    array = codec._pack_params(PARAMS)["params"]
    assert array.data == PARAMS.astype("<f4").tobytes()
    assert codec._pack_params(PARAMS.astype(">f4"))["params"].data == array.data


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("classes", 2**40, "1099511627776 classes"),
        ("labels", ["n" * 201], "names that are no short texts"),
        ("labels", [1, 2], "names that are no short texts"),
        ("labels", ["n"] * 1001, "no usable names"),
        ("columns_sha256", 5, "columns_sha256 is a int"),
        ("shape", [2**19, 2**19], "no usable shape"),
        ("shape", [1] * 99, "no usable shape"),
    ],
)
def test_a_profile_that_asks_for_a_huge_model_is_refused(key, value, reason):
    content = codec.pack_profile(A_PROFILE)
    content[codec._PROFILE_RECORD][key] = value
    with pytest.raises(MessageError, match=reason):
        codec.read_profile(content)


def test_a_configuration_that_cannot_be_read_is_refused_by_the_client():
    assert read_configuration("rounds = 4").rounds == 4
    with pytest.raises(FlammaError, match="is not valid TOML"):
        read_configuration("rounds = ")


def test_a_second_vector_makes_a_message_longer_and_no_request_larger():
    """Flower sends arrays in pieces, and the proxy of a deployment limits each request."""
    model = np.zeros(3_000_000, dtype=np.float32)  # of 12 MB
    largest = []
    for extra in (None, model + 1):
        order = replace(FULL_ORDER, trainable_size=model.size)
        content = codec.pack_order(OrderContent(order, TERMS, model, extra))
        pieces = get_all_nested_objects(content).values()
        largest.append(max(len(piece.deflate()) for piece in pieces))
    assert largest[0] == largest[1] < _MAX_REQUEST_BYTES
