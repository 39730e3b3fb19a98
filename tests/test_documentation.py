"""What the documentation shows is what the commands print, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest

from documented import PAGES, ROOT, commands, output

COMMANDS = [command for page in PAGES for command in commands(page)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{c.page.name}: {c.line[:60]}")
def test_a_documented_command_prints_what_the_page_shows(command):
    shown, real = command.printed, output(command)
    if shown.rstrip().endswith("..."):
        shown = shown.rstrip().removesuffix("...")
        real = real[: len(shown)]
    assert real == shown


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
