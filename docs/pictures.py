r"""Publish the table of the front page, and draw its picture from that table alone.

    flamma compare --suite family --datasets digits --splits shards --seeds 5 --out out/first \
      --strategies fedavg,qffl,scaffold,mifa,feddyn,fedavg-decay,flamma,flamma-plus,ditto,cffl,local
    python docs/pictures.py out/first   # docs/results/first.json, from the table and its runs
    python docs/pictures.py             # docs/results/first.svg, from first.json alone

``python docs/generate.py`` writes the table of the README from the same file.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from flamma.experiments.comparison import last_accuracies, read_published
from flamma.experiments.folder import signed
from flamma.strategies import label_of

RESULTS = Path(__file__).parent / "results"
TABLE, PICTURE = RESULTS / "first.json", RESULTS / "first.svg"

WIDTH, MARGIN, ROW, LEFT, RIGHT, TOP = 800, 16, 34, 142, 662, 52
"""Lengths of the picture in pixels: its width without margins, a row, where axis and rows begin."""

STYLE = """
  rect { fill: #fff }
  text { font: 14px -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
  .quiet { fill: #59636e; font-size: 12px }
  .end { text-anchor: end } .middle { text-anchor: middle }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .other { --ink: #818b98 } .flamma { --ink: #54aeff } .flamma-plus { --ink: #0550ae }
  .flamma-plus text { font-weight: 700 }
  circle { fill: var(--ink); fill-opacity: .55 }
  .mean { stroke: var(--ink); stroke-width: 4; stroke-linecap: round }
  @media (prefers-color-scheme: dark) {
    rect { fill: #0d1117 }
    text { fill: #f0f6fc } .quiet { fill: #9198a1 } .grid { stroke: #3d444d }
    .other { --ink: #818b98 } .flamma { --ink: #1f6feb } .flamma-plus { --ink: #79c0ff }
  }"""


def publish(comparison: Path) -> None:
    """Write the table of a comparison with each client's accuracy, the most accurate row first.

    An accuracy of a client is its mean over the last evaluated rounds of a run, in percent.
    """
    table = json.loads((comparison / "table.json").read_text(encoding="utf-8"))
    runs = replace(read_published(comparison / "table.json"), path=comparison).runs
    for row in table["rows"]:
        by_seed = runs[row["dataset"], row["split"], row["strategy"]]
        row["client_accuracies"] = [
            [round(float(value), 2) for value in last_accuracies(by_seed[seed])[1]]
            for seed in row["seeds"]
        ]
    table["rows"].sort(key=lambda row: (row["personal"], -row["mean"]["accuracy"]))
    TABLE.write_text(signed(table), encoding="utf-8")


def picture(table: str) -> str:
    """Return the picture of a published table as SVG: a dot for each client of each seed."""
    rows = json.loads(table)["rows"]
    first_own = sum(not row["personal"] for row in rows)
    seeds, clients = len(rows[0]["seeds"]), len(rows[0]["client_accuracies"][0])
    bottom = _y(len(rows), first_own) - ROW / 2
    parts = [
        f'<line class="grid" x1="{_x(tick)}" x2="{_x(tick)}" y1="{TOP - 8}" y2="{bottom:g}"/>'
        f'<text class="quiet middle" x="{_x(tick)}" y="{bottom + 18:g}">{tick}</text>'
        for tick in range(0, 101, 20)
    ]
    parts += [
        f'<text class="quiet middle" x="{(LEFT + RIGHT) / 2:g}" y="{bottom + 38:g}">'
        f"accuracy of each client (%): {clients} clients in each of {seeds} seeds, bars are means"
        "</text>",
        f'<text class="quiet" x="0" y="{TOP - 14}">one model for all clients</text>',
        f'<text class="quiet" x="0" y="{_y(first_own, first_own) - ROW / 2 - 4:g}">'
        "personal models</text>",
        f'<text class="quiet end" x="732" y="{TOP - 14}">mean</text>',
        f'<text class="quiet end" x="{WIDTH}" y="{TOP - 30}">worst client</text>',
        f'<text class="quiet end" x="{WIDTH}" y="{TOP - 14}">in ten</text>',
        *(_row(row, _y(place, first_own)) for place, row in enumerate(rows)),
    ]
    what = "Accuracy of each client on the digits, two classes per client, for each algorithm"
    box = f'width="{WIDTH + 2 * MARGIN}" height="{bottom + 52:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{what}" '
        f'viewBox="{-MARGIN} 0 {WIDTH + 2 * MARGIN} {bottom + 52:g}">\n'
        f"<!-- docs/results/{TABLE.name}, SHA-256 {hashlib.sha256(table.encode()).hexdigest()} -->"
        f'\n<style>{STYLE}\n</style>\n<rect x="{-MARGIN}" {box} rx="6"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _row(row: Mapping[str, Any], y: float) -> str:
    name, mean = row["strategy"], row["mean"]["accuracy"]
    kind = name if name in ("flamma", "flamma-plus") else "other"
    middle = (len(row["seeds"]) - 1) / 2
    dots = "".join(
        f'<circle cx="{_x(value)}" cy="{y + 4 * (seed - middle):g}" r="3.5"/>'
        for seed, values in enumerate(row["client_accuracies"])
        for value in values
    )
    return (
        f'<g class="{kind}">{dots}'
        f'<line class="mean" x1="{_x(mean)}" x2="{_x(mean)}" y1="{y - 12:g}" y2="{y + 12:g}"/>'
        f'<text x="0" y="{y + 5:g}">{escape(label_of(name))}</text>'
        f'<text class="end" x="732" y="{y + 5:g}">{mean:.1f}</text>'
        f'<text class="end" x="{WIDTH}" y="{y + 5:g}">{row["mean"]["worst_10"]:.1f}</text></g>'
    )


def _x(accuracy: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * accuracy / 100, 1)


def _y(place: int, first_own: int) -> float:
    """Return the middle of a row; personal models stand apart."""
    return TOP + ROW * (place + 0.5) + ROW * (place >= first_own)


def main() -> None:
    """Publish a comparison if one is given, and draw the picture."""
    if len(sys.argv) > 1:
        publish(Path(sys.argv[1]))
    PICTURE.write_text(picture(TABLE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
