"""The documentation as a site: complete, searchable from the files, and loading nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import PurePosixPath

import pytest

from browsing import FLAGS, find_browser, is_local
from documented import PAGES, ROOT


@pytest.fixture(scope="module")
def hooks():
    spec = spec_from_file_location("site_hooks", ROOT / "docs/site_hooks.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_of(navigation):
    return [page for section in navigation for pages in section.values() for page in pages]


def test_every_page_is_in_the_navigation_once(hooks):
    contents = (ROOT / "docs/README.md").read_text()
    listed = [file for page in pages_of(hooks.navigation(contents)) for file in page.values()]
    written = {str(f.relative_to(ROOT / "docs")) for f in (ROOT / "docs").rglob("*.md")}
    assert written <= {*listed}
    assert len({*listed}) == len(listed)
    sections = [title for section in hooks.navigation(contents) for title in section]
    assert sections == [
        *("Start", "Tutorial", "How-to", "Reference", "Explanation", "Results", "API", "Project")
    ]


def test_every_package_has_a_page_of_the_reference(hooks):
    found = hooks.api_pages()
    packages = {file.parent.name for file in (ROOT / "src/flamma").glob("*/__init__.py")}
    assert {*found} == {"flamma", *packages}
    assert "::: flamma.game\n" in found["game"]
    assert "::: flamma.errors" in found["flamma"]


def test_links_and_pictures_are_those_of_the_site(hooks):
    text = (
        "[![a](docs/screenshots/a.png)](docs/results.md#b) [c](#d) [e](https://f.g) [h](Makefile)"
    )
    page = PurePosixPath("README.md"), PurePosixPath("project/overview.md")
    assert hooks.with_site_links(text, *page) == (
        "[![a](../screenshots/a.png)](../results.md#b) [c](#d) [e](https://f.g) h (`Makefile`)"
    )
    code = "```python\nx[0](y)\n```"
    assert hooks.with_site_links(code, *page) == code


def test_nothing_is_installed_from_an_index_by_our_name():
    """The package that is called flamma on the index is somebody else's."""
    texts = [*PAGES, ROOT / "CONTRIBUTING.md", *(ROOT / "src").rglob("*.py")]
    for file in texts:
        commands = re.findall(r"pip\d? install[^\n]*", file.read_text(encoding="utf-8"))
        named = [c for c in commands if re.search(r"install (?:-\S+ )*['\"]?flamma(?![-\w/])", c)]
        assert not named, (file, named)


def test_installs_from_the_checkout_keep_to_the_constraints():
    """An unpinned torch is gigabytes."""
    for file in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        commands = re.findall(r"pip install[^\n`]*\.\[[^\n`]*", file.read_text(encoding="utf-8"))
        assert [c for c in commands if "constraints.txt" not in c] == [], file


@pytest.mark.docs
def test_the_site_is_searched_and_read_from_its_files(tmp_path):
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert built.returncode == 0, built.stderr
    asked = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "index.html").as_uri())
        page.click("input.md-search__input")
        page.get_by_text("Type to start searching").wait_for()  # until then it does not listen
        page.keyboard.type("best_response")
        page.wait_for_selector(".md-search-result__item")
        found = page.eval_on_selector_all(
            ".md-search-result__link", "links => links.map(link => link.href)"
        )
        assert any("reference/api/game.html" in link for link in found)
        page.goto((tmp_path / "reference/api/game.html").as_uri())
        assert page.locator("h2, h3, h4").filter(has_text="solve").count()
        browser.close()
    assert asked
    assert [url for url in asked if not is_local(url)] == []
