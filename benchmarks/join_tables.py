"""Join the tables of parts of a suite, which were made one after another or on several machines.

    flamma compare --suite paper --datasets mnist --splits shards --out out/mnist-shards
    flamma compare --suite paper --datasets mnist --splits iid --out out/mnist-iid
    python benchmarks/join_tables.py paper out/mnist-*/table.json --out docs/results/paper.json

Rows are in the order of the suite. Of a row that several tables have, the first to come is taken.
`flamma compare --check` repeats a joined table as any other.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from flamma.experiments.manifest import signed
from flamma.experiments.published import read_published
from flamma.experiments.suite import Suite, narrowed, read_suite
from flamma.experiments.table import TABLE_VERSION, Comparison, Row
from flamma.files import write_atomically


def joined(tables: list[Comparison]) -> Comparison:
    """Return one table of all rows, the first to come where several have the same."""
    rows: dict[tuple[str, str, str], Row] = {}
    for table in tables:
        for row in table.rows:
            rows.setdefault((row.dataset, row.split, row.strategy), row)
    return replace(
        tables[0],
        rows=list(rows.values()),
        trainers=tuple(sorted({name for table in tables for name in table.trainers})),
    )


def of_suite(table: Comparison, suite: Suite) -> Comparison:
    """Return a table in the order of the suite that it is of, and as a part of that."""
    parts = {
        "datasets": list(dict.fromkeys(row.dataset for row in table.rows)),
        "splits": list(dict.fromkeys(row.split for row in table.rows)),
        "strategies": list(dict.fromkeys(row.strategy for row in table.rows)),
    }
    own = narrowed(suite, **parts)
    cells = own.cells()
    order = list(dict.fromkeys((cell.dataset, cell.split, cell.strategy) for cell in cells))
    rows = sorted(table.rows, key=lambda r: order.index((r.dataset, r.split, r.strategy)))
    known = {(row.dataset, row.split, row.strategy) for row in rows}
    folders = [str(c.folder) for c in cells if (c.dataset, c.split, c.strategy) in known]
    return replace(table, name=suite.name, rows=rows, folders=folders, suite=own.as_toml())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suite")
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    table = joined([read_published(path) for path in options.tables])
    table = of_suite(table, read_suite(options.suite))
    text = signed({"version": TABLE_VERSION, **table.as_json()})
    write_atomically(options.out, text.encode())
    print(f"{options.out}: {len(table.rows)} rows")


if __name__ == "__main__":
    main()
