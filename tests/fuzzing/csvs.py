"""Random and damaged files of clients through ``flamma game solve --clients``."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from fuzzing.oracle import NUMBERS, TEXTS, command, repeat

HEADERS = ("name,contribution,cost", "cost,contribution", " contribution , cost ", "contribution")
RULES = (
    [],
    ["--continuous"],
    ["--epochs", "0:inf", "--continuous"],
    ["--epochs", "1:1000000", "--continuous"],
    ["--decay-start", "0.5", "--rounds", "50"],
    ["--price", "1e50"],
    ["--json"],
)


def fuzz(seed: int, seconds: float) -> int:
    """Try files for some time and return how many."""
    with tempfile.TemporaryDirectory() as folder:
        return repeat(seed, seconds, lambda rng: _attempt(rng, Path(folder) / "clients.csv"))


def _attempt(rng: random.Random, path: Path) -> None:
    content = _table(rng).encode(errors="surrogatepass")
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(content) + 1)
            content = content[:place] + rng.randbytes(rng.randint(0, 3)) + content[place + 1 :]
    path.write_bytes(content)
    command(["game", "solve", "--clients", str(path), *rng.choice(RULES)])


def _table(rng: random.Random) -> str:
    usable = rng.random() < 0.5
    rows = [rng.choice(HEADERS[:2] if usable else HEADERS)]
    for _ in range(rng.choice([0, 1, 2, 5, 50])):
        share, cost = str(rng.random()), f"{10 ** rng.uniform(-8, 3):g}"
        if not usable or rng.random() < 0.02:
            share, cost = rng.choice([share, *NUMBERS]), rng.choice([cost, *NUMBERS])
        cells = {"name": json.dumps(rng.choice(TEXTS)), "contribution": share, "cost": cost}
        rows.append(",".join(cells.get(name.strip(), "") for name in rows[0].split(",")))
    return rng.choice(["\n", "\r\n", "\r"]).join(rows)
