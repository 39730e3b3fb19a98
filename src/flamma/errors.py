"""The errors a user can cause: one sentence each, saying what is wrong and what to do."""


class FlammaError(ValueError):
    """Something the user gave cannot be used; the message says what and how to mend it."""


class GameError(FlammaError):
    """The numbers given do not describe a game, or not a play of it."""


class InputFileError(FlammaError):
    """A file the user named is missing, unreadable or not in the expected form."""


class MissingExtraError(FlammaError):
    """A feature needs an optional package that is not installed."""


class DataError(FlammaError):
    """Data cannot be had, are damaged, or cannot be split as asked."""


class ConfigError(FlammaError):
    """A configuration has an unknown key, a wrong type or a value that cannot work."""


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
