"""JSON Schemas of configurations and suites, for editors, from the declarations of the options."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from flamma.clients.behaviours import BEHAVIOURS
from flamma.clients.costs import COSTS
from flamma.data.splits import SPLITS
from flamma.errors import FlammaError
from flamma.experiments.config import (
    OWN,
    ConfigTables,
    DataConfig,
    WeightsConfig,
)
from flamma.experiments.engine import ENGINES
from flamma.experiments.parts import PARTS
from flamma.experiments.suite import Suite
from flamma.models import MODELS
from flamma.registry import Between, Choice, Option, Registry, options_of
from flamma.strategies import STRATEGIES

Schema = dict[str, Any]
"""A JSON Schema, or a part of one."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean"}


def config_schema() -> Schema:
    """Return the schema of a configuration file.

    Examples
    --------
    >>> config_schema()["properties"]["rounds"]
    {'type': 'integer', 'minimum': 1, 'default': 30, 'description': 'How many rounds.'}
    """
    return _document("A run of FLamma", _config(whole=True), {})


def suite_schema() -> Schema:
    """Return the schema of the file of a suite."""
    part = {"$ref": "#/$defs/part"}
    named = {"type": "object", "additionalProperties": part}
    properties = _properties(options_of(Suite).values()) | {
        "extends": {"type": "string", "description": "The suite that this one is put over."},
        "run": part,
        "overrides": named,
        "settings": {"anyOf": [named, {"type": "array", "items": {"type": "string"}}]},
    }
    del properties["flags"]
    return _document("A suite of FLamma", _table(properties), {"part": _config(whole=False)})


def _document(title: str, schema: Schema, definitions: Schema) -> Schema:
    """Return a schema with a title and what it refers to: parts, and the choices of registries."""
    registries = {part.registry.kind: part.registry for part in PARTS}
    named = re.findall(r"#/\$defs/([a-z ]+)", json.dumps([schema, definitions]))
    choices = {
        kind: _choice(registries[kind], "name", "")
        for kind in sorted({*named})
        if kind in registries
    }
    return {"$schema": _DIALECT, "title": title, **schema, "$defs": definitions | choices}


def _config(whole: bool) -> Schema:
    """Return the schema of a configuration, or of a part of one, which need not say all names.

    In a part, the options of a strategy are those of all strategies.
    """
    data = [option for option in options_of(DataConfig).values() if option.name != "split"]
    split = {"split": {"enum": list(SPLITS), "default": DataConfig.split.name}}
    weights = _properties(options_of(WeightsConfig).values())
    clients = {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "integer"}}]}
    known: Schema = {"name": {"enum": list(BEHAVIOURS)}, "clients": clients}
    behaviour = _table(known | _all_options(BEHAVIOURS)) | {"required": ["clients"]}
    tables: Schema = {
        "data": _table(_all_options(SPLITS) | split | _properties(data)),
        "model": _choice(MODELS, "name", ConfigTables.model, whole, weights, [OWN]),
        "strategy": _choice(STRATEGIES, "name", ConfigTables.strategy, whole),
        "costs": _choice(COSTS, "kind", ConfigTables.costs, whole=False),
        "engine": _choice(ENGINES, "name", ConfigTables.engine, whole=False),
        "behaviours": {"type": "object", "additionalProperties": behaviour},
    }
    plain = [option for option in options_of(ConfigTables).values() if option.name not in tables]
    return _table(_properties(plain) | tables)


def _table(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _properties(options: Iterable[Option]) -> dict[str, Schema]:
    """Return the schema of each option, with its default and its help."""
    found = {}
    for option in options:
        schema = dict(_type(option.annotation))
        default = option.default
        if isinstance(default, Choice):
            default = default.as_value()
        if isinstance(default, str | int | float | list | tuple) and default != ():
            schema["default"] = list(default) if isinstance(default, tuple) else default
        if option.help:
            schema["description"] = option.help.replace("``", "`")
        found[option.name] = schema
    return found


def _entries(registry: Registry[Any]) -> dict[str, dict[str, Option]]:
    """Return the options of the entries of a registry that can be loaded."""
    found = {}
    for name in registry:
        try:
            found[name] = options_of(registry[name])
        except FlammaError:
            found[name] = {}
    return found


def _all_options(registry: Registry[Any]) -> dict[str, Schema]:
    """Return the options of all entries: where they differ in type, any of the types will do."""
    found: dict[str, list[Schema]] = {}
    for options in _entries(registry).values():
        for name, schema in _properties(options.values()).items():
            alike = found.setdefault(name, [])
            alike += [] if schema in alike else [schema]
    return {name: s[0] if len(s) == 1 else {"anyOf": s} for name, s in found.items()}


def _choice(
    registry: Registry[Any],
    key: str,
    default: str,
    whole: bool = True,
    beside: Mapping[str, Schema] | None = None,
    names: Collection[str] = (),
) -> Schema:
    """Return the schema of a name, or of a table with a name and options of what it names."""
    every = [*registry, *names]
    entries = _entries(registry)
    named = {key: {"enum": every}, **(beside or {})}
    if not whole:
        table = _table(_all_options(registry) | named)
        return {"anyOf": [{"enum": every}, table]}
    cases = []
    for name, options in entries.items():
        chosen: Schema = {"properties": {key: {"const": name}}}
        if name != default:
            chosen["required"] = [key]
        cases.append({"if": chosen, "then": _table(_properties(options.values()) | named)})
    table = {"type": "object", "allOf": cases}
    return {"anyOf": [{"enum": every}, table]}


def _type(annotation: Any) -> Schema:
    """Return the schema of a type of an option."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        parts = [_type(part) for part in arguments if part is not type(None)]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return {"type": "array", "items": _type(arguments[0])}
        count = len(arguments)
        parts = [_type(part) for part in arguments]
        return {"type": "array", "prefixItems": parts, "minItems": count, "maxItems": count}
    if annotation in _PLAIN:
        return {"type": _PLAIN[annotation]}
    if annotation is Any:
        return {}
    if isinstance(annotation, type) and options_of(annotation):
        return _table(_properties(options_of(annotation).values()))
    return {"type": "object"}


def _annotated(kind: Any, readers: Iterable[Any]) -> Schema:
    for reader in readers:
        if isinstance(reader, Registry):
            return {"$ref": f"#/$defs/{reader.kind}"}
        if not isinstance(reader, Between):  # reads a name, a table, or a list of them
            return {"type": ["string", "object", "array"]}
    schema = _type(kind)
    for bounds in readers:
        # Those of a number have no effect on other types.
        low = "exclusiveMinimum" if bounds.without in ("low", "both") else "minimum"
        high = "exclusiveMaximum" if bounds.without in ("high", "both") else "maximum"
        both = {low: bounds.low, high: bounds.high}
        numbers = schema.get("prefixItems", [schema])
        for part in numbers:
            part |= {key: bound for key, bound in both.items() if math.isfinite(bound)}
    return schema


SCHEMAS = {"run": config_schema, "suite": suite_schema}
"""What has a schema, by its name."""
