"""A public name has one meaning in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import flamma

SOURCE = Path(flamma.__file__).parent
CONVENTIONAL = {"main", "app", "register", "EXAMPLES"}
"""What every command, every app of Flower's and every program is called."""


def defined_names(tree: ast.Module) -> set[str]:
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, ast.AnnAssign) else []
        for target in targets:
            names |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_no_public_name_is_defined_in_two_modules():
    places = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        for name in defined_names(ast.parse(file.read_text(encoding="utf-8"))):
            places[name].append(str(file.relative_to(SOURCE)))
    twice = {n: p for n, p in places.items() if len(p) > 1 and n not in CONVENTIONAL}
    assert not twice
