"""What every input must come to: exit code 0, or 2 and one printable line, and no hang."""

from __future__ import annotations

import contextlib
import io
import json
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator

from flamma.cli import main

SECONDS_PER_INPUT = 20
"""An input that takes longer counts as a hang; all of them ask for little work."""

FEWEST = 20
"""Inputs that a fuzzer tries at least, so that a test does not go by the machine's speed."""

NUMBERS = (
    *("0", "1", "-1", "2", "10", "0.5", "1e-9", "1e308", "1e309", "-1e308", "5e-324", "inf", "nan"),
    *(
        "9" * 19,
        "9223372036854775807",
        "-9223372036854775808",
        "9" * 400,
        "9" * 5000,
        "1e999999999",
    ),
    *("0x" + "f" * 400, "1_000", "٣", "True", "1979-05-27", ""),
)
TEXTS = (
    *(
        "",
        "x",
        "flamma",
        "../x",
        "/dev/null/x",
        "a/b",
        "a\nb",
        "\x1b[2J",
        "\x7f",
        "\u202e",
        "γ" * 99,
    ),
    *(
        "x" * 5000,
        "%s%n",
        "{}",
        "'",
        '"',
        "\\",
        "[",
        "[" * 3000,
        "{a=" * 999,
        "a." * 5000,
        "\ufeff",
    ),
)


class Hang(BaseException):
    """An input took too long."""


@contextlib.contextmanager
def time_limit(seconds: int = SECONDS_PER_INPUT) -> Iterator[None]:
    """Raise :class:`Hang` if what is inside takes longer."""

    def ring(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def command(arguments: list[str], one_line: bool = True) -> int:
    """Run a command line as a user would, check what it came to, and return its exit code.

    ``one_line`` is whether a refusal is one line; a command of many things has one for each.
    """
    out, err = io.StringIO(), io.StringIO()
    try:
        with (
            time_limit(),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "'click\\.utils")  # of typer, which flwr imports
            try:
                code = main(arguments)
            except SystemExit as stop:  # how argparse ends
                code = stop.code
    except (Exception, Hang) as error:
        raise AssertionError(f"{shortened(arguments)}: {type(error).__name__} {error}") from error
    said = err.getvalue()
    assert code in (0, 2), f"{shortened(arguments)}: exit code {code}: {said}"
    if code == 2:
        lines = said.removesuffix("\n").split("\n")
        if {"-v", "--verbose"}.intersection(arguments):  # the traceback, then the sentence
            lines = lines[-1:]
        assert all(line and line.isprintable() for line in lines), f"{arguments}: {said!r}"
        assert len(lines) == 1 or not one_line, f"{shortened(arguments)}: {said!r}"
        printed = out.getvalue()
        assert not printed or "--json" in arguments, f"{shortened(arguments)}: printed something"
        if printed:  # what came of each part, for a script
            json.loads(printed)
    assert "\x1b" not in out.getvalue(), f"{shortened(arguments)}: printed a terminal escape"
    return code


def shortened(arguments: list[str]) -> str:
    """Return the command line for a message."""
    return " ".join(repr(a if len(a) < 200 else f"{a[:100]}...({len(a)})") for a in arguments)


def repeat(seed: int, seconds: float, attempt: Callable[[random.Random], None]) -> int:
    """Try inputs for some time, each from its own stream, and return how many they were.

    There are at least ``FEWEST``, however slow the machine is.
    """
    end = time.monotonic() + seconds
    count = 0
    while count < FEWEST or time.monotonic() < end:
        try:
            attempt(random.Random(f"{seed}/{count}"))
        except AssertionError as error:
            error.add_note(f"seed {seed}, input {count}")
            raise
        count += 1
    return count
