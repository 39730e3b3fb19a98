"""Registries: entries by name, from FLamma and, through entry points, from other packages."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from flamma.errors import ConfigError, FlammaError, Key
from flamma.extras import extra_of, missing_extra
from flamma.io import nearest, parse_toml, quoted, unknown

# Options: the parameters of a function, or the fields of a dataclass, as the keys of a TOML
# table.
#
# Declaring a parameter declares the option: its type is checked, its default stands in one place,
# and its help is the parameter's entry in the docstring.


@dataclass(frozen=True)
class Between:
    """Bounds of a number, or of each number of a list, in the type of an option.

    Parameters
    ----------
    low, high : float
        The bounds; without ``high`` any larger finite number is accepted.
    without : str
        ``"low"``, ``"high"`` or ``"both"``, if they are not accepted themselves.
    infinite : bool
        Whether Python may give an infinite number; a file cannot.

    Examples
    --------
    >>> from typing import Annotated
    >>> share = Annotated[float, Between(0, 1, without="high")]
    >>> describe_type(share), convert(0.5, share, "training.momentum")
    ('a number, in [0, 1)', 0.5)
    """

    low: float
    high: float = math.inf
    without: Literal["", "low", "high", "both"] = ""
    infinite: bool = False

    def __contains__(self, value: float) -> bool:
        if not (self.low <= value <= self.high and (self.infinite or math.isfinite(value))):
            return False
        low, high = self.without in ("low", "both"), self.without in ("high", "both")
        return not ((low and value == self.low) or (high and value == self.high))

    def __str__(self) -> str:
        low, high = (f"{b:,}" if isinstance(b, int) else f"{b:g}" for b in (self.low, self.high))
        if self.low == -math.inf:
            return "finite"
        if self.high == math.inf:
            return f"{'above' if self.without else 'at least'} {low}"
        first = "(" if self.without in ("low", "both") else "["
        return f"in {first}{low}, {high}{')' if self.without in ('high', 'both') else ']'}"


def at_least(low: float) -> Between:
    """Return the bounds of a number that is at least this."""
    return Between(low)


def above(low: float) -> Between:
    """Return the bounds of a number that is above this."""
    return Between(low, without="low")


_PARAMETER = r"^(\S[^\n:]*?) ?:[^\n]*\n((?:[ \t]+[^\n]*\n?|\n)+)"
"""A parameter of a NumPy docstring: its names, and the indented lines below them."""

_BARE_KEY = re.compile("[A-Za-z0-9_-]+")
"""A key that TOML takes without quotes."""

_WHOLE_LIMIT = 2**63
"""Whole numbers are smaller than this, so that arrays and compiled code can hold them."""


@dataclass(frozen=True)
class Option:
    """One option of an entry: its name, type, default and help.

    ``field`` is what a dataclass calls it where that is not its name: a field has it as
    ``field(metadata={"option": name})``.
    """

    name: str
    annotation: Any
    default: Any
    help: str = ""
    field: str = ""


def _readers(annotation: Any) -> tuple[Any, ...]:
    """Return what stands beside a type: a registry, or bounds."""
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def _check_bounds(
    value: Any, annotation: Any, where: Key, error: type[FlammaError] = ConfigError
) -> None:
    """Refuse what is no alternative of an option, or out of its bounds; ``where`` is its key."""
    if get_origin(annotation) is Literal and value not in get_args(annotation):
        must = _alternatives(get_args(annotation))
        raise error(where, f" must be {must}, not {quoted(value)}.")
    for bounds in _readers(annotation):
        for number in value if isinstance(value, list | tuple) else [value]:
            is_number = isinstance(bounds, Between) and isinstance(number, int | float)
            if not is_number or number in bounds:
                continue
            words = [a for part in get_args(get_args(annotation)[0]) for a in get_args(part)]
            must = f"{'be' if bounds.high == math.inf else 'lie'} {bounds}"
            must = f"be {_alternatives(tuple(words))}, or {must}" if words else must
            shown = f"{number:g}" if isinstance(number, float) else number
            raise error(where, f" must {must}, not {shown}.")


class CheckedOptions:
    """A dataclass whose options keep to their bounds, however it is made.

    ``within`` is the table that they are keys of, with a dot, and ``error`` what is raised.
    """

    _within: ClassVar[str] = ""
    _error: ClassVar[type[FlammaError]] = ConfigError

    def __init_subclass__(
        cls, within: str | None = None, error: type[FlammaError] | None = None, **rest: Any
    ) -> None:
        super().__init_subclass__(**rest)
        cls._within = cls._within if within is None else within
        cls._error = error or cls._error

    def __post_init__(self) -> None:
        """Refuse options that are out of their bounds."""
        for option in options_of(type(self)).values():
            where = Key(f"{self._within}{option.name}")
            _check_bounds(getattr(self, option.field), option.annotation, where, self._error)


def options_of(entry: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a function or a dataclass: what has a default, or only a keyword.

    Parameters without a default are what the caller provides, such as the samples to split.

    Examples
    --------
    >>> def shards(pool, *, per_client: int = 2, uneven: float = 0.0): ...
    >>> [(option.name, option.default) for option in options_of(shards).values()]
    [('per_client', 2), ('uneven', 0.0)]
    """
    return dict(_options_of(entry))


@lru_cache(maxsize=1024)  # a message about a misspelt option reads those of every entry
def _options_of(entry: Callable[..., Any]) -> dict[str, Option]:
    if inspect.isclass(entry) and dataclasses.is_dataclass(entry):
        hints, helps = get_type_hints(entry, include_extras=True), _documented(entry)
        return {
            name: Option(name, hints[f.name], _default(f), helps.get(f.name, ""), f.name)
            for f in dataclasses.fields(entry)
            for name in (f.metadata.get("option", f.name),)
            if f.init and _default(f) is not inspect._empty
        }
    parameters = inspect.signature(entry).parameters.values()
    found = {
        p.name: p.default
        for p in parameters
        if p.kind is p.KEYWORD_ONLY or p.default is not p.empty
    }
    hints = _hints(entry, found)
    helps = _documented(entry)
    return {
        name: Option(name, hints.get(name, Any), default, helps.get(name, ""))
        for name, default in found.items()
    }


def _takes_anything(entry: Callable[..., Any]) -> bool:
    """Return whether a function takes options that it does not name (``**options``)."""
    if inspect.isclass(entry) and dataclasses.is_dataclass(entry):
        return False
    parameters = inspect.signature(entry).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def read_options(
    entry: Callable[..., Any], table: Mapping[str, Any], where: str = ""
) -> dict[str, Any]:
    """Return all options of an entry: those of the table converted, the others at their default.

    Raises
    ------
    ConfigError
        If a key is no option (the nearest one is named), or a value is of the wrong type.
    """
    known = options_of(entry)
    loose = _takes_anything(entry)
    chosen = {name: option.default for name, option in known.items()}
    for key, value in table.items():
        if key in known:
            chosen[key] = convert(value, known[key].annotation, f"{where}{key}")
        elif loose:
            chosen[key] = value
        else:
            raise _unknown_key(key, known, where)
    for name, value in chosen.items():
        if value is inspect._empty:
            raise ConfigError(Key(f"{where}{name}"), " is missing.")
    return chosen


def from_table(
    kind: type, table: Any, where: str = "", known: Iterable[str] | None = None
) -> dict[str, Any]:
    """Return the fields of a dataclass that a table gives, each converted to its type.

    ``where`` goes before a key in messages, such as ``"training."`` or ``"host.toml: "``.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where.rstrip('.: ') or 'this'} must be a table, not {quoted(table)}.")
    hints = get_type_hints(kind, include_extras=True)
    names = [f.name for f in dataclasses.fields(kind) if known is None or f.name in known]
    options = {}
    for key, value in table.items():
        if key not in names:
            raise _unknown_key(key, names, where)
        options[key] = convert(value, hints[key], f"{where}{key}")
    return options


def _unknown_key(
    key: str, known: Iterable[str], where: str = "", others: Mapping[str, str] | None = None
) -> ConfigError:
    """Return what says that a table has no such key, and which key was probably meant.

    ``others`` are keys that are known in another place, with what is said of each.
    """
    names, place = tuple(known), where.rstrip(".: ")
    said = {**(others or {}), **dict.fromkeys(names, "")}
    guess = nearest(key, said)
    within = where if where.endswith(".") else ""  # else it is a file
    hint = (": did you mean ", Key(guess, within), f"{said[guess]}?") if guess else ()
    kind = f"unknown key in {place} {quoted(key)}" if place else f"unknown key {quoted(key)}"
    listed = f" (known: {', '.join(names) or 'none'})."
    return ConfigError(kind, *hint, listed, nearest=f"{within}{guess}" if guess else "")


def convert(value: Any, annotation: Any, where: str) -> Any:
    """Return a TOML value as the annotated type, or say what was expected."""
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        if isinstance(value, annotation):
            return value
        return annotation(**from_table(annotation, value, f"{where}."))
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for reader in arguments[1:]:
            if not isinstance(reader, Between):  # a registry, or what reads as one does
                return reader.choose(value, where)
        converted = convert(value, arguments[0], where)
        _check_bounds(converted, annotation, Key(where))
        return converted
    if origin in (Union, types.UnionType):
        return _one_of(value, arguments, where)
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(Key(where), f" must be {_alternatives(arguments)}, not {quoted(value)}.")
    if origin is tuple:
        return _sequence(value, arguments, where)
    if annotation is float and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= sys.float_info.max:  # false for NaN; whole numbers can be larger
            return float(value)
        raise ConfigError(Key(where), f" must be a finite number, not {quoted(value)}.")
    if annotation is int and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < _WHOLE_LIMIT:
            return value
        raise ConfigError(Key(where), f" must be a whole number below 2^63, not {quoted(value)}.")
    if annotation in (str, bool) and isinstance(value, annotation):
        return value
    if annotation is Any or (origin is not None and isinstance(value, Mapping)):
        return value
    raise ConfigError(Key(where), f" must be {_name(annotation)}, not {quoted(value)}.")


def parse_value(text: str) -> Any:
    """Return what a value on the command line means: TOML, or else the text itself.

    Examples
    --------
    >>> [parse_value(text) for text in ("0.5", "[1, 5]", "top", "true")]
    [0.5, [1, 5], 'top', True]
    """
    try:
        return parse_toml(f"value = {text}", text)["value"]
    except ConfigError:
        return text


def to_toml(tables: Mapping[str, Any]) -> str:
    """Return nested tables as TOML; None is left out, since TOML has no such value.

    Examples
    --------
    >>> print(to_toml({"rounds": 3, "strategy": {"name": "flamma", "price": None}}))
    rounds = 3
    <BLANKLINE>
    [strategy]
    name = "flamma"
    """
    plain = {k: v for k, v in tables.items() if not isinstance(v, Mapping)}
    lines = _toml_lines(plain)
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{_toml_key(name)}]", *_toml_lines(table)]
    return "\n".join(lines)


def _toml_lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_toml_key(k)} = {toml_value(v)}" for k, v in table.items() if v is not None]


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def toml_value(value: Any) -> str:
    """Return one value as TOML; a mapping as an inline table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a TOML basic string
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(v) for v in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(_toml_lines(value))}}}"
    return repr(value)


def describe_type(annotation: Any) -> str:
    """Return what a value of this type is called in messages and in the documentation."""
    bounds = [str(one) for one in _readers(annotation) if isinstance(one, Between)]
    if bounds:
        return ", ".join([describe_type(get_args(annotation)[0]), *bounds])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [a for a in get_args(annotation) if a is not type(None)]
        return " or ".join(_name(part) for part in parts)
    return _name(annotation)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect._empty


def _hints(function: Callable[..., Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the types of some parameters; the others may name what is not imported."""
    target = inspect.unwrap(function)
    annotations = getattr(target, "__annotations__", {})
    some = types.SimpleNamespace(
        __annotations__={name: annotations[name] for name in names if name in annotations}
    )
    return get_type_hints(some, getattr(target, "__globals__", {}), include_extras=True)


def _documented(entry: Callable[..., Any]) -> dict[str, str]:
    """Return the help of each parameter in a NumPy docstring, those of base classes included."""
    helps: dict[str, str] = {}
    for owner in reversed(inspect.getmro(entry)) if inspect.isclass(entry) else (entry,):
        text = inspect.cleandoc(owner.__doc__ or "")
        found = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", text, re.S | re.M)
        if found is None:
            continue
        for names, words in re.findall(_PARAMETER, found[1], re.M):
            helps |= {name.strip(): " ".join(words.split()) for name in names.split(",")}
    return helps


def _one_of(value: Any, arguments: tuple[Any, ...], where: str) -> Any:
    for argument in arguments:
        if argument is type(None) and value is None:
            return None
        try:
            return convert(value, argument, where)
        except ConfigError:
            continue
    lists = [argument for argument in arguments if get_origin(argument) is tuple]
    if lists and isinstance(value, list | tuple):  # what is wrong with it as a list says more
        return _sequence(value, get_args(lists[0]), where)
    wanted = " or ".join(_name(a) for a in arguments if a is not type(None))
    raise ConfigError(Key(where), f" must be {wanted}, not {quoted(value)}.")


def _sequence(value: Any, arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(Key(where), f" must be a list, not {quoted(value)}.")
    if arguments[-1] is Ellipsis:
        arguments = arguments[:1] * len(value)
    if len(value) != len(arguments):
        raise ConfigError(Key(where), f" must have {len(arguments)} entries, not {len(value)}.")
    return tuple(convert(v, a, where) for v, a in zip(value, arguments, strict=True))


def _alternatives(values: tuple[Any, ...]) -> str:
    names = [str(value) for value in values]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _name(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        named = not all(isinstance(one, Between) for one in _readers(annotation))
        return "a name or a table" if named else _name(get_args(annotation)[0])
    if getattr(annotation, "__name__", "") == "Choice":
        return "a name"
    plain = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if get_origin(annotation) is Literal:
        return _alternatives(get_args(annotation))
    if get_origin(annotation) is tuple:
        return "a list"
    return plain.get(annotation, "a table")


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
    retired : mapping
        What to use in place of entries that are gone.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        entries: Mapping[str, Entry | str],
        retired: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.group = group
        self._ours = dict(entries)
        self._retired = retired or {}
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
        raise ConfigError(self.unknown(name))

    def unknown(self, name: str) -> str:
        """Return the sentence that says a name is not known, or what to use in its place."""
        if name in self._retired:
            return f"the {self.kind} {quoted(name)} was retired: {self._retired[name]}."
        return unknown(self.kind, name, self)

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
            raise ConfigError(Key(where), f" must be a name or a table, not {quoted(given)}.")
        table = dict(given)
        name = convert(table.pop(key, default or None), str, f"{where}.{key}")
        entry = cast(Callable[..., Any], self[name])
        own = options_of(entry)
        if table.keys() - own:
            others = {
                option: f", an option of {', '.join(owners)}"
                for option, owners in self.option_owners().items()
            }
            if shared:
                table = {k: v for k, v in table.items() if k in own or k not in others}
            strange = [] if _takes_anything(entry) else [k for k in table if k not in own]
            if strange:
                raise _unknown_key(strange[0], (*beside, key, *own), f"{where}.", others)
        return Choice(name, read_options(entry, table, f"{where}."))

    def bind(self, choice: Choice) -> Callable[..., Any]:
        """Return the chosen entry as a function that has its options already."""
        entry = cast(Callable[..., Any], self[choice.name])
        fields = {name: option.field or name for name, option in options_of(entry).items()}
        given = {fields.get(name, name): value for name, value in choice.options.items()}
        return partial(entry, **given)

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
