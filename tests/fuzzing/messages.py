"""Random damage to the answers of clients: each is read to a valid value or refused by a reason.

``fuzz(seed, seconds)`` returns how many answers it has tried; a failure is an AssertionError that
names the seed of the answer.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from engines.flower.loopback import identify
from flamma.engines.flower import codec
from flamma.engines.flower.inflation import _inflate_reply
from flamma.engines.flower.messages import (
    MessageError,
    Order,
    OrderContent,
    Score,
    SiteProfile,
)
from flamma.engines.flower.payload import read_reply
from flamma.flower.arrays import NamedArrays
from flamma.flower.client import EPOCHS_METRIC, INTRODUCTION_RECORD, LOSS_METRIC, SAMPLES_METRIC
from flamma.flower.strategy import _read_introduction, _read_metrics, _read_update
from flamma.tasks.base import MAX_CLASSES
from flamma.types import MOST_SAMPLES, Terms, Update

SIZE = 9
PARAMS = np.linspace(-1, 1, SIZE, dtype=np.float32)
TERMS = Terms(3, 2, 0.5, 0.25, epochs=4, report_loss="received")
ORDER = OrderContent(
    Order("a = 1", 3, "three", run="0a" * 16, round=5, earliest=4, trainable_size=6),
    TERMS,
    PARAMS,
    PARAMS[:6],
)
PROFILE = SiteProfile(
    "three", 40, 10, 0.25, True, (1, 8, 8), 2, True, labels=("ill", "well"), columns_sha256="f" * 64
)
NAMED = ArrayRecord(
    {
        "w": Array(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "b": Array(np.zeros(3, dtype=np.float64)),
        "n": Array(np.array(12)),
    }
)
FORM = NamedArrays.of(NAMED)
TEXTS = ("", "three", "\ud800", "a\x1b[31mb", "x" * 100_000, "\x00", "numpy.ndarray", "{'a':")
NUMBERS = (0, -1, 1, 3, 40, 2**31, 2**53, -(2**63), 2**63 - 1, 10**400)
REALS = (0.0, -0.5, 0.5, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan)
OTHERS = (True, b"", b"\xff" * 9, None, (), [1] * 9, [0.5], ["a"], [-1, 2**62], [[1]], {"a": 1})
ODD = (*TEXTS, *NUMBERS, *REALS, *OTHERS)


def originals():
    """Answers of honest clients, each with its reader and a check of what that returns."""
    report = Update(3, PARAMS, 40, 4, 0.7, 1.5)
    answer = codec.pack_answer("three", report, Score(50.0, 0.6, 10))
    own = RecordDict(
        {
            "arrays": ArrayRecord(dict(NAMED)),
            "metrics": MetricRecord(
                {SAMPLES_METRIC: 40, EPOCHS_METRIC: 4, LOSS_METRIC: 0.5, "acc": 0.5, "loss": 0.3}
            ),
        }
    )
    introduction = ConfigRecord({"name": "three", "samples": 40, "cost": 0.25})
    return [
        (answer, lambda c: codec.read_report(c, "three", TERMS, 40, SIZE), valid_report),
        (answer, lambda c: codec.read_score(c, "three", 10), valid_score),
        (codec.pack_profile(PROFILE), codec.read_profile, valid_profile),
        (codec.pack_order(ORDER), codec.read_order, any_order),
        (codec.pack_answer("three", Update(3, None, 40, 0, 0.7)), read_loss, valid_loss),
        (own, lambda c: _read_update(3, c, FORM, (1, 10)), valid_update),
        (own, lambda c: _read_metrics(c, "acc", "loss"), valid_metrics),
        (RecordDict({INTRODUCTION_RECORD: introduction}), _read_introduction, valid_introduction),
    ]


def valid_report(report):
    assert type(report.client) is int
    assert report.client == 3
    assert 0 <= report.samples <= MOST_SAMPLES  # the strategy refuses more than were told
    assert type(report.epochs) is int
    assert abs(report.epochs) <= 2**31
    assert 0 <= report.seconds < math.inf
    assert not codec.LARGEST_LOSS < report.loss < math.inf
    assert len(report.failure) <= 200
    assert report.failure.isprintable()
    if report.params is not None:
        assert report.params.shape == (SIZE,)
        assert report.params.dtype == np.float32


def read_loss(content):
    return codec.read_report(content, "three", replace(TERMS, train=False), 40, SIZE)


def valid_loss(report):
    valid_report(report)
    assert report.params is None


def valid_score(score):
    assert 0 <= score.accuracy <= 100
    assert not score.loss < 0
    assert score.held_out == 10


def valid_profile(profile):
    assert 1 <= profile.samples <= codec.MOST_SAMPLES
    assert 0 <= profile.held_out <= codec.MOST_SAMPLES
    assert 1 <= profile.classes <= MAX_CLASSES
    assert 1 <= math.prod(profile.shape) <= codec._MAX_FEATURES
    assert math.isnan(profile.cost) or 0 < profile.cost < math.inf
    assert len(profile.name) <= 200
    assert all(type(name) is str and len(name) <= 200 for name in profile.labels)


def any_order(found):
    order, terms = found.order, found.terms
    assert 0 <= order.classes <= MAX_CLASSES
    assert not set(order.run) - set("0123456789abcdef")
    assert -1 <= order.earliest <= order.round <= 1_000_000
    for vector, size in ((found.params, None), (found.extra, order.trainable_size)):
        assert vector is None or (vector.ndim == 1 and vector.dtype == np.float32)
        assert vector is None or size in (None, vector.size)
    if terms is not None:
        assert terms.objective.bound > 0
        assert math.isfinite(terms.objective.tilt)
        assert {type(not terms.train), type(terms.report_loss == "trained")} == {bool}


def valid_update(found):
    report, whole = found
    assert 0 <= abs(report.samples) <= codec.MOST_SAMPLES
    assert not codec.LARGEST_LOSS < report.loss < math.inf
    assert (report.params is None) == (whole == {})
    if report.params is not None:
        assert report.params.shape == (SIZE,)
        assert report.params.dtype == np.float32
        assert whole["n"].dtype == np.int64


def valid_metrics(found):
    accuracy, loss, samples = found
    assert 0 <= accuracy <= 100
    assert isinstance(loss, float)
    assert abs(samples) <= codec.MOST_SAMPLES


def valid_introduction(found):
    name, samples, cost = found
    assert 0 < len(name) <= 200
    assert name.isprintable()
    assert 0 < samples <= codec.MOST_SAMPLES
    assert math.isnan(cost) or 0 < cost < math.inf


def copied(content):
    """Return a copy that can be changed without changing the original."""
    fresh = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            parts = {k: Array(a.dtype, a.shape, a.stype, a.data) for k, a in record.items()}
            fresh[name] = ArrayRecord(parts)
        else:
            fresh[name] = type(record)(dict(record))
    return fresh


def force(record, key, value):
    """Put a value into a record that the record itself would refuse."""
    record.__dict__["_data"][key] = value


def torn(data, rng):
    """Return bytes with a part flipped, cut out, doubled or replaced."""
    data = bytearray(data)
    start = int(rng.integers(0, len(data) + 1))
    stop = min(len(data), start + int(rng.integers(0, 12)))
    kind = rng.integers(0, 5)
    if kind == 0 and data:
        data[start % len(data)] ^= 1 << int(rng.integers(0, 8))
    elif kind == 1:
        del data[start:]
    elif kind == 2:
        data[start:start] = data[start:stop]
    elif kind == 3:
        data[start:stop] = rng.bytes(stop - start)
    else:
        # What numpy would have parsed: brackets, quotes and numbers in the header.
        data[start:stop] = [b"(", b"'", b"{", b"\\", b"9" * 40, b"None", b"\n", b"[" * 99][
            int(rng.integers(0, 8))
        ]
    return bytes(data)


def pick(rng, values):
    return values[int(rng.integers(0, len(values)))]


def damage_array(record, name, rng):
    array = record[name]
    kind = rng.integers(0, 6)
    if kind < 3:
        array.data = torn(array.data, rng)
    elif kind == 3:
        array.stype = pick(rng, TEXTS)
    elif kind == 4:
        array.shape = pick(rng, [(), (0,), (SIZE, 1), (2**62, 2**62), (-1,), ("a",)])
    else:
        force(record, name, pick(rng, ODD))


def damage(content, rng):
    """Change one thing somewhere in an answer."""
    names = list(content)
    if not names:
        return
    name = pick(rng, names)
    record = content[name]
    kind = rng.integers(0, 10)
    if kind == 0:
        del content[name]
    elif kind == 1:
        force(content, name, pick(rng, [ConfigRecord(), MetricRecord(), ArrayRecord(), *ODD]))
    elif kind == 2:
        force(content, pick(rng, TEXTS), record)
    elif not isinstance(record, ArrayRecord | ConfigRecord | MetricRecord):
        return
    elif kind == 3 or not len(record):
        force(record, pick(rng, TEXTS), pick(rng, ODD))
    else:
        key = pick(rng, list(record))
        if kind == 4:
            del record[key]
        elif isinstance(record[key], Array):
            damage_array(record, key, rng)
        else:
            force(record, key, pick(rng, ODD))


def try_one(number):
    """Damage one answer and read it; raise an AssertionError if that gives anything odd."""
    rng = np.random.default_rng(number)
    content, read, check = pick(rng, originals())
    content = copied(content)
    for _ in range(int(rng.integers(0, 4))):
        damage(content, rng)
    try:
        found = read(content)  # not by read_reply, whose catch-all is the second line of defence
    except MessageError as error:
        refused = error.reason
    else:
        refused = ""
        check(found)
    assert len(refused) < 1000
    assert refused.isprintable()


def try_objects(number):
    """Damage the objects that a reply travels as, and let the server put it together."""
    from flwr.app import Message

    rng = np.random.default_rng(number)
    identify()
    content, _, _ = pick(rng, originals())
    asked = Message(RecordDict(), 1, "train")
    asked.metadata.__dict__["_message_id"] = "asked"
    reply = Message(copied(content), reply_to=asked)
    objects = {name: obj.deflate() for name, obj in get_all_nested_objects(reply).items()}
    for _ in range(int(rng.integers(1, 4))):
        name = pick(rng, list(objects))
        objects[name] = torn(objects[name], rng)
    found = _inflate_reply(inflate_object_from_contents, 2**20, reply.object_id, objects)
    assert isinstance(found, Message), number
    if not found.has_error():
        with np.errstate(all="ignore"):
            for _, read, check in originals():
                try:
                    value = read_reply(found, read)
                except MessageError:
                    continue
                check(value)


def fuzz(seed: int, seconds: float) -> int:
    """Try random answers for so long, and return how many."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            try_one((seed, count))
            if count % 8 == 0:
                try_objects((seed, count))
        except Exception as error:
            raise AssertionError(f"answer {count} of seed {seed}: {error!r}") from error
        count += 1
    return count
