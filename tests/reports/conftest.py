"""A real browser for the pages: Debian's Chromium, cut off from every network but loopback."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    found = next((path for name in NAMES if (path := shutil.which(name))), None)
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
    def open_page(target, **options):
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
        assert troubles == []
        assert [url for url in asked if not is_local(url)] == []

    return open_page


def is_local(url):
    parts = urlsplit(url)
    return parts.scheme in ("file", "data", "blob") or parts.hostname in ("127.0.0.1", "localhost")
