"""The names in registries, without importing what registers them.

Importing all registries takes longer than a shell or a reader of ``--help`` should wait. Every
registry is one call in the source with a literal dictionary, so its names can be read from there;
those of other packages are entry points.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import flamma

SOURCES = {
    "strategies": "strategies/__init__.py",
    "datasets": "data/datasets.py",
    "splits": "data/splits.py",
    "models": "models/registry.py",
    "engines": "experiments/engine.py",
    "trainers": "training/choose.py",
    "contribution measures": "contributions/registry.py",
}
"""The file of each registry, by what its entries are called."""


@cache
def registered_names(kind: str) -> tuple[str, ...]:
    """Return the names of a registry in the order in which it lists them.

    Examples
    --------
    >>> registered_names("engines")[:2]
    ('local', 'flower')
    """
    from importlib.metadata import entry_points

    try:
        group, ours = _declared(Path(flamma.__file__).parent / SOURCES[kind])
    except (OSError, ValueError, SyntaxError):  # a package without its source, or a computed name
        return _imported(kind)
    theirs = sorted(point.name for point in entry_points(group=group))
    return tuple(dict.fromkeys([*ours, *theirs]))


def _declared(file: Path) -> tuple[str, list[str]]:
    """Return the group of entry points and the names of the registry that a file declares."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.AnnAssign(value=ast.Call(ast.Name("Registry"), [_, group, ast.Dict(keys)])):
                names = [ast.literal_eval(key) for key in keys if key is not None]
                if len(names) == len(keys):
                    return str(ast.literal_eval(group)), names
    raise ValueError(f"{file} declares no registry by a dictionary of names.")


def _imported(kind: str) -> tuple[str, ...]:
    from flamma.experiments.parts import PARTS

    [part] = [part for part in PARTS if part.name == kind]
    return tuple(part.registry)
