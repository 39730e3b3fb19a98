"""Damaged lines of ``rounds.jsonl``: a record or a refusal, and nothing else happens."""

from __future__ import annotations

import random

from flamma.errors import RecordError
from flamma.records import Evaluation, GameRecord, OfferRecord, Outcomes, RoundRecord
from fuzzing.oracle import repeat

RECORD = RoundRecord(
    *(3, (1, 4), OfferRecord(0.25, (0.5, 0.75)), Outcomes((), {1: "late"}, (0, 3), 3)),
    evaluation=Evaluation({"accuracy": 71.5, "loss": None}),
    game=GameRecord(2.5, (0.1, 1.0), (1.0, 10.0), True, (0.1, 0.2), (0.5, 0.3), "distance"),
)
LINE = RECORD.to_json().encode()
PIECES = (b"null", b"NaN", b"1e999", b"-1", b"{}", b"[]", b'"', b"\\u0000", b"\xff", b"[" * 2000)


def fuzz(seed: int, seconds: float) -> int:
    """Try lines for some time and return how many."""
    return repeat(seed, seconds, _attempt)


def _attempt(rng: random.Random) -> None:
    line = bytearray(LINE)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(line))
        end = start + rng.randint(0, 12)
        line[start:end] = rng.choice([bytes([rng.randrange(256)]), rng.choice(PIECES), b""])
    if bytes(line) == LINE:
        return
    try:
        record = RoundRecord.from_json(bytes(line))
    except RecordError:
        return
    assert RoundRecord.from_json(record.to_json()) == record
