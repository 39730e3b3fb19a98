"""Progress on what takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
PATIENCE = 2.0


def progress(items: Sequence[Item], doing: str) -> Iterator[Item]:
    """Yield the items; after two seconds say on standard error how far it is, and how long more.

    On a terminal one line is kept up to date; elsewhere a line is written every ten seconds.
    """
    terminal = sys.stderr.isatty()
    start = last = time.monotonic()
    shown = False
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - start > PATIENCE and now - last > (0.2 if terminal else 10.0):
            left = (now - start) / done * (len(items) - done) if done else float("nan")
            text = f"{doing}: {done} of {len(items)}, {left:.0f} s left"
            print(
                f"\r{text}\x1b[K" if terminal else text,
                end="" if terminal else "\n",
                file=sys.stderr,
                flush=True,
            )
            last, shown = now, True
        yield item
    if shown and terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
