"""Every line of the threat model's table names a test that is there and is collected."""

from __future__ import annotations

import ast
import re

import pytest

from documented import ROOT

PAGE = ROOT / "docs" / "explanation" / "threat-model.md"
TABLE = re.compile(r"^\| Who \|.*?\n\n", re.MULTILINE | re.DOTALL)
MARK = "(slow)"


def lines():
    """Return the lines of the table as lists of cells, without its head."""
    rows = TABLE.search(PAGE.read_text(encoding="utf-8"))[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def named(cell):
    assert re.fullmatch(r"`[^`]+`", cell), f"{cell}: one test for every line"
    path, _, name = cell.strip("`").partition("::")
    return ROOT / path, name


def is_marked(node, mark):
    return any(mark in ast.unparse(decorator) for decorator in node.decorator_list)


@pytest.mark.parametrize("row", lines(), ids=lambda row: row[3].strip("`").rpartition("::")[2])
def test_a_line_names_a_test_that_is_collected(row):
    assert len(row) == 4
    who, _, may_not, cell = row
    assert who
    assert may_not
    path, name = named(cell)
    assert path.is_relative_to(ROOT / "tests")
    assert path.name.startswith("test_")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tests = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert tests
    if name:
        assert name in tests, f"{path.name} has no test {name}"
        assert not is_marked(tests[name], "skip"), "it may be left out"
        all_slow = "pytestmark = pytest.mark.slow" in ast.unparse(tree)
        slow = all_slow or is_marked(tests[name], "slow")
        assert slow == (MARK in may_not), "the page says which tests run only with -m slow"


def test_all_parties_of_the_page_are_in_the_table():
    found = {row[0] for row in lines()}
    assert {"outsider", "site", "lying site", "server", "thief of a site's key"} <= found
    assert len(lines()) > 30
