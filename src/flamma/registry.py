"""Things by name: ours, one line each, and those other packages bring through entry points."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from flamma.errors import ConfigError, FlammaError
from flamma.extras import extra_of, missing_extra
from flamma.names import quoted, unknown
from flamma.options import convert, options_of, read_options, takes_anything

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Choice:
    """An entry of a registry by name, with all of its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_value(self) -> str | dict[str, Any]:
        """Return it as a configuration writes it: the name alone where there are no options."""
        return {"name": self.name, **self.options} if self.options else self.name


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
        self._added: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._ours, *self._added, *sorted(self._theirs())]))

    def __getitem__(self, name: str) -> Entry:
        if name in self._added:
            return self._added[name]
        if name in self._ours:
            found = self._ours[name]
            if not isinstance(found, str):
                return found
            module, _, attribute = found.partition(":")
            try:
                return cast(Entry, getattr(import_module(module), attribute))
            except ModuleNotFoundError as error:
                if error.name and extra_of(error.name):
                    raise missing_extra(f"the {self.kind} {name}", error.name) from error
                raise
        theirs = self._theirs()
        if name in theirs:
            return self._loaded(theirs[name])
        raise ConfigError(unknown(self.kind, name, self))

    def add(self, name: str, entry: Entry) -> None:
        """Add an entry of your own for as long as this process lives.

        A name that was added before gets the new entry.

        Raises
        ------
        ConfigError
            If the name is taken by a built-in entry or by one of an installed package.
        """
        if name in self._ours or name in self._theirs():
            raise ConfigError(f"there is a {self.kind} {quoted(name)} already: use another name.")
        self._added[name] = entry

    def discard(self, name: str) -> None:
        """Remove an entry that :meth:`add` has added; built-in ones stay."""
        self._added.pop(name, None)

    def choose(
        self,
        given: Any,
        where: str,
        key: str = "name",
        default: str = "",
        shared: bool = False,
        beside: Iterable[str] = (),
    ) -> Choice:
        """Return the entry that a name or a table chooses, with all of its options.

        Parameters
        ----------
        given : str or mapping
            A name, or a table with the name and options.
        where : str
            What the value is called in messages, such as ``"model"``.
        key : str
            The key of the name in the table.
        default : str
            The name where the table has none.
        shared : bool
            Whether the table may have options of other entries, which then do nothing: one table
            can serve several entries, as in a suite that compares splits.
        beside : iterable of str
            Further keys that the table can have beside these, for the suggestion in a message.

        Raises
        ------
        ConfigError
            If there is no such entry or option, or a value cannot be used.
        """
        if isinstance(given, Choice):
            given = {key: given.name, **given.options}
        if isinstance(given, str):
            given = {key: given}
        if not isinstance(given, Mapping):
            raise ConfigError(f"{where} must be a name or a table, not {quoted(given)}.")
        table = dict(given)
        name = convert(table.pop(key, default or None), str, f"{where}.{key}")
        entry = cast(Callable[..., Any], self[name])
        own = options_of(entry)
        if table.keys() - own:
            others = {
                option: f"{option}, an option of {', '.join(owners)}"
                for option, owners in self.option_owners().items()
            }
            if shared:
                table = {k: v for k, v in table.items() if k in own or k not in others}
            strange = [] if takes_anything(entry) else [k for k in table if k not in own]
            if strange:
                known = (*beside, key, *own)
                raise ConfigError(unknown(f"key in {where}", strange[0], known, others))
        return Choice(name, read_options(entry, table, f"{where}."))

    def bind(self, choice: Choice) -> Callable[..., Any]:
        """Return the chosen entry as a function that has its options already."""
        return partial(cast(Callable[..., Any], self[choice.name]), **choice.options)

    def option_owners(self) -> dict[str, list[str]]:
        """Return every option of every entry, with the names of the entries that have it."""
        owners: dict[str, list[str]] = {}
        for name in self:
            try:
                options = options_of(cast(Callable[..., Any], self[name]))
            except FlammaError:  # it needs a missing extra, or another package broke it
                continue
            for option in options:
                owners.setdefault(option, []).append(name)
        return owners

    def _theirs(self) -> dict[str, EntryPoint]:
        return _points(self.group, tuple(sys.path))

    def _loaded(self, point: EntryPoint) -> Entry:
        try:
            entry: Entry = point.load()
        except Exception as error:  # whatever another package may do
            raise ConfigError(
                f"the {self.kind} {point.name!r} of {point.value} cannot be loaded: {error}."
            ) from error
        return entry


@cache
def _points(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points of a group; finding them reads all packages on the path."""
    return {point.name: point for point in entry_points(group=group)}
