"""Shows that a change only moves code: compares every function and class of two revisions.

    python tests/moves.py BASE [--names FILE]      # BASE against the working tree
    python tests/moves.py BASE --head REVISION

``FILE`` is TOML. ``[modules]`` maps old modules to new ones, ``[names]`` maps ``old.module:Name``
to ``new.module:Name``. A name without a line is looked up in the module that its module is mapped
to, then in the one other module that has it. Bodies are compared with their names mapped, imports
and texts such as ``"module:Name"`` included, and every name in them must lead to the definition
that it led to. Docstrings count; comments, the order of imports and an import of the module itself
do not. Statements of a module that define nothing are compared like bodies.

Prints what changed, is missing or is new, and last how many of each; exit code 1 if a body changed
or is missing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
SOURCE = "src"
PLACE = re.compile(r"\bflamma(?:\.\w+)+(?::\w+)?")


@dataclass(frozen=True)
class Code:
    """The top-level definitions of a revision, and what its modules import, both by place."""

    bodies: dict[str, ast.stmt] = field(default_factory=dict)
    imports: dict[str, dict[str, str]] = field(default_factory=dict)


def sources(revision: str | None) -> Iterator[tuple[str, str]]:
    """Return the modules of a revision, or of the working tree: their names and texts."""
    if revision is None:
        for path in sorted((ROOT / SOURCE).rglob("*.py")):
            yield module_name(path.relative_to(ROOT).as_posix()), path.read_text("utf-8")
        return
    listed = git("ls-tree", "-r", "--name-only", revision, SOURCE).splitlines()
    for path in listed:
        if path.endswith(".py"):
            yield module_name(path), git("show", f"{revision}:{path}")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True)
    return done.stdout.decode("utf-8")


def module_name(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read(revision: str | None) -> Code:
    """Read a revision: ``module:name`` is the place of a definition."""
    return without_modules(code(sources(revision)))


def code(texts: Iterable[tuple[str, str]]) -> Code:
    found = Code()
    for module, text in texts:
        tree = ast.parse(text)
        for node in tree.body:
            for name in defined(node):
                found.bodies[f"{module}:{name}"] = node
        found.imports[module] = dict(imported(tree))
    return found


def without_modules(found: Code) -> Code:
    """Write ``module.name`` as ``name`` where the module is one of ours that was imported whole."""
    for module, imports in found.imports.items():
        whole = {
            alias: name
            for alias, place in imports.items()
            if (name := place.strip(":").replace(":", ".")) in found.imports
        }
        for place, node in found.bodies.items():
            if whole and place.partition(":")[0] == module:
                found.bodies[place] = Unqualified(found, module, whole).visit(node)
    return found


class Unqualified(ast.NodeTransformer):
    def __init__(self, found: Code, module: str, whole: Mapping[str, str]) -> None:
        self.found, self.module, self.whole = found, module, whole

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        inner = node.value
        if not is_name(inner) or inner.id not in self.whole:
            return self.generic_visit(node)
        place = f"{self.whole[inner.id]}:{node.attr}"
        taken = f"{self.module}:{node.attr}" in self.found.bodies
        if taken or self.found.imports[self.module].setdefault(node.attr, place) != place:
            return node
        return ast.Name(node.attr, node.ctx)


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a module imports, and their places; that of a module has no name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((a.asname or a.name, f"{node.module}:{a.name}") for a in node.names)
        elif isinstance(node, ast.Import):
            for a in node.names:
                yield (a.asname, f"{a.name}:") if a.asname else (a.name.partition(".")[0],) * 2


def meaning(known: Code, module: str, name: str) -> str:
    """Return the place that a name in a module leads to, or the name if it is not of the module."""
    place, seen = f"{module}:{name}", set[str]()
    while place not in known.bodies and place not in seen:
        seen.add(place)
        module, _, inner = place.partition(":")
        place = known.imports.get(module, {}).get(inner, place)
    if place == f"{module}:{name}" and len(seen) == 1 and place not in known.bodies:
        return name
    return f"{whole}:" if (whole := place.replace(":", ".")) in known.imports else place


def free_names(node: ast.stmt) -> set[str]:
    """Return the names that a body uses and does not bind itself."""
    inner = list(ast.walk(node))
    bound = {n.id for n in inner if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {n.arg for n in inner if isinstance(n, ast.arg)}
    bound |= {
        a.asname or a.name
        for n in inner
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for a in n.names
    }
    return {n.id for n in inner if isinstance(n, ast.Name)} - bound


def defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [n.id for target in node.targets for n in ast.walk(target) if is_name(n)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return []
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return []
    return [ast.unparse(node).partition("\n")[0]]


def is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


class Renamed(ast.NodeTransformer):
    """Writes a body of the old revision with the names of the new one."""

    def __init__(
        self, modules: Mapping[str, str], names: Mapping[str, str], words: Mapping[str, str]
    ) -> None:
        self.modules = modules
        self.names = names
        self.words = words

    def module(self, name: str) -> str:
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            if (head := ".".join(parts[:end])) in self.modules:
                return ".".join([self.modules[head], *parts[end:]])
        return name

    def place(self, found: re.Match[str]) -> str:
        module, colon, name = found[0].partition(":")
        return self.names.get(found[0], f"{self.module(module)}{colon}{name}")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.words.get(node.id, node.id)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        node.module = self.module(node.module or "")
        for alias in node.names:
            alias.name = self.words.get(alias.name, alias.name)
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        for alias in node.names:
            alias.name = self.module(alias.name)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self.words.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self.words.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            text = PLACE.sub(self.place, node.value)
            node.value = re.sub(r"\w+", lambda m: self.words.get(m[0], m[0]), text)
        return node


def shape(node: ast.stmt, module: str) -> tuple[str, list[str]]:
    """Return a body without its imports, and what it imports from other modules than its own."""
    imported = []

    class WithoutImports(ast.NodeTransformer):
        def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
            if node.module != module:
                imported.extend(f"{node.module}:{a.name} as {a.asname}" for a in node.names)

    bare = WithoutImports().visit(copy.deepcopy(node))
    return ast.dump(bare, include_attributes=False), sorted(imported)


def compared(
    old: Code, new: Code, modules: Mapping[str, str], names: Mapping[str, str]
) -> tuple[list[str], list[str], list[str]]:
    """Return which bodies changed, which are missing and which are new."""
    renamed = {place: goal.rpartition(":")[2] for place, goal in names.items()}
    by_name = defaultdict(list)
    for place in new.bodies:
        by_name[place.partition(":")[2]].append(place)
    mappers, goals, missing = {}, {}, []
    for place in old.bodies:
        module, _, name = place.partition(":")
        local = {known: renamed[at] for known, at in old.imports[module].items() if at in renamed}
        local |= {
            at.partition(":")[2]: to for at, to in renamed.items() if at.startswith(f"{module}:")
        }
        mapper = mappers[place] = Renamed(modules, names, local)
        goal = names.get(place, f"{mapper.module(module)}:{name}")
        if goal not in new.bodies and len(elsewhere := by_name[name]) == 1:
            goal = elsewhere[0]
        if goal in new.bodies:
            goals[place] = goal
        else:
            missing.append(place)

    def same(place: str) -> bool:
        node, mapper = old.bodies[place], mappers[place]
        here, there = place.partition(":")[0], goals[place].partition(":")[0]
        moved = mapper.visit(copy.deepcopy(node))
        if shape(moved, there) != shape(new.bodies[goals[place]], there):
            return False
        for name in free_names(node):
            before = meaning(old, here, name)
            if before in missing:
                continue
            if ":" in before:
                after = meaning(new, there, mapper.words.get(name, name))
                if after != goals.get(before, PLACE.sub(mapper.place, before)):
                    return False
            elif meaning(new, there, name) != before:
                return False
        return True

    changed = [f"{place} -> {goal}" for place, goal in goals.items() if not same(place)]
    used = set(goals.values())
    return changed, missing, sorted(new.bodies.keys() - used)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base")
    parser.add_argument("--head", help="another revision instead of the working tree")
    parser.add_argument("--names", type=Path, help="TOML with the tables modules and names")
    options = parser.parse_args()
    table = tomllib.loads(options.names.read_text("utf-8")) if options.names else {}
    changed, missing, new = compared(
        read(options.base),
        read(options.head),
        table.get("modules", {}),
        table.get("names", {}),
    )
    for what, places in (("changed", changed), ("missing", missing), ("new", new)):
        for place in places:
            print(f"{what}: {place}")
    print(f"{len(changed)} bodies changed, {len(missing)} missing, {len(new)} new")
    return bool(changed or missing)


if __name__ == "__main__":
    sys.exit(main())
