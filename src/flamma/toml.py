"""Reading TOML from untrusted files: bounded in size and depth, never a traceback."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from flamma.errors import ConfigError
from flamma.files import read_text
from flamma.names import printable

MOST_TOML_BYTES = 1 << 20
"""The largest file of settings that is read; real ones have a few thousand bytes."""

MOST_TOML_DEPTH = 16
"""How deep tables and lists may be nested; a suite needs five."""

MOST_REASON = 200
"""The most characters of a parser's reason in a message."""

STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:\\.|[^\\])*?"""'
    r"|'''.*?'''"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|\#[^\n]*",
    re.DOTALL,
)
DEEP_KEY = re.compile(rf"(?:\.[\w \t-]*+){{{MOST_TOML_DEPTH}}}")


def read_toml(path: Path, regular: bool = False) -> dict[str, Any]:
    """Return the tables of a TOML file; with ``regular`` nothing but a regular file is read.

    Raises
    ------
    InputFileError
        If the file cannot be read.
    ConfigError
        If it is not TOML, or larger or deeper than any file of settings is.
    """
    text = read_text(path, MOST_TOML_BYTES, regular)
    return parse_toml(text, printable(str(path), MOST_REASON))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Return the tables of a TOML text; ``name`` is what it is called in messages.

    Raises
    ------
    ConfigError
        As :func:`read_toml`.

    Examples
    --------
    >>> parse_toml("rounds = 3", "the configuration")
    {'rounds': 3}
    >>> parse_toml("rounds = [[[[[[[[[[[[[[[[[[", "the configuration")
    Traceback (most recent call last):
    ...
    flamma.errors.ConfigError: the configuration is nested more than 16 deep: write flatter tables.
    """
    if len(text.encode(errors="replace")) > MOST_TOML_BYTES:
        raise ConfigError(f"{name} has more than {MOST_TOML_BYTES >> 20} MB: shorten it.")
    if _is_deep(text):  # before parsing, which takes the square of the depth
        raise ConfigError(
            f"{name} is nested more than {MOST_TOML_DEPTH} deep: write flatter tables."
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are ValueErrors
        reason = printable(str(error).rstrip("."), MOST_REASON)
        raise ConfigError(f"{name} is not valid TOML: {reason}.") from error


def _is_deep(text: str) -> bool:
    """Return whether brackets are nested deep, or a key has very many parts."""
    bare = STRINGS_AND_COMMENTS.sub("s", text)
    return max(_depths(bare), default=0) > MOST_TOML_DEPTH or bool(DEEP_KEY.search(bare))


def _depths(bare: str) -> Iterator[int]:
    steps = {"[": 1, "{": 1, "]": -1, "}": -1}
    return accumulate(steps[c] for c in re.findall(r"[\[\]{}]", bare))
