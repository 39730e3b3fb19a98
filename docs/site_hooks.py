"""How the documentation becomes a site: its navigation, its API pages, and links out of ``docs``.

MkDocs calls the functions whose names begin with ``on_``; see ``mkdocs.yml``. The table of contents
is ``docs/README.md``, so that a page is listed once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = PurePosixPath("docs")
HOME = "README.md"
PACKAGE = ROOT / "src" / "flamma"
API = "reference/api"
PROJECT = {
    "README.md": "project/overview.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}
"""Files of the repository's root that are pages of the site too, and where."""

LINK = re.compile(r"(!?)\[((?:[^\[\]]|!?\[[^\]]*\])*)\]\(([^()\s]+)\)")  # around a picture, too
HEADING = re.compile(r"^## (.+)$")
ENTRY = re.compile(r"^- \[(.+?)\]\(([^)#]+\.md)\)")


def on_config(config: Any) -> Any:
    """Set the navigation, and make anchors as repositories on the web make them."""
    from pymdownx.slugs import slugify

    config.nav = navigation((ROOT / DOCS / HOME).read_text(encoding="utf-8"))
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not files of ``docs``."""
    from mkdocs.structure.files import File

    for name, page in PROJECT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for room, text in api_pages().items():
        files.append(File.generated(config, f"{API}/{room}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page with links that lead somewhere on the site, or else name the file."""
    site = page.file.src_uri
    source = {where: name for name, where in PROJECT.items()}.get(site, str(DOCS / site))
    return with_site_links(markdown, PurePosixPath(source), PurePosixPath(site))


def on_page_content(html: str, **_: Any) -> str:
    """Return a page without the roles that docstrings have for other tools.

    Examples
    --------
    >>> on_page_content("a :class:<code>~flamma.game.Game</code>")
    'a <code>flamma.game.Game</code>'
    """
    return re.sub(r":(?:attr|class|data|exc|func|meth|mod):(<code[^>]*>)~?", r"\1", html)


def on_post_build(config: Any) -> None:
    """Refuse a site of which a page would load anything from elsewhere."""
    from mkdocs.exceptions import PluginError

    for page in sorted(Path(config.site_dir).rglob("*.html")):
        if found := loaded_from_elsewhere(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.name} would load {', '.join(found)} from elsewhere")


def loaded_from_elsewhere(page: str) -> list[str]:
    """Return the addresses of other hosts that a page loads; links to follow may lead anywhere.

    Examples
    --------
    >>> loaded_from_elsewhere('<a href="https://a.org">a</a><script src="https://b.org/c.js">')
    ['https://b.org/c.js']
    """
    tags = re.findall(r"<(?:script|link|img|iframe|source|video|audio)\b[^>]*>", page)
    found = (re.findall(r"""(?:src|href|srcset)=["']?((?:https?:)?//[^"'\s>]+)""", t) for t in tags)
    return [address for addresses in found for address in addresses]


def navigation(contents: str) -> list[dict[str, Any]]:
    """Return the sections of the table of contents with their pages, then those added here."""
    sections: dict[str, list[Any]] = {"Start": [{"Contents": HOME}]}
    for line in contents.splitlines():
        if found := HEADING.match(line):
            sections[found[1].partition(":")[0]] = []
        elif found := ENTRY.match(line):
            sections[list(sections)[-1]].append({found[1].replace("`", ""): found[2]})
    sections["API"] = [{_module(room): f"{API}/{room}.md"} for room in api_pages()]
    names = (Path(page).stem.capitalize() for page in PROJECT.values())
    sections["Project"] = [dict([pair]) for pair in zip(names, PROJECT.values(), strict=True)]
    return [{title: pages} for title, pages in sections.items() if pages]


def api_pages() -> dict[str, str]:
    """Return one page for each package of FLamma, and one for the modules beside them."""
    packages = sorted(file.parent.name for file in PACKAGE.glob("*/__init__.py"))
    modules = sorted(f.stem for f in PACKAGE.glob("*.py") if not f.stem.startswith("_"))
    alone = "\n\n".join(f"::: flamma.{module}" for module in modules)
    top = f"# flamma\n\n::: flamma\n    options:\n      show_submodules: false\n\n{alone}\n"
    return {"flamma": top} | {
        name: f"# {_module(name)}\n\n::: {_module(name)}\n" for name in packages
    }


def with_site_links(markdown: str, source: PurePosixPath, site: PurePosixPath) -> str:
    """Return the text of a file of the repository as a page of the site has it.

    Examples
    --------
    >>> page = PurePosixPath("docs/how-to/gpu.md"), PurePosixPath("how-to/gpu.md")
    >>> with_site_links("[a](../../README.md#install), [b](tune.md), [c](../../setup.py)", *page)
    '[a](../project/overview.md#install), [b](tune.md), c (`setup.py`)'
    """

    def renewed(found: re.Match[str]) -> str:
        mark, text, target = found[1], LINK.sub(renewed, found[2]), found[3]
        if re.match(r"\w+:|#", target):
            return f"{mark}[{text}]({target})"
        place, hash_, heading = target.partition("#")
        file = os.path.normpath(source.parent / place).replace(os.sep, "/")
        where = _on_site(file)
        if where is None:
            return f"{text} (`{file}`)"
        return f"{mark}[{text}]({os.path.relpath(where, site.parent)}{hash_}{heading})"

    return "".join(
        part if code else LINK.sub(renewed, part) for code, part in _parts_by_code(markdown)
    )


def _on_site(file: str) -> str | None:
    """Return where a file of the repository is on the site, None if it is not."""
    if file in PROJECT:
        return PROJECT[file]
    path = PurePosixPath(file)
    left_out = path.suffix == ".py" or (path.suffix == ".json" and "results" in path.parts)
    inside = path.is_relative_to(DOCS) and not left_out
    return str(path.relative_to(DOCS)) if inside else None


def _parts_by_code(markdown: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a text, each with whether it is a block of code."""
    for k, part in enumerate(re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)):
        yield bool(k % 2), part


def _module(room: str) -> str:
    return room if room == "flamma" else f"flamma.{room}"
