"""Every package that is imported is declared, with the extra that brings it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import flamma
from flamma.extras import PURPOSES

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "google": "protobuf",
    "mlflow": "mlflow-skinny",
    "yaml": "pyyaml",
}
"""Packages that are imported by another name than they are installed by."""

EXAMPLES = {"digits_app"}
TESTERS_HAVE = {"pytest"}  # flamma.testing is for those who run tests of their own


def imported(folder):
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.partition(".")[0])
    ours = {path.stem for path in folder.rglob("*") if path.suffix == ".py" or path.is_dir()}
    other = found - set(sys.stdlib_module_names) - ours - {"flamma"} - EXAMPLES
    return {DISTRIBUTIONS.get(name, name).lower() for name in other}


def declared(*extras):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][e] for e in extras)]
    return {re.match(r"[\w-]+", line)[0].lower() for lines in lists for line in lines}


def test_the_package_declares_what_it_imports():
    found = imported(ROOT / "src") - TESTERS_HAVE
    assert found <= declared(*PURPOSES)


def test_the_tests_find_what_they_import_after_make_test_has_installed():
    assert imported(ROOT / "tests") <= declared("report", "dev")


def test_dev_brings_what_the_extras_of_a_user_bring():
    assert declared(*PURPOSES) <= declared("report", "dev")


def test_the_version_is_said_once_and_the_citation_and_the_changelog_have_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "flamma.__version__"}
    assert f"\nversion: {flamma.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    latest = re.search(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest[1] == flamma.__version__
