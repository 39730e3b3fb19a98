"""Things by name: ours, one line each, and those other packages bring through entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from flamma.errors import ConfigError
from flamma.names import unknown

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """A mapping from names to entries that other packages can add to.

    Parameters
    ----------
    kind : str
        What an entry is, for messages: ``"dataset"``.
    group : str
        The entry-point group of other packages, such as ``flamma.datasets``. Names of ours win
        over theirs, so that a name always means the same thing.
    entries : mapping
        Our own, in the order in which they are listed: the entry itself, or ``module:name``,
        which is imported when it is asked for.
    """

    def __init__(self, kind: str, group: str, entries: Mapping[str, Entry | str]) -> None:
        self.kind = kind
        self.group = group
        self._ours = dict(entries)

    def __iter__(self) -> Iterator[str]:
        others = sorted(name for name in self._theirs() if name not in self._ours)
        return iter([*self._ours, *others])

    def __getitem__(self, name: str) -> Entry:
        if name in self._ours:
            found = self._ours[name]
            if not isinstance(found, str):
                return found
            module, _, attribute = found.partition(":")
            return cast(Entry, getattr(import_module(module), attribute))
        theirs = self._theirs()
        if name in theirs:
            return self._loaded(theirs[name])
        raise ConfigError(unknown(self.kind, name, self))

    def add(self, name: str, entry: Entry) -> None:
        """Add an entry of your own for as long as this process lives."""
        self._ours[name] = entry

    def _theirs(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _loaded(self, point: EntryPoint) -> Entry:
        try:
            entry: Entry = point.load()
        except Exception as error:  # whatever another package may do
            raise ConfigError(
                f"the {self.kind} {point.name!r} of {point.value} cannot be loaded: {error}."
            ) from error
        return entry
