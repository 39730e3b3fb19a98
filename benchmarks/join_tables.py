"""Join the tables of parts of a suite, which were made one after another or on several machines.

    flamma compare --suite paper --datasets mnist --splits shards --out out/mnist-shards
    flamma compare --suite paper --datasets mnist --splits iid --out out/mnist-iid
    python benchmarks/join_tables.py paper out/mnist-*/table.json --out docs/results/paper.json

Rows are in the order of the suite. Of a row that several tables have, the first to come is taken.
Metrics that compare strategies, such as that at equal work, are left out where the strategies of a
dataset and split come from several tables, unless what these have in common agrees.
`flamma compare --check` repeats a joined table as any other.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from flamma.experiments.comparison import TABLE_VERSION, Comparison, Row, read_published
from flamma.experiments.folder import signed
from flamma.experiments.suite import Suite, narrowed, read_suite
from flamma.io import write_atomically
from flamma.metrics import METRICS, ComparedMetric

Rows = dict[tuple[str, str, str], Row]
COMPARED = {name for name in METRICS if isinstance(METRICS[name], ComparedMetric)}


def joined(tables: list[Comparison]) -> Comparison:
    """Return one table of all rows, the first to come where several have the same."""
    by_table = [{(r.dataset, r.split, r.strategy): r for r in table.rows} for table in tables]
    places = dict.fromkeys(place for rows in by_table for place in rows)
    found = []
    for place in places:
        row = next(rows[place] for rows in by_table if place in rows)
        beside = [rows for rows in by_table if any(other[:2] == place[:2] for other in rows)]
        found.append(row if agree(beside, place[:2]) else without(row, COMPARED))
    trainers = tuple(sorted({name for table in tables for name in table.trainers}))
    return replace(tables[0], rows=found, trainers=trainers)


def agree(tables: list[Rows], place: tuple[str, str]) -> bool:
    """Return whether tables of one place have the same figures of the runs they have in common."""
    told = [
        {
            (own, row.weights_sha256): compared_of(row)
            for own, row in rows.items()
            if own[:2] == place
        }
        for rows in tables
    ]
    common = set.intersection(*(set(rows) for rows in told))
    alike = all(rows[own] == told[0][own] for rows in told for own in common)
    return len(tables) == 1 or (bool(common) and alike)


def compared_of(row: Row) -> dict[str, list[float]]:
    """Return the metrics of a row that compare strategies."""
    return {name: own for name, own in row.values.items() if name in COMPARED}


def without(row: Row, names: set[str]) -> Row:
    """Return a row without some of its metrics."""
    mean, std, values = (
        {name: own for name, own in part.items() if name not in names}
        for part in (row.mean, row.std, row.values)
    )
    return replace(row, mean=mean, std=std, values=values)


def of_suite(table: Comparison, suite: Suite) -> Comparison:
    """Return a table in the order of the suite that it is of, and as a part of that."""
    parts = {
        "datasets": list(dict.fromkeys(row.dataset for row in table.rows)),
        "splits": list(dict.fromkeys(row.split for row in table.rows)),
        "strategies": [s for s in suite.strategies if any(row.strategy == s for row in table.rows)],
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
