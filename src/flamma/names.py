"""What to say when a name is not known: the nearest one that is, and all there are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

SITE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
"""What a site of a federation may be called: it is a folder and part of a host's name too."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most like this one, or nothing if none is like it.

    Upper and lower case, hyphens and underscores do not matter.

    Examples
    --------
    >>> nearest("Fed_Avg", ["fedavg", "fedprox"])
    'fedavg'
    >>> nearest("x", ["fedavg", "fedprox"])
    ''
    """
    plain: dict[str, str] = {}
    for candidate in known:
        plain.setdefault(_plain(candidate), candidate)
    found = get_close_matches(_plain(name), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the sentence that says a name is not known and which are.

    Examples
    --------
    >>> unknown("strategy", "flama", ["fedavg", "flamma"])
    "unknown strategy 'flama': did you mean flamma? (known: fedavg, flamma)."
    """
    names = tuple(known)
    guess = nearest(name, names)
    hint = f": did you mean {guess}?" if guess else ""
    return f"unknown {kind} {name!r}{hint} (known: {', '.join(names) or 'none'})."


def _plain(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")
