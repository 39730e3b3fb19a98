"""``flamma report`` and ``flamma watch``: look at a run or a comparison, afterwards or live."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.cli.console import print_json, verbosity
from flamma.cli.parser import Parser
from flamma.experiments.progress_bar import Verbosity

if TYPE_CHECKING:
    from flamma.reports.live import LiveServer

_REPORT_EXAMPLES = """\
examples:
  flamma report runs/first --open           writes runs/first/report.html and shows it
  flamma report out/quick --out table.html  a comparison, into a file to send around

The report is one HTML file that needs no network: tables, charts to zoom and to download (data as
CSV, pictures as PNG or SVG), and the game explorer. `flamma run` and `flamma compare` write it at
their end; of a damaged or unfinished directory it shows what can be shown and says what is missing.
"""
_WATCH_EXAMPLES = """\
examples:
  flamma watch runs/first                   while `flamma run --out runs/first` goes on elsewhere
  flamma run --out runs/first --watch       both in one
  flamma watch out/quick --port 8350        a comparison, at an address that stays the same

Only this machine can reach the page unless --host says otherwise. The page follows the run through
interruptions and `flamma resume`.
"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands to the command line."""
    report = commands.add_parser(
        "report",
        help="a run or a comparison as one HTML page",
        description="Write the report of a run or of a comparison: one self-contained HTML file.",
        epilog=_REPORT_EXAMPLES,
    )
    report.add_argument(
        "dir", type=Path, metavar="DIR", help="the directory of a run or of a comparison"
    )
    report.add_argument(
        "--out", type=Path, metavar="FILE", help="the page (default report.html in DIR)"
    )
    report.add_argument("--open", action="store_true", help="show it in the browser")
    report.add_argument("--json", action="store_true", help="print JSON instead of a sentence")
    report.set_defaults(run=_run_report)
    watch = commands.add_parser(
        "watch",
        help="the same page, live, while a run goes on",
        description="Serve the page of a run or a comparison and update it as rounds finish.",
        epilog=_WATCH_EXAMPLES,
    )
    watch.add_argument("dir", type=Path, metavar="DIR", help="the directory; it need not exist yet")
    watch.add_argument("--port", type=int, default=0, help="the port (default any free one)")
    watch.add_argument(
        "--host", default="127.0.0.1", help="where to listen (default 127.0.0.1, this machine only)"
    )
    watch.add_argument("--open", action="store_true", help="show it in the browser")
    watch.add_argument("--json", action="store_true", help="print the address as JSON, too")
    watch.set_defaults(run=run_watch)


def _run_report(options: argparse.Namespace) -> None:
    """Run ``flamma report``."""
    from flamma.reports.document import REPORT_FILE, read_document, write_page

    document = read_document(options.dir)
    written = write_page(document, options.out or options.dir / REPORT_FILE)
    missing = document.missing
    if options.json:
        print_json({"report": str(written), "missing": missing})
    else:
        for notice in missing:
            print(f"flamma: {notice}", file=sys.stderr)
        print(f"Report: {written}")
    if options.open:
        open_in_browser(written.resolve().as_uri())


def run_watch(options: argparse.Namespace) -> None:
    """Run ``flamma watch`` until it is interrupted."""
    import threading

    from flamma.reports.live import LiveServer

    with LiveServer(options.dir, options.host, options.port) as server:
        _announce(server)
        if options.json:
            import json

            address = {"url": server.url, "path": str(options.dir), "private": server.is_private}
            print(json.dumps(address), flush=True)
        if options.open:
            open_in_browser(server.url)
        if verbosity(options) > Verbosity.QUIET:
            print("Ctrl-C ends it.", file=sys.stderr)
        threading.Event().wait()


def _announce(server: LiveServer) -> None:
    """Say where the live page is, and who can see it."""
    print(f"watch {server.watch.path} at {server.url}", file=sys.stderr, flush=True)
    if not server.is_private:
        print(
            "flamma: anyone who can reach this machine can read the page; leave out --host to "
            "keep it private.",
            file=sys.stderr,
        )


@contextmanager
def watched(path: Path, options: argparse.Namespace) -> Iterator[None]:
    """Serve the live page of a directory while it is written, if that is asked for."""
    if not options.watch:
        yield
        return
    from flamma.reports.live import LiveServer

    with LiveServer(path) as server:
        _announce(server)
        yield


def add_watch(parser: Parser) -> None:
    """Add ``--watch`` to a command."""
    parser.add_argument("--watch", action="store_true", help="serve a live page while it goes on")


def report_at_end(path: Path, options: argparse.Namespace) -> None:
    """Write the report of a finished run or comparison; a failure here is only a warning."""
    from flamma.reports.document import write_report

    try:
        written = write_report(path)
    except Exception as error:
        print(f"flamma: no report: {error}", file=sys.stderr)
        return
    if verbosity(options) > Verbosity.QUIET:
        print(f"Report: {written}", file=sys.stderr if options.json else sys.stdout)


def open_in_browser(url: str) -> None:
    """Show a page in the user's browser, or say that there is none."""
    import webbrowser

    if not webbrowser.open(url):
        print(f"flamma: no browser was found; open {url} by hand.", file=sys.stderr)
