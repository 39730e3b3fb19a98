"""Write the generated parts of the documentation: tables of options and metrics, the layers.

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. The tests fail
where a page and the code differ.

    python docs/generate.py
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from flamma._renamed import RENAMED
from flamma.clients.time import ClockConfig, Faults
from flamma.experiments.config import ConfigTables, DataConfig, EvaluationConfig, WeightsConfig
from flamma.experiments.parts import PARTS, option_row, own_options
from flamma.experiments.schema import SCHEMAS
from flamma.experiments.suite import Suite
from flamma.metrics import METRICS
from flamma.privacy import PrivacyConfig
from flamma.registry import Option, options_of
from flamma.strategies import FAMILIES, STRATEGIES, label_of
from flamma.training.config import TrainingConfig

HERE = Path(__file__).parent
BLOCK = re.compile(r"(<!-- generated: ([\w.:+-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
EXTENDS = {"flamma-plus": "flamma", "fedavg-decay": "flamma"}
"""Strategies that have all options of another one, whose table they do not repeat."""
SCHEMA_FILES = {name: HERE / "reference" / f"{name}.schema.json" for name in SCHEMAS}
"""The JSON Schemas for editors."""

PAGES = [HERE.parent / "README.md", *sorted(HERE.rglob("*.md"))]
FIRST = {
    "worst_10": ("Worst client in ten, %", 1),
    "accuracy": ("Mean accuracy, %", 1),
    "accuracy_variance": ("Variance across clients, pp²", 0),
    "epochs_total": ("Local epochs", 0),
}
"""The columns of the front page's table, with their decimals."""

FRONT = ("flamma-plus", "feddyn", "fedavg-decay", "flamma", "fedavg", "cffl")
"""The rows of it that the front page has room for."""

SOURCES = {
    "fedavg": "McMahan et al., 2017",
    "qffl": "Li et al., 2020",
    "scaffold": "Karimireddy et al., 2020",
    "mifa": "MIFA; Gu et al., 2021",
    "feddyn": "Acar et al., 2021",
    "fedavg-decay": "ours, without the game",
    "flamma": "Javaherian et al., 2025",
    "flamma-plus": "ours",
    "cffl": "Lyu et al., 2020",
    "ditto": "Li et al., 2021",
    "local": "no federation",
}
"""Where the algorithms of the front page come from."""


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    lines = [list(header), *([["---"] * len(list(header))]), *map(list, rows)]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def options(found: Mapping[str, Option]) -> str:
    """Return a table of options, or say that there are none."""
    rows = []
    for option in found.values():
        name, kind, default, text = option_row(option)
        shown = default if default == "none" else f"`{default}`"
        rows.append([f"`{name}`", kind, shown, text.replace("``", "`")])
    return table(["Key", "Type", "Default", "Meaning"], rows) if rows else "No options."


def top() -> str:
    """Return the keys of a configuration outside its tables."""
    return options({n: o for n, o in options_of(ConfigTables).items() if o.help})


def own(name: str) -> str:
    """Return the options of one strategy that it does not have from the one it extends."""
    kind = STRATEGIES[name]
    parent = EXTENDS.get(name)
    inherited: dict[str, Any] = {}
    if parent:
        inherited = {n: o.default for n, o in options_of(STRATEGIES[parent]).items()}
    found = options_of(kind)
    return options(
        {n: o for n, o in found.items() if n != "aggregator" and inherited.get(n, ...) != o.default}
    )


def metrics() -> str:
    """Return the table of metrics."""
    return table(
        ["Name", "Label", "Unit", "Better", "Of a run", "Shown in"],
        [
            [
                f"`{name}`",
                metric.label,
                metric.unit or "-",
                metric.better,
                metric.aggregation(),
                ", ".join(metric.shown) or "records only",
            ]
            for name in METRICS
            for metric in [METRICS[name]]
        ],
    )


def _part(part: str, name: str) -> str:
    [found] = [p for p in PARTS if p.name == part]
    return options(own_options(found.registry[name]))


def listing(part: str) -> str:
    """Return the entries of a part with one line and the options of each, strategies by family."""
    [found] = [p for p in PARTS if p.name == part]
    lines, entries = found.lines(), dict(found.entries())
    blocks = []
    for family, names in found.groups().items():
        blocks += [f"`{family}`: {FAMILIES[family]}"] if family else []
        rows = []
        for name in names:
            keys = ", ".join(f"`{key}`" for key in own_options(entries[name])) or "-"
            rows.append([f"`{name}`", lines[name], keys])
        blocks.append(table(["Name", "What it is", "Options"], rows))
    return "\n\n".join(blocks)


def layers() -> str:
    """Return the layers of the import contract, with the first line of each package."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = []
    for number, layer in enumerate(contract, 1):
        for module in re.split(r"[|:]", layer):
            name = module.strip().removeprefix("flamma.")
            about = (import_module(module.strip()).__doc__ or "").partition("\n")[0]
            rows.append([str(number), f"`{name}`", about.replace("``", "`")])
    return table(["Layer", "Package or module", "What it contains"], rows)


def first(strategies: Collection[str] = (), columns: Collection[str] = tuple(FIRST)) -> str:
    """Return the table of five seeds that the front page's picture is drawn from, or a part."""
    rows = json.loads((HERE / "results" / "first.json").read_text(encoding="utf-8"))["rows"]
    lines = []
    for row in rows:
        if strategies and row["strategy"] not in strategies:
            continue
        name = f"{label_of(row['strategy'])} ({SOURCES[row['strategy']]})"
        cells = [
            f"{row['mean'][metric]:.{digits}f} ± {row['std'][metric]:.{digits}f}"
            for metric, (_, digits) in FIRST.items()
            if metric in columns
        ]
        lines.append([f"{name}, personal models" if row["personal"] else name, *cells])
    titles = [title for metric, (title, _) in FIRST.items() if metric in columns]
    return table(["Algorithm", *titles], lines)


def renamed() -> str:
    """Return the names of version 0.2 that have another one now."""
    return table(["0.2", "now"], ([f"`{old}`", f"`{new}`"] for old, new in sorted(RENAMED.items())))


def generated(name: str) -> str:
    """Return one generated part by its name."""
    simple: dict[str, Callable[[], str]] = {
        "run": top,
        "data": lambda: options(options_of(DataConfig)),
        "weights": lambda: options(options_of(WeightsConfig)),
        "training": lambda: options(options_of(TrainingConfig)),
        "faults": lambda: options(options_of(Faults)),
        "privacy": lambda: options(options_of(PrivacyConfig)),
        "clock": lambda: options(options_of(ClockConfig)),
        "evaluation": lambda: options(options_of(EvaluationConfig)),
        "suite": lambda: options(options_of(Suite)),
        "metrics": metrics,
        "first": first,
        "front": lambda: first(FRONT, ("worst_10", "accuracy")),
        "layers": layers,
        "renamed": renamed,
    }
    if name in simple:
        return simple[name]()
    kind, _, entry = name.partition(":")
    if kind == "list":
        return listing(entry.replace("-", " ") if entry.startswith("contrib") else entry)
    if kind == "strategies":
        return own(entry)
    return _part(kind, entry)


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a JSON Schema as a file has it."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def rewritten(text: str) -> str:
    """Return a page with its generated parts as they are now."""
    return BLOCK.sub(lambda m: f"{m[1]}{generated(m[2])}\n{m[4]}", text)


def main() -> None:
    """Rewrite every page that has generated parts."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = rewritten(text)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(page)
    for name, schema in SCHEMAS.items():
        SCHEMA_FILES[name].write_text(schema_text(schema()), encoding="utf-8")


if __name__ == "__main__":
    main()
