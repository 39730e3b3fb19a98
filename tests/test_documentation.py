"""What the documentation shows is what the commands print, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest

from documented import COMMENT, PAGES, ROOT, perform, session, steps

QUICK = [step for page in PAGES for step in steps(page) if step.quick]
SESSIONS = [page for page in PAGES if any(not step.file for step in steps(page))]


@pytest.mark.parametrize("command", QUICK, ids=lambda c: f"{c.page.name}: {c.line[:60]}")
def test_a_documented_command_prints_what_the_page_shows(command, tmp_path):
    for step in steps(command.page):
        if step.file:
            perform(step, tmp_path)
    real, code = perform(command, tmp_path)
    assert command.holds(real, code), real


@pytest.mark.docs
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_followed_word_for_word(page, tmp_path):
    with session(page, tmp_path) as done:
        for step, real, code in done:
            assert step.file or step.holds(real, code), f"$ {step.line}\n{real}\nexit code {code}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_escapes_the_session(page):
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"^```(?:sh|bash|shell)$", text, re.MULTILINE), "use console and $"
    comments = re.findall(r"^.*<!-- docs:.*$", text, re.MULTILINE)
    assert all(COMMENT.fullmatch(comment) for comment in comments), comments
    assert all(reason for verb, reason in COMMENT.findall(text) if verb == "skip")


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md"))],
    ids=lambda p: p.name,
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            file, _, heading = target.partition("#")
            found = page.parent / file if file else page
            assert found.exists(), target
            assert not heading or heading in headings(found), target


def headings(page):
    """Return the headings of a page as GitHub writes them in links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}
