"""Names that users give: which are near to each other, which can be folders, how they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from flamma.errors import ConfigError

SITE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
"""What a site of a federation may be called: it is a folder and part of a host's name too."""

MOST_NAME_BYTES = 100
"""The longest name of a folder, in UTF-8; file systems allow 255 bytes with all that is added."""

SHORTEST_PART, SIMILAR, VERY_SIMILAR = 4, 0.65, 0.8
"""Letters of a part by which a name can be meant, and the similarity of names that begin alike,
and that of others."""

MOST_SHOWN = 200
"""The most characters of a value that a message quotes."""


def check_folder_name(name: str, what: str) -> str:
    """Return a name that is safe as one folder below another, or say what is wrong with it.

    Parameters
    ----------
    name : str
        What a user calls a dataset, a split, a strategy or a suite.
    what : str
        What the name is of, for the message.

    Raises
    ------
    ConfigError
        If the name is empty or long, begins with a dot, has a slash or cannot be printed.

    Examples
    --------
    >>> check_folder_name("flamma γ=0.5", "strategies")
    'flamma γ=0.5'
    >>> check_folder_name("../elsewhere", "strategies")
    Traceback (most recent call last):
    ...
    flamma.errors.ConfigError: strategies: '../elsewhere' cannot be the name of a folder: use up to
    100 letters, digits and signs, without slashes, and no dot or blank at an end.
    """
    usable = (
        name == name.strip(" .")
        and name.isprintable()
        and not set(name) & set("/\\")
        and 0 < len(name.encode()) <= MOST_NAME_BYTES
    )
    if usable:
        return name
    raise ConfigError(
        f"{what}: {quoted(name)} cannot be the name of a folder: use up to {MOST_NAME_BYTES} "
        f"letters, digits and signs, without slashes, and no dot or blank at an end."
    )


def quoted(value: Any) -> str:
    r"""Return a value for a message: on one line, and cut where it is long.

    Examples
    --------
    >>> quoted("a\nb"), quoted("a" * 1000).count("a")
    ("'a\\nb'", 196)
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes out no whole number of more than 4300 digits
        return "a number of thousands of digits"
    return printable(text, MOST_SHOWN)


def printable(text: str, most: int) -> str:
    r"""Return a text on one line, without what a terminal would obey, and cut where it is long.

    Examples
    --------
    >>> printable("a\x1b[2Jb\n c", 80)
    'a�[2Jb  c'
    """
    cut = f"{text[: most - 3]}..." if len(text) > most else text
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in cut).strip()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most like this one, or nothing if none is like it.

    Of names that begin differently only very similar ones, or parts of each other, are. Upper and
    lower case, hyphens and underscores do not matter.

    Examples
    --------
    >>> nearest("Fed_Avg", ["fedavg", "fedprox"])
    'fedavg'
    >>> nearest("x", ["fedavg", "fedprox"])
    ''
    """
    name = str(name)  # keys of a mapping from Python can be anything
    if len(name) > MOST_NAME_BYTES:  # comparing takes the square of the length
        return ""
    plain: dict[str, str] = {}
    for candidate in known:
        plain.setdefault(_plain(candidate), candidate)
    typed = _plain(name)
    found = [
        known for known in get_close_matches(typed, plain, n=5, cutoff=0.6) if _alike(typed, known)
    ]
    found = found or [known for known in plain if sorted(known) == sorted(typed)]
    return plain[found[0]] if found else ""


def _alike(typed: str, known: str) -> bool:
    """Return whether similar names may be meant for each other.

    The first letter is rarely wrong: "test" is no slip of "least".
    """
    part = min(len(typed), len(known)) >= SHORTEST_PART and (typed in known or known in typed)
    least = SIMILAR if typed[:1] == known[:1] else VERY_SIMILAR
    return part or SequenceMatcher(None, typed, known).ratio() >= least


def unknown(
    kind: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> str:
    """Return the sentence that says a name is not known and which are.

    ``elsewhere`` has names that are known in another place, and what to call them in a suggestion.

    Examples
    --------
    >>> unknown("strategy", "flama", ["fedavg", "flamma"])
    "unknown strategy 'flama': did you mean flamma? (known: fedavg, flamma)."
    >>> unknown("key", "alpah", ["rounds"], {"alpha": "data.alpha"})
    "unknown key 'alpah': did you mean data.alpha? (known: rounds)."
    """
    names = tuple(known)
    called = {**(elsewhere or {}), **{own: own for own in names}}
    guess = called.get(nearest(name, called))
    hint = f": did you mean {guess}?" if guess else ""
    return f"unknown {kind} {quoted(name)}{hint} (known: {', '.join(names) or 'none'})."


def _plain(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")
