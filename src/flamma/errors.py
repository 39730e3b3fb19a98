"""The errors a user can cause: one sentence each, saying what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self


class Key(str):
    """A setting within the sentence of an error, by its key, such as ``data.clients``.

    ``within`` is the table whose keys the sentence is about, which goes without saying in a file.
    """

    def __new__(cls, key: str, within: str = "") -> Self:
        """Return the text that stands for the setting in a file."""
        made = super().__new__(cls, key)
        made.full = f"{within}{key}"
        return made

    full: str


class FlammaError(ValueError):
    """Something the user gave cannot be used; the message says what and how to mend it.

    A sentence that names settings is given in parts, each setting as a :class:`Key`. Whoever shows
    the error names them: by key, as in a file, or as flags or keyword arguments.

    Examples
    --------
    >>> error = FlammaError(Key("data.clients"), " is 0: raise it.")
    >>> str(error), error.sentence(lambda key: f"--{key.partition('.')[2]}")
    ('data.clients is 0: raise it.', '--clients is 0: raise it.')
    """

    name_of: Callable[[str], str] | None = None

    def sentence(self, name_of: Callable[[str], str] | None = None) -> str:
        """Return the message, with its settings named by a function of their keys, or by key."""
        return "".join(
            name_of(part.full) if name_of and isinstance(part, Key) else str(part)
            for part in self.args
        )

    def __str__(self) -> str:
        return self.sentence(self.name_of)


@contextmanager
def naming_settings(name_of: Callable[[str], str]) -> Iterator[None]:
    """Let errors from within name settings by a function of their keys."""
    try:
        yield
    except FlammaError as error:
        error.name_of = name_of
        raise


class GameError(FlammaError):
    """The numbers given do not describe a game, or not a play of it."""


class InputFileError(FlammaError):
    """A file the user named is missing, unreadable or not in the expected form."""


class MissingExtraError(FlammaError):
    """A feature needs an optional package that is not installed."""


class DataError(FlammaError):
    """Data cannot be had, are damaged, or cannot be split as asked."""


class ConfigError(FlammaError):
    """A configuration has an unknown key, a wrong type or a value that cannot work.

    ``setting`` is the key of the setting that is wrong, where it is one, and ``nearest`` the one
    that was probably meant by an unknown one.
    """

    def __init__(self, *sentence: str, nearest: str = "") -> None:
        super().__init__(*sentence)
        self.setting = next((part.full for part in sentence if isinstance(part, Key)), "")
        self.nearest = nearest


class RunError(FlammaError):
    """A run directory cannot be written, read or continued."""


class EmptyRunError(RunError):
    """A run came to its end, but nobody trained: in no round, or not any more."""


class DivergedError(RunError):
    """A run came to its end, but its weights or most answers of its clients are not finite."""


class RecordError(RunError):
    """A line of ``rounds.jsonl`` cannot be used; the message says why, as the end of a sentence.

    ``newer`` and ``older`` are whether a version of FLamma wrote it that cannot be read.
    """

    def __init__(self, why: str, newer: bool = False, older: bool = False) -> None:
        super().__init__(why)
        self.newer, self.older = newer, older


class StrategyError(FlammaError):
    """A strategy was given what it cannot work with."""


class DeployError(FlammaError):
    """A deployed federation cannot be made, started, reached or stopped as asked."""
