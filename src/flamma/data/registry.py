"""Things by name: ours, and those that other packages register through entry points."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from flamma.errors import DataError

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
        Our own, in the order in which they are listed.
    """

    def __init__(self, kind: str, group: str, entries: Mapping[str, Entry]) -> None:
        self.kind = kind
        self.group = group
        self._ours = dict(entries)

    def __iter__(self) -> Iterator[str]:
        others = sorted(name for name in self._theirs() if name not in self._ours)
        return iter([*self._ours, *others])

    def __getitem__(self, name: str) -> Entry:
        if name in self._ours:
            return self._ours[name]
        theirs = self._theirs()
        if name in theirs:
            return self._loaded(theirs[name])
        raise DataError(self._unknown(name))

    def _theirs(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _loaded(self, point: EntryPoint) -> Entry:
        try:
            entry: Entry = point.load()
        except Exception as error:  # whatever another package may do
            raise DataError(
                f"the {self.kind} {point.name!r} of {point.value} cannot be loaded: {error}."
            ) from error
        return entry

    def _unknown(self, name: str) -> str:
        known = list(self)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}."
        return f"there is no {self.kind} named {name!r}; {hint}"
