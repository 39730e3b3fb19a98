"""A ClientApp like ours, some of whose clients are hostile or broken.

The environment variable ``FLAMMA_TEST_MISCHIEF`` says who does what: ``{"3": "nan"}``. All clients
behave in the warm-up, round 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from flamma.engines.flower import client_app, codec
from flamma.engines.flower.payload import TERMS_RECORD

app = ClientApp()


def weights(content, change):
    """Change the bytes of the weights, and what their record says of them."""
    array = content[codec._WEIGHTS_RECORD]["params"]
    numbers = change(np.frombuffer(array.data, np.float32))
    content[codec._WEIGHTS_RECORD] = ArrayRecord(
        {"params": Array(str(numbers.dtype), numbers.shape, array.stype, numbers.tobytes())}
    )


def numbers(content, record, **values):
    content[record] = ConfigRecord({**content[record], **values})


def in_numpys_format(content, data):
    array = Array("float32", (9,), "numpy.ndarray", data)
    content[codec._WEIGHTS_RECORD] = ArrayRecord({"params": array})


TORN_HEADER = b"\x93NUMPY\x01\x00\x30\x00{'descr': '<f4', 'fortran_order': False, 'shape': ("
"""A header of numpy's that ends too early: numpy parses it as Python and raises a TokenError."""


MISCHIEF = {
    "shape": lambda c: weights(c, lambda a: a[:-1]),
    "matrix": lambda c: weights(c, lambda a: a.reshape(1, -1)),
    "dtype": lambda c: weights(c, lambda a: a.astype(np.float64)),
    "nan": lambda c: weights(c, lambda a: np.full_like(a, np.nan)),
    "large": lambda c: weights(c, lambda a: np.zeros(5_000_000, np.float32)),
    "torn header": lambda c: in_numpys_format(c, TORN_HEADER),
    "promise": lambda c: c[codec._WEIGHTS_RECORD]["params"].__setattr__("shape", (2**31 - 1,)),
    "two arrays": lambda c: c[codec._WEIGHTS_RECORD].__setitem__(
        "more", c[codec._WEIGHTS_RECORD]["params"]
    ),
    "no weights": lambda c: c.pop(codec._WEIGHTS_RECORD),
    "no report": lambda c: c.pop(codec._REPORT_RECORD),
    "no epochs": lambda c: c[codec._REPORT_RECORD].pop("epochs"),
    "epochs": lambda c: numbers(c, codec._REPORT_RECORD, epochs=1000),
    "zero epochs": lambda c: numbers(c, codec._REPORT_RECORD, epochs=0),
    "text": lambda c: numbers(c, codec._REPORT_RECORD, epochs="three"),
    "samples": lambda c: numbers(c, codec._REPORT_RECORD, samples=-5),
    "more samples": lambda c: numbers(c, codec._REPORT_RECORD, samples=10**9),
    "seconds": lambda c: numbers(c, codec._REPORT_RECORD, seconds=-1.0),
    "loss": lambda c: numbers(c, codec._REPORT_RECORD, loss=-3.0),
    "name": lambda c: numbers(c, codec._REPORT_RECORD, name="0"),
    "client": lambda c: numbers(c, codec._REPORT_RECORD, client=0),
    "accuracy": lambda c: numbers(c, codec._SCORE_RECORD, accuracy=300.0),
    "held out": lambda c: numbers(c, codec._SCORE_RECORD, held_out=-1),
    "score name": lambda c: numbers(c, codec._SCORE_RECORD, name="0"),
    "no score": lambda c: c.pop(codec._SCORE_RECORD),
}


def spoil(content: RecordDict, mischief: str) -> RecordDict:
    """Return an answer as a hostile client would have sent it."""
    with contextlib.suppress(KeyError):  # where there is nothing of the kind in this answer
        MISCHIEF[mischief](content)
    return content


def answer(message: Message, context) -> Message:
    number = str(context.node_config["partition-id"])
    mischief = json.loads(os.environ.get("FLAMMA_TEST_MISCHIEF", "{}")).get(number, "")
    terms = message.content.get(TERMS_RECORD, {})
    now = terms.get("round", 1)
    if now > 0 and codec._WEIGHTS_RECORD in message.content:
        if mischief == "raises":
            raise ValueError("this client is broken")
        if mischief == "dies once" and now == 1 and terms:
            os._exit(7)
        if mischief == "dies":
            os._exit(7)
        if mischief == "hangs" and now == 1 and terms:
            time.sleep(1000)
    content = client_app.answer(message.content, context)
    if now > 0 and mischief in MISCHIEF:
        content = spoil(content, mischief)
    return Message(content, reply_to=message)


for register in (app.query, app.train, app.evaluate):
    register()(answer)
