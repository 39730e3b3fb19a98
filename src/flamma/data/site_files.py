"""A site's ``site.toml``: who the site is, what an epoch costs it, and where its data lie.

Only the file is read and checked here, not the data that it names: see ``site_data``.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flamma.data.pictures import LARGEST_SIDE
from flamma.errors import DataError
from flamma.files import read_text
from flamma.names import SITE_NAME, unknown

KINDS = ("dataset", "npz", "parquet", "folder")
TOP = ("name", "cost", "tell_cost", "data")
OWN = ("held_out", "seed", "classes", "mean", "std")
PICTURES = (*OWN, "size", "channels")
OPTIONS: dict[str, tuple[str, ...]] = {
    "dataset": (
        *("split", "partition", "partitions", "seed", "shards_per_client", "classes_per_client"),
        *("alpha", "uneven", "train_samples", "validation_samples", "held_out", "data_dir"),
    ),
    "npz": OWN,
    "parquet": PICTURES,
    "folder": (*PICTURES, "class_names"),
}
HELD_OUT = 0.2


@dataclass(frozen=True)
class SiteFile:
    """A ``site.toml`` whose keys are known; its options are checked when they are asked for.

    Every method raises a ``DataError`` where the file has what cannot be used.
    """

    path: Path
    name: str
    cost: float | None
    tells_cost: bool
    kind: str
    data: Mapping[str, Any]

    def source(self) -> Path:
        """Return where the data lie; a relative name must not lead out of the site's folder."""
        home, given = self.path.parent, Path(self.data[self.kind])
        path = home / given
        if not given.is_absolute() and not path.resolve().is_relative_to(home):
            raise DataError(
                f"{self.path}: {given} leads out of {home}: give the whole path if that is meant."
            )
        if not path.exists():
            raise DataError(f"{self.path}: there is no {path}.")
        return path

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int | None:
        """Return an option that must be a whole number within bounds, as must its default."""
        value = self.data.get(key, default)
        if value is None:
            return None
        if type(value) is not int or not least <= value <= most:
            raise DataError(
                f"{self.path}: {key} must be a whole number from {least} to {most}, not {value!r}."
            )
        return value

    def held_out(self) -> float:
        """Return the share of the samples that is held out."""
        share = self.data.get("held_out", HELD_OUT)
        if not _is_number(share) or not 0 < share < 1:
            raise DataError(f"{self.path}: held_out must lie between 0 and 1, not {share!r}.")
        return float(share)

    def size(self) -> tuple[int, int] | None:
        """Return the height and width that pictures are brought to, if any."""
        value = self.data.get("size")
        if value is None:
            return None
        good = isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)
        if not good or not all(0 < v <= LARGEST_SIDE for v in value):
            raise DataError(f"{self.path}: size must be [height, width], not {value!r}.")
        return value[0], value[1]

    def class_names(self) -> list[str] | None:
        """Return the classes in order, if the site gives them."""
        names = self.data.get("class_names")
        if names is not None and not (
            isinstance(names, list) and all(isinstance(name, str) for name in names)
        ):
            raise DataError(f"{self.path}: class_names must be a list of texts.")
        return names

    def per_channel(self, key: str, channels: int) -> list[float] | None:
        """Return ``mean`` or ``std``: one number or one for each channel, if there are any."""
        values = self.data.get(key)
        if values is None:
            return None
        good = isinstance(values, list) and values and all(map(_is_number, values))
        if not good or len(values) not in (1, channels) or (key == "std" and min(values) <= 0):
            raise DataError(f"{self.path}: {key} must be one number, or one for each channel.")
        return [float(value) for value in values]


def read_site(path: Path) -> SiteFile:
    """Return a site's own file, checked, without reading its data.

    Raises
    ------
    DataError
        If the file cannot be used; one sentence says why.
    """
    try:
        table = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from error
    _check_keys(table, TOP, path)
    name, cost, data = table.get("name"), table.get("cost"), table.get("data")
    if not isinstance(name, str) or not SITE_NAME.fullmatch(name):
        raise DataError(
            f"{path}: name must be small letters, digits and hyphens, 40 at most, not {name!r}."
        )
    if cost is not None and not (_is_number(cost) and cost > 0):
        raise DataError(f"{path}: cost must be positive and finite, not {cost!r}.")
    tells = table.get("tell_cost", False)
    if not isinstance(tells, bool):
        raise DataError(f"{path}: tell_cost must be true or false, not {tells!r}.")
    if not isinstance(data, dict) or sum(kind in data for kind in KINDS) != 1:
        raise DataError(f"{path}: [data] must have one of {', '.join(KINDS)}.")
    kind = next(kind for kind in KINDS if kind in data)
    _check_keys(data, (kind, *OPTIONS[kind]), path)
    if not isinstance(data[kind], str):
        raise DataError(f"{path}: data.{kind} must be a text, not {data[kind]!r}.")
    cost = None if cost is None else float(cost)
    return SiteFile(path.resolve(), name, cost, tells, kind, data)


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], path: Path) -> None:
    for key in table:
        if key not in known:
            raise DataError(f"{path}: {unknown('key', key, known)}")
