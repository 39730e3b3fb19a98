"""A site's own data, named by its ``site.toml``: arrays, pictures, or a slice of a dataset.

Everything stays on the site: training and held-out samples, and what an epoch costs it. What was
read once is kept beside the file as plain arrays, which the next process maps into its memory
instead of decoding everything anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import flamma
from flamma.data.federated import Images
from flamma.data.kept_arrays import keep, kept
from flamma.data.pictures import PictureOptions, read_folder, read_parquet
from flamma.errors import DataError, FlammaError
from flamma.files import read_text
from flamma.names import SITE_NAME, unknown
from flamma.types import Ints

CACHE = ".arrays"
PARTS = ("x", "y", "held_x", "held_y")
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
MOST_CLASSES = 100_000
LARGEST_ARRAY = 32 * 1024**3


@dataclass(frozen=True, eq=False)
class SiteData:
    """What a site holds: its name, its cost if it gives one, its training and held-out data.

    ``tells_cost`` is whether the server may know that cost.
    """

    name: str
    cost: float | None
    x: Images
    y: Ints
    held_x: Images
    held_y: Ints
    classes: int
    tells_cost: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])


@dataclass(frozen=True)
class SiteFile:
    """A checked ``site.toml``."""

    path: Path
    name: str
    cost: float | None
    tells_cost: bool
    kind: str
    data: Mapping[str, Any]


def load_site(path: str | Path) -> SiteData:
    """Return the data of the site whose ``site.toml`` this is.

    The held-out part is cut off class by class, the same one every time.

    Raises
    ------
    DataError
        If the file or the data it names cannot be used; one sentence says why.
    """
    site = read_site(Path(path))
    folder, key = site.path.parent / CACHE, _key(site)
    found = kept(folder, key, PARTS)
    if found is not None:
        (x, y, held_x, held_y), classes = found
    else:
        parts, classes = _read(site)
        _check(parts, classes, site)
        keep(folder, key, dict(zip(PARTS, parts, strict=True)), classes)
        x, y, held_x, held_y = parts
    return SiteData(site.name, site.cost, x, y, held_x, held_y, classes, site.tells_cost)


def read_site(path: Path) -> SiteFile:
    """Return a site's own file, checked, without reading its data."""
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
    if cost is not None and not (_is_number(cost) and math.isfinite(cost) and cost > 0):
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


Parts = tuple[Images, Ints, Images, Ints]


def _read(site: SiteFile) -> tuple[Parts, int]:
    if site.kind == "dataset":
        return _slice(site)
    options = PictureOptions(_size(site), _whole(site, "channels", None, 1, 3))
    source, classes = _inside(site), None
    held: tuple[NDArray[Any], NDArray[Any]] | None = None
    if site.kind == "npz":
        x, y, held = _read_npz(source)
    elif site.kind == "parquet":
        x, y = read_parquet(source, options)
    else:
        names = site.data.get("class_names")
        if names is not None and not (
            isinstance(names, list) and all(isinstance(name, str) for name in names)
        ):
            raise DataError(f"{site.path}: class_names must be a list of texts.")
        x, y, classes = read_folder(source, names, options)
    parts = _cut(x, y, site) if held is None else (x, y, *held)
    images, labels, held_images, held_labels = parts
    scaled = (
        _scaled(images, site),
        np.asarray(labels, dtype=np.int64),
        _scaled(held_images, site),
        np.asarray(held_labels, dtype=np.int64),
    )
    found = max((int(y.max()) + 1 for y in (scaled[1], scaled[3]) if y.size), default=1)
    return scaled, _whole(site, "classes", classes or found, 1, MOST_CLASSES) or found


def _slice(site: SiteFile) -> tuple[Parts, int]:
    """Return one client's part of a known dataset, as a run on one machine would split it."""
    from flamma.data.build import build_federation

    options = dict(site.data)
    dataset, split = options.pop("dataset"), options.pop("split", "shards")
    number = _whole(site, "partition", None, 0, MOST_CLASSES)
    count = _whole(site, "partitions", None, 1, MOST_CLASSES)
    if number is None or count is None or number >= count:
        raise DataError(
            f"{site.path}: a slice is number `partition`, counted from 0, of `partitions`."
        )
    for key in ("partition", "partitions"):
        options.pop(key)
    folder = options.pop("data_dir", None)
    try:
        data = build_federation(
            dataset,
            split,
            count,
            options.pop("seed", 0),
            **options,
            data_dir=None if folder is None else Path(folder),
        )
    except TypeError as error:
        raise DataError(f"{site.path}: {error}.") from error
    own = slice(data.train_offsets[number], data.train_offsets[number + 1])
    held = slice(data.held_offsets[number], data.held_offsets[number + 1])
    parts = (data.train_x[own], data.train_y[own], data.held_x[held], data.held_y[held])
    return parts, data.classes


def _read_npz(
    path: Path,
) -> tuple[NDArray[Any], NDArray[Any], tuple[NDArray[Any], NDArray[Any]] | None]:
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in ("x", "y"):
                if name not in file:
                    raise DataError(f"{path} has no array {name}.")
            given = [name in file for name in ("held_x", "held_y")]
            if any(given) and not all(given):
                raise DataError(f"{path} needs both held_x and held_y, or neither.")
            held = (file["held_x"], file["held_y"]) if all(given) else None
            return file["x"], file["y"], held
    except FlammaError:
        raise
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise DataError(f"{path} cannot be read as npz without pickles: {error}.") from error
    except Exception as error:  # zipfile and zlib have errors of their own
        raise DataError(f"{path} is damaged: {error}.") from error


def _cut(x: NDArray[Any], y: NDArray[Any], site: SiteFile) -> Any:
    """Cut the held-out part off, class by class."""
    from flamma.data.build import held_out_mask
    from flamma.data.splits import SplitOptions

    share = site.data.get("held_out", 0.2)
    if not _is_number(share) or not 0 < share < 1:
        raise DataError(f"{site.path}: held_out must lie between 0 and 1, not {share!r}.")
    if y.ndim != 1 or len(x) != len(y) or len(y) < 2:
        raise DataError(
            f"{site.path}: there must be as many samples as labels, two at least, but their "
            f"shapes are {x.shape} and {y.shape}."
        )
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"{site.path}: labels must be whole numbers, not {y.dtype}.")
    options = SplitOptions(clients=1, seed=_whole(site, "seed", 0, 0, 2**31) or 0)
    labels = y.astype(np.int64)
    held = held_out_mask(np.zeros(labels.size, dtype=np.int64), labels, options, float(share))
    return x[~held], labels[~held], x[held], labels[held]


def _scaled(x: NDArray[Any], site: SiteFile) -> Images:
    """Return samples as float32: bytes divided by 255, then less ``mean`` and over ``std``."""
    if x.dtype == np.uint8:
        scaled: Images = x.astype(np.float32) / np.float32(255)
    elif np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer):
        scaled = np.asarray(x, dtype=np.float32)
    else:
        raise DataError(f"{site.path}: samples must be numbers, not {x.dtype}.")
    for key, apply in (("mean", np.subtract), ("std", np.divide)):
        values = site.data.get(key)
        if values is None:
            continue
        good = isinstance(values, list) and values and all(map(_is_number, values))
        channels = x.shape[1] if x.ndim > 1 else 1
        if not good or len(values) not in (1, channels) or (key == "std" and min(values) <= 0):
            raise DataError(f"{site.path}: {key} must be one number, or one for each channel.")
        column = np.array(values, dtype=np.float32).reshape(1, -1, *[1] * (x.ndim - 2))
        scaled = apply(scaled, column)
    return np.ascontiguousarray(scaled)


def _check(parts: Parts, classes: int, site: SiteFile) -> None:
    x, y, held_x, held_y = parts
    for images, labels, what in ((x, y, "x and y"), (held_x, held_y, "held_x and held_y")):
        if not 2 <= images.ndim <= 4 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(
                f"{site.path}: {what} must be (samples, features) or (samples, channels, height, "
                f"width) and as many labels, but have the shapes {images.shape} and {labels.shape}."
            )
        if not len(labels) or images.nbytes > LARGEST_ARRAY:
            raise DataError(f"{site.path}: {what} have no samples, or more than fit.")
        if labels.min() < 0 or labels.max() >= classes:
            raise DataError(
                f"{site.path}: labels must lie from 0 to {classes - 1}, but {what} have "
                f"{labels.min()} to {labels.max()}."
            )
        if not np.isfinite(images).all():
            raise DataError(f"{site.path}: {what} have a number that is not finite.")
    if x.shape[1:] != held_x.shape[1:]:
        raise DataError(
            f"{site.path}: training samples have the shape {x.shape[1:]}, held-out ones "
            f"{held_x.shape[1:]}."
        )


def _inside(site: SiteFile) -> Path:
    """Return where a site's data lie; a relative name must not lead out of the site's folder."""
    home, given = site.path.parent, Path(site.data[site.kind])
    path = home / given
    if not given.is_absolute() and not path.resolve().is_relative_to(home):
        raise DataError(
            f"{site.path}: {given} leads out of {home}: give the whole path if that is meant."
        )
    if not path.exists():
        raise DataError(f"{site.path}: there is no {path}.")
    return path


def _key(site: SiteFile) -> str:
    """Return what tells whether kept arrays are those of the site's data as they are now."""
    parts: list[Any] = [flamma.__version__, np.__version__, site.kind, dict(site.data)]
    if site.kind != "dataset":
        source = _inside(site)
        files = sorted(source.rglob("*")) if source.is_dir() else [source]
        stats = [(str(file), file.stat()) for file in files if file.is_file()]
        parts += [(name, about.st_size, about.st_mtime_ns) for name, about in stats]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _size(site: SiteFile) -> tuple[int, int] | None:
    value = site.data.get("size")
    if value is None:
        return None
    good = isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)
    if not good or not all(0 < v <= 4096 for v in value):
        raise DataError(f"{site.path}: size must be [height, width], not {value!r}.")
    return value[0], value[1]


def _whole(site: SiteFile, key: str, default: int | None, least: int, most: int) -> int | None:
    value = site.data.get(key, default)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        raise DataError(
            f"{site.path}: {key} must be a whole number from {least} to {most}, not {value!r}."
        )
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], path: Path) -> None:
    for key in table:
        if key not in known:
            raise DataError(f"{path}: {unknown('key', key, known)}")
