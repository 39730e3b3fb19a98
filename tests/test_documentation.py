"""What the documentation shows is what the commands print, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest

from documented import PAGES, ROOT, matches, perform, steps

QUICK = [step for page in PAGES for step in steps(page) if step.quick]
SESSIONS = [page for page in PAGES if any(not step.file for step in steps(page))]


@pytest.mark.parametrize("command", QUICK, ids=lambda c: f"{c.page.name}: {c.line[:60]}")
def test_a_documented_command_prints_what_the_page_shows(command, tmp_path):
    for step in steps(command.page):
        if step.file:
            perform(step, tmp_path)
    real, _ = perform(command, tmp_path)
    assert matches(command.printed, real), real


@pytest.mark.docs
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_a_page_can_be_followed_word_for_word(page, tmp_path):
    for step in steps(page):
        real, code = perform(step, tmp_path)
        shown = step.printed
        if shown and not step.file:
            assert matches(shown, real), f"$ {step.line}\n{real}"
        else:
            assert code == 0, f"$ {step.line}\n{real}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
