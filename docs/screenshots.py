"""Make the pictures of the report that the documentation shows.

``python docs/screenshots.py OUT/QUICK`` takes the directory of the default comparison (``flamma
compare --out OUT/QUICK``), which must have the bits of ``docs/results/quick.json``, and writes
``docs/screenshots/*.png`` with the SHA-256 of that file in each. It needs Chromium and the ``dev``
and ``report`` extras.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Browser, Page, sync_playwright

from flamma.experiments.comparison import read_published, repetition
from flamma.reports.document import write_report
from flamma.reports.live import LiveServer

PICTURES = Path(__file__).parent / "screenshots"
TABLE = Path(__file__).parent / "results" / "quick.json"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
RUN = Path("runs/digits/shards/flamma/seed-0")


def main(comparison: Path) -> None:
    """Make all pictures."""
    found = repetition(read_published(TABLE), read_published(comparison / "table.json"))
    if not found.same:
        sys.exit(f"{comparison} is not what {TABLE} has: {found.sentence}")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        pages = {
            "comparison": write_report(comparison, Path(folder, "comparison.html")),
            "run": write_report(comparison / RUN, Path(folder, "run.html")),
        }
        take(browser, pages["comparison"].as_uri(), "report-comparison", height=1500)
        take(browser, pages["run"].as_uri(), "report-run", height=1500, scheme="dark")
        take(browser, pages["run"].as_uri(), "report-explorer", at="#explorer", height=1010)
        take(browser, pages["comparison"].as_uri(), "report-phone", width=390, height=1500)
        with LiveServer(halved(comparison / RUN, Path(folder, "run"))) as server:
            take(browser, server.url, "report-live", height=760)
        browser.close()


def take(
    browser: Browser,
    address: str,
    name: str,
    width: int = 1240,
    height: int = 900,
    scheme: str = "light",
    at: str = "",
) -> None:
    """Take one picture, and make it small: 256 colours are enough for charts."""
    page: Page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]")
    if at:
        page.eval_on_selector(at, "node => node.scrollIntoView()")
    page.wait_for_timeout(500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    PICTURES.mkdir(exist_ok=True)
    file = PICTURES / f"{name}.png"
    picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        file, optimize=True, pnginfo=source()
    )
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
    page.close()


def source() -> PngInfo:
    """Return what a picture says of itself: the hash of the table that it shows."""
    info = PngInfo()
    info.add_text("table", hashlib.sha256(TABLE.read_bytes()).hexdigest())
    return info


def halved(run: Path, copy: Path) -> Path:
    """Return a copy of a run as it was half way."""
    shutil.copytree(run, copy)
    lines = (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / "rounds.jsonl").write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    return copy


if __name__ == "__main__":
    main(Path(sys.argv[1]))
