"""A real browser for the pages: Debian's Chromium, cut off from every network but loopback."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from browsing import FLAGS, find_browser, is_local


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    found = find_browser()
    if found is None:
        pytest.fail("these tests need Chromium: make test installs it, or apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def opened(browser):
    """Open pages in the browser; what they say, ask for and stumble over is checked at the end."""

    @contextmanager
    def open_page(target, lost=(), **options):
        options = {"viewport": {"width": 1280, "height": 900}, "accept_downloads": True} | options
        context = browser.new_context(**options)
        page = context.new_page()
        troubles, asked = [], []
        page.on("console", lambda m: troubles.append(m.text) if m.type != "log" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        address = target if isinstance(target, str) else target.resolve().as_uri()
        page.goto(address)
        page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        yield page
        context.close()
        assert [text for text in troubles if not any(word in text for word in lost)] == []
        assert [url for url in asked if not is_local(url)] == []

    return open_page
