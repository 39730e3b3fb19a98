"""``flamma list``: what there is to choose from, and the options of each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flamma.cli.parser import Parser
from flamma.errors import ConfigError
from flamma.names import unknown

if TYPE_CHECKING:
    from flamma.options import Option

    Lines = Mapping[str, Mapping[str, str]]
    Options = Mapping[tuple[str, str], Mapping[str, Option]]


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma list`` to the command line."""
    parser = commands.add_parser(
        "list",
        help="strategies, datasets, models, splits, metrics and the other parts of a run",
        description="What a run can be made of, with one line each; other packages' included.",
    )
    parser.add_argument(
        "kind", nargs="?", default="", metavar="KIND", help="only these: strategies, datasets, ..."
    )
    parser.add_argument("--options", action="store_true", help="show the options of each, too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run_list)


def run_list(options: argparse.Namespace) -> None:
    """Run ``flamma list``."""
    from flamma.experiments.parts import PARTS, own_options
    from flamma.experiments.suite import suite_names

    found = {part.name: part.lines() for part in PARTS}
    found["suites"] = dict.fromkeys(suite_names(), "for flamma compare")
    if options.kind:
        kind = _known(options.kind, list(found))
        found = {kind: found[kind]}
    keys = {
        (part.name, name): own_options(entry) for part in PARTS for name, entry in part.entries()
    }
    if options.json:
        import json

        print(json.dumps(_detailed(found, keys) if options.options else found, indent=2))
    else:
        print(_text(found, keys if options.options else {}))


def _known(word: str, kinds: list[str]) -> str:
    """Return the kind that a word is or begins, such as ``contribution``."""
    begun = [kind for kind in kinds if kind.startswith(word.casefold())]
    if len(begun) != 1:
        raise ConfigError(unknown("kind", word, kinds))
    return begun[0]


def _detailed(found: Lines, keys: Options) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what ``--options --json`` prints."""
    from flamma.strategies import family_of

    detailed: dict[str, dict[str, dict[str, Any]]] = {
        kind: {
            name: {"about": line, "options": _json_options(keys.get((kind, name), {}))}
            for name, line in lines.items()
        }
        for kind, lines in found.items()
    }
    for name, told in detailed.get("strategies", {}).items():
        told["family"] = family_of(name)
    return detailed


def _text(found: Lines, keys: Options) -> str:
    """Return a block for every kind, and for every family of strategies."""
    from flamma.experiments.parts import PARTS
    from flamma.strategies import FAMILIES

    width = max(len(name) for lines in found.values() for name in lines)
    groups = [(part.name, *group) for part in PARTS for group in part.groups().items()]
    groups.append(("suites", "", list(found.get("suites", {}))))
    blocks = []
    for kind, family, names in groups:
        if kind not in found:
            continue
        block = [f"{kind}: {family} ({FAMILIES[family]})" if family else kind]
        for name in names:
            block.append(f"  {name.ljust(width)}  {found[kind][name]}")
            block += _option_lines(keys.get((kind, name), {}), width)
        blocks.append("\n".join(block))
    return "\n\n".join(blocks)


def _option_lines(options: Mapping[str, Option], width: int) -> list[str]:
    from flamma.experiments.parts import option_row

    rows = [option_row(option) for option in options.values()]
    return [
        f"  {''.ljust(width)}    {name} = {default}: {text.replace('``', '')}"
        for name, _, default, text in rows
    ]


def _json_options(options: Mapping[str, Option]) -> dict[str, dict[str, str]]:
    from flamma.experiments.parts import option_row

    rows = [option_row(option) for option in options.values()]
    return {name: {"type": kind, "default": d, "help": h} for name, kind, d, h in rows}
