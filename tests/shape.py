"""The shape of the package in numbers, held to ``shape.toml``: none may rise.

python tests/shape.py            # print the numbers
python tests/shape.py --write    # lower those in shape.toml that have fallen
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flamma"
FILE = Path(__file__).with_suffix(".toml")
RECORDS = ("dataclass", "NamedTuple", "TypedDict")
LIMITS = re.compile(r"_?(MOST|MAX|LARGEST|SMALLEST|LONGEST|FEWEST)_")


def shape() -> dict[str, float]:
    """Return every number by its name."""
    found: Counter[str] = Counter()
    widest = longest = imports = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        found["modules"] += 1
        found["lines"] += text.count("\n")
        longest = max(longest, text.count("\n"))
        words = Counter(re.findall(r"\b_\w+", text))
        for node in ast.walk(tree):
            match node:
                case ast.Import() | ast.ImportFrom():
                    imports += (node.end_lineno or 0) - node.lineno + 1
                case ast.Name(id="Any") | ast.Attribute(attr="Any"):
                    found["uses of Any"] += 1
                case ast.ClassDef() if is_record(node):
                    found["dataclasses, named tuples, typed dicts"] += 1
                    widest = max(widest, sum(map(is_field, node.body)))
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    widest = max(widest, parameters(node.args))
                    private = node.name.startswith("_") and not node.name.startswith("__")
                    found["private helpers used once"] += private and words[node.name] == 2
        for name in (name for node in tree.body for name in defined(node)):
            found["public top-level names"] += not name.startswith("_")
            found["limit constants"] += bool(LIMITS.match(name))
    return {
        **found,
        "import lines, percent": round(100 * imports / found["lines"], 1),
        "widest signature or record": widest,
        "longest import chain": longest_chain(),
        "strategy modules of FLamma-plus": of_flamma_plus(),
    }


def is_record(node: ast.ClassDef) -> bool:
    named = [ast.unparse(part) for part in (*node.decorator_list, *node.bases)]
    return any(kind in name for name in named for kind in RECORDS)


def is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)


def parameters(given: ast.arguments) -> int:
    named = len(given.posonlyargs + given.args + given.kwonlyargs)
    return named + bool(given.vararg) + bool(given.kwarg)


def defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


@cache
def imports() -> dict[str, set[str]]:
    """Return which modules of ours each module imports when it is loaded."""
    trees = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        named = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {place if place in trees else node.module for place in inner}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        found[name] = named & trees.keys() - {name}
    return found


def longest_chain() -> int:
    """Return how many modules the longest chain of imports has."""
    lengths: dict[str, int] = {}

    def below(module: str, above: tuple[str, ...] = ()) -> int:
        if module not in lengths:
            others = imports()[module] - {*above}
            found = 1 + max((below(o, (*above, module)) for o in others), default=0)
            if not above:
                lengths[module] = found
            return found
        return lengths[module]

    for module in sorted(imports(), key=lambda name: len(reached(name))):
        below(module)
    return max(lengths.values())


def reached(module: str) -> set[str]:
    """Return all modules that loading a module loads, itself included."""
    found, todo = set(), [module]
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += imports()[name]
    return found


def of_flamma_plus() -> int:
    """Return how many modules of strategies FLamma-plus is spread over, its own included."""
    all_of_it = reached("flamma.strategies.flamma_plus")
    return sum(name.startswith("flamma.strategies.") for name in all_of_it)


def main() -> None:
    found = shape()
    kept = tomllib.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if "--write" in sys.argv:
        lowered = {name: min(value, kept.get(name, value)) for name, value in found.items()}
        lines = [f'"{name}" = {value}' for name, value in lowered.items()]
        FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
