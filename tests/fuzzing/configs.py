"""Random and damaged configurations: each is a run's, or refused in one sentence."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from flamma.errors import FlammaError
from flamma.experiments.config import make_config, with_settings
from flamma.experiments.parts import PARTS
from flamma.experiments.suite import read_suite
from flamma.io import parse_toml, read_toml
from fuzzing.oracle import NUMBERS, TEXTS, repeat, time_limit

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 10, 0.5, -0.5, 1e308, -1e308, 5e-324, 2**63, 2**63 - 1),
    *(10**400, 16**9000, float("inf"), float("nan"), [], {}, [1, 10], [10, 1], [1e308, 1e308]),
    *([[]], {"name": "flamma"}, {"name": 1}, {"": {}}, [None], {"clients": 0.5}, b"", object()),
    *TEXTS,
)
NAMES = tuple(name for part in PARTS for name in part.registry)


def fuzz(seed: int, seconds: float) -> int:
    """Try configurations for some time and return how many."""
    with tempfile.TemporaryDirectory() as folder:
        return repeat(seed, seconds, lambda rng: _attempt(rng, Path(folder) / "config.toml"))


def _attempt(rng: random.Random, path: Path) -> None:
    if rng.random() < 0.5:
        _make(_random_tables(rng))
        return
    text = make_config({"strategy": rng.choice(["flamma", "flamma-plus", "fedavg"])}).as_toml()
    path.write_bytes(_damaged(rng, text.encode()))
    try:
        with time_limit():
            tables = read_toml(path)
    except FlammaError as error:
        _check(error)
        return
    _make(tables)
    _make(tables, read_suite)


def _random_tables(rng: random.Random) -> dict[str, Any]:
    tables = make_config({}).as_tables()
    keys = list(tables)
    keys += [f"{n}.{k}" for n, table in tables.items() if isinstance(table, dict) for k in table]
    keys += [f"{name}.name" for name in tables] + list(TEXTS)
    settings = {rng.choice(keys): rng.choice(VALUES + NAMES) for _ in range(rng.randint(1, 4))}
    try:
        return with_settings({} if rng.random() < 0.5 else tables, settings)
    except FlammaError as error:
        _check(error)
        return {}


def _damaged(rng: random.Random, content: bytes) -> bytes:
    parts = [
        rng.choice(NUMBERS).encode(),
        rng.choice(TEXTS).encode(),
        rng.randbytes(3),
        b"[[",
        b"=",
    ]
    for _ in range(rng.randint(1, 5)):
        place, length = rng.randrange(len(content) + 1), rng.choice([0, 1, 1, 9, 200])
        content = content[:place] + rng.choice(parts) + content[place + length :]
    return content


def _make(tables: Any, make: Any = make_config) -> None:
    """Make a configuration of tables; what is accepted reads back as it was written."""
    try:
        with time_limit():
            made = make(tables)
            if make is make_config:
                again = make_config(parse_toml(made.as_toml(), "it"))
                assert again.as_tables() == made.as_tables(), "it does not read back"
    except FlammaError as error:
        _check(error)
    except AssertionError:
        raise
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__} {error} from {_short(tables)}") from error


def _check(error: FlammaError) -> None:
    text = str(error)
    assert 0 < len(text) < 20_000, f"a message of {len(text)} characters"
    assert text.endswith("."), text


def _short(tables: Any) -> str:
    try:
        return repr(tables)[:2000]
    except ValueError:
        return "tables with numbers of thousands of digits"
