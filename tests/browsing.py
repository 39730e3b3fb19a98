"""What the tests in a browser share: which one, how it is started, and waiting for a page."""

from __future__ import annotations

import shutil
import time
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]


def find_browser():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def is_local(url):
    parts = urlsplit(url)
    return parts.scheme in ("file", "data", "blob") or parts.hostname in ("127.0.0.1", "localhost")


def until(page, expression, seconds=20):
    """Wait until something is true in the page, whose policy forbids the usual waiting by eval."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never came true: {expression}"
        page.wait_for_timeout(50)
