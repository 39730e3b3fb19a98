"""A site's table: CSV or parquet, read by columns that the whole federation has declared.

Categories and standardisation must be the same at all sites, and no site sees the others' rows.
So a file, the same at all sites, declares the columns. Sites tell its SHA-256 as they introduce
themselves, and those with another one are refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.data.cells import column_array, shown_names
from flamma.data.encoding import FeatureColumn, SampleEncoding
from flamma.data.own.files import table_columns
from flamma.errors import ConfigError, DataError
from flamma.names import nearest, quoted
from flamma.options import from_table
from flamma.toml import read_toml
from flamma.types import Ints


@dataclass(frozen=True)
class DeclaredColumn:
    """A column of every site's table.

    Parameters
    ----------
    name : str
        What it is called in the table.
    categories : list of str
        What its texts can be, each of which becomes a feature; none for numbers.
    mean, std : float
        Subtracted from its numbers, and what they are then divided by.
    """

    name: str = ""
    categories: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        called = f"column {quoted(self.name)}"
        if not self.name:
            raise DataError("every column needs a name.")
        if self.std <= 0:
            raise DataError(f"std of {called} must be positive, not {self.std:g}.")
        if len(set(self.categories)) != len(self.categories):
            raise DataError(f"{called} has a category twice.")
        if self.categories and (self.mean, self.std) != (0.0, 1.0):
            raise DataError(f"{called} has categories, which have no mean and no std.")


@dataclass(frozen=True)
class DeclaredTable:
    """The columns of every site's table, in the order of the features, and what is predicted.

    Parameters
    ----------
    target : str
        The column to predict.
    classes : list of str or int
        What the target can be, in the order of the labels; none where numbers are predicted.
    columns : list of tables
        The others that are used; a site's table may have more.
    """

    target: str = ""
    classes: tuple[str | int, ...] = ()
    columns: tuple[DeclaredColumn, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not self.target or not names:
            raise DataError("a target and at least one of [[columns]] must be declared.")
        if len({*names, self.target}) != len(names) + 1:
            raise DataError("the target and the columns must have different names.")
        if len(set(self.labels)) != len(self.classes) or len(self.classes) == 1:
            raise DataError("classes must be different names, at least two.")

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes as texts, which is how they are compared."""
        return tuple(str(label) for label in self.classes)

    @property
    def sha256(self) -> str:
        """The SHA-256 of all that is declared, however the file is written."""
        told = asdict(replace(self, classes=self.labels))
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    @property
    def encoding(self) -> SampleEncoding:
        """What makes numbers of the columns."""
        columns = tuple(FeatureColumn(c.name, c.categories) for c in self.columns)
        moments = [(c.mean, c.std) for c in self.columns for _ in c.categories or (c.name,)]
        return SampleEncoding(
            (len(moments),),
            columns=columns,
            mean=tuple(mean for mean, _ in moments),
            std=tuple(std for _, std in moments),
        )

    @property
    def texts(self) -> set[str]:
        """The names of the columns that are of texts."""
        named = {column.name for column in self.columns if column.categories}
        return named | ({self.target} if self.classes else set())


def read_declared(path: Path) -> DeclaredTable:
    """Return the declared columns of a federation.

    Raises
    ------
    DataError
        If the file cannot be used; one sentence names it and the key.
    """
    try:
        return DeclaredTable(**from_table(DeclaredTable, read_toml(path)))
    except (ConfigError, DataError) as error:
        raise DataError(f"{path.name}: {error}") from error


def read_table(path: Path, declared: DeclaredTable) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the samples of a table, encoded as declared, and the numbers of their classes.

    Where no classes are declared, the second is the target's numbers.

    Raises
    ------
    DataError
        If the table cannot be read, lacks a column, or has what is not declared.
    """
    columns, _ = table_columns(path, texts=declared.texts)
    wanted = [declared.target, *(column.name for column in declared.columns)]
    for name in wanted:
        if name not in columns:
            guess = nearest(name, list(columns))
            hint = f": did you mean {quoted(guess)}?" if guess else "."
            raise DataError(f"{path.name} has no column {quoted(name)}, which is declared{hint}")
    used = {
        name: _texts(columns[name], name) if name in declared.texts else columns[name]
        for name in wanted
    }
    for column in declared.columns:
        if column.categories:
            _places(used[column.name], column.name, column.categories)
    target = used.pop(declared.target)
    x = declared.encoding.encode(used)
    if declared.classes:
        return x, _places(target, declared.target, declared.labels)
    return x, column_array(target, declared.target)


def _texts(values: Any, name: str) -> NDArray[Any]:
    """Return a column as texts: whole numbers and truth values of a parquet file have theirs."""
    array = column_array(values, name)
    if array.dtype.kind == "f":
        raise DataError(
            f"column {quoted(name)} has floating-point numbers, but is declared as one of "
            f"categories: make them whole numbers or texts."
        )
    texts = np.empty(array.size, dtype=object)
    written = [str(value) for value in array.tolist()]
    texts[:] = [text.lower() for text in written] if array.dtype.kind == "b" else written
    return texts


def _places(values: NDArray[Any], name: str, declared: tuple[str, ...]) -> Ints:
    """Return where each text stands among those that are declared."""
    places = {text: place for place, text in enumerate(declared)}
    strangers = sorted(set(values.tolist()) - places.keys())
    if strangers:
        raise DataError(
            f"column {quoted(name)} has {shown_names(strangers)}, but declared are "
            f"{shown_names(declared)}."
        )
    return np.array([places[value] for value in values.tolist()], dtype=np.int64)
