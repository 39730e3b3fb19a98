"""Every name that is written as a text leads somewhere: entries, entry points, files, scripts."""

from __future__ import annotations

import ast
import glob
import importlib
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from documented import PAGES, ROOT

WRITTEN_BY_THE_READER = {"src/flamma/strategies/server_momentum.py"}
"""Files of worked examples."""

PLACE = re.compile(r"flamma(?:\.\w+)+:\w+")
DOTTED = re.compile(r"flamma(?:\.[a-z_]\w*){2,}")
RUN = re.compile(r"""-m["', ]+(flamma(?:\.\w+)+)""")
FROM = re.compile(r"\bfrom (flamma(?:\.\w+)*) import (\w*)")
MODULE = re.compile(r"(?:-m|\bimport) (flamma(?:\.\w+)*)")
# The table of old names is full of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*the old name goes with:DeprecationWarning")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CODE = [
    path
    for folder in ("src", "benchmarks", "examples", "docs", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name not in {Path(__file__).name, "test_moves.py"}
]


def texts(path):
    """Return all texts of a module that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    }


def imported(path):
    """Return what a module imports of ours, within functions too, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "flamma"}


def exists(dotted):
    """Return whether a dotted name is a module, or an attribute of one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        try:
            if find_spec(module) is None:
                continue
        except ModuleNotFoundError:
            continue
        found = importlib.import_module(module)
        for name in parts[end:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


IN_CODE = sorted({(path, text) for path in CODE for text in texts(path)})
PLACES = sorted(
    {text for _, text in IN_CODE if PLACE.fullmatch(text)}
    | set(PROJECT["project"]["scripts"].values())
)
DOTTED_NAMES = sorted(
    {text for _, text in IN_CODE if DOTTED.fullmatch(text)}
    | {name for path in CODE for name in RUN.findall(path.read_text(encoding="utf-8"))}
)


@pytest.mark.parametrize("place", PLACES)
def test_a_place_in_a_text_is_there(place):
    module, _, name = place.partition(":")
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", DOTTED_NAMES)
def test_a_dotted_name_in_a_text_is_there(name):
    assert exists(name)


def test_what_scripts_import_is_there():
    outside = [path for path in CODE if not path.is_relative_to(ROOT / "src")]
    named = {(path.name, name) for path in outside for name in imported(path)}
    assert len(named) > 500
    assert [(script, name) for script, name in sorted(named) if not exists(name)] == []


def test_lines_of_python_in_texts_workflows_and_the_makefile_import_what_is_there():
    files = [*WORKFLOWS, ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "pyproject.toml"]
    written = [path.read_text(encoding="utf-8") for path in files]
    assert any(FROM.search(text) for text in written), "cibuildwheel tries the lanes of a wheel"
    text = "\n".join([*written, *(text for _, text in IN_CODE)])
    named = {f"{module}.{name}".rstrip(".") for module, name in FROM.findall(text)}
    named |= {*MODULE.findall(text)} - {"flamma.nowhere"}
    assert [name for name in sorted(named) if not exists(name)] == []


def test_apps_of_flower_are_there():
    apps = [p for p in ROOT.glob("*/*/pyproject.toml") if "serverapp" in p.read_text("utf-8")]
    assert len(apps) == 2
    for path in apps:
        components = tomllib.loads(path.read_text("utf-8"))["tool"]["flwr"]["app"]["components"]
        for place in components.values():
            module, _, name = place.partition(":")
            file = path.parent.joinpath(*module.split(".")).with_suffix(".py")
            assert re.search(rf"^{name}\b.*=", file.read_text("utf-8"), re.MULTILINE), place


def test_the_places_are_those_of_the_registries():
    assert len(PLACES) > 50, len(PLACES)


def test_names_in_the_settings_of_tools_exist():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = {*re.findall(r"\bflamma(?:\.\w+)+", text)}
    assert {"flamma.game", "flamma.registry.Choice"} <= named
    assert [name for name in sorted(named) if not exists(name)] == []


def test_package_data_and_the_sources_of_the_extension_are_files():
    for pattern in PROJECT["tool"]["setuptools"]["package-data"]["flamma"]:
        assert glob.glob(str(ROOT / "src" / "flamma" / pattern)), pattern
    setup = texts(ROOT / "setup.py")
    [home] = [text for text in setup if text.startswith("src/")]
    assert {"kernels", "portable", "avx2", "avx512"} <= setup
    for name in ("kernels", "portable", "avx2", "avx512"):
        assert (ROOT / home / f"{name}.cpp").is_file()
    for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines():
        folder, *patterns = line.split()[1:]
        assert all(list((ROOT / folder).rglob(pattern)) for pattern in patterns), line


def test_files_that_workflows_the_makefile_and_commands_name_exist():
    files = [
        *WORKFLOWS,
        ROOT / "Makefile",
        ROOT / ".ci" / "run",
        ROOT / "pyproject.toml",
        ROOT / "CONTRIBUTING.md",
        *PAGES,
        *(path for path in CODE if path.is_relative_to(ROOT / "benchmarks")),
    ]
    own = re.compile(r"(?<![\w/.])(?:benchmarks|tests|docs|examples|src|\.ci)/[\w./-]+\.\w+")
    named = {(path, text) for path in files for text in own.findall(path.read_text("utf-8"))}
    named = {(path, text) for path, text in named if text not in WRITTEN_BY_THE_READER}
    missing = sorted(
        f"{path.name}: {text}" for path, text in named if not (ROOT / text.rstrip(".")).exists()
    )
    assert missing == []


def test_tables_of_code_in_the_documentation_name_modules_that_exist():
    named = {
        match[0].removesuffix("()")
        for path in [*PAGES, ROOT / "CONTRIBUTING.md"]
        for match in re.finditer(r"(?<=`)flamma(?:\.[a-z_]\w*){2,}(?=`)", path.read_text("utf-8"))
    }
    assert [name for name in sorted(named) if not exists(name)] == []
