"""A site's own data, named by its ``site.toml``: arrays, pictures, or a slice of a dataset.

Everything stays on the site: training and held-out samples, and what an epoch costs it. What was
read once is kept beside the file as plain arrays, which the next process maps into its memory
instead of decoding everything anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import flamma
from flamma.data.federated import Images
from flamma.data.kept_arrays import keep, kept
from flamma.data.pictures import PictureOptions, read_folder, read_parquet
from flamma.data.site_files import SiteFile, read_site
from flamma.errors import DataError, FlammaError
from flamma.types import Ints

CACHE = ".arrays"
PARTS = ("x", "y", "held_x", "held_y")
MOST_CLASSES = 100_000
LARGEST_ARRAY = 32 * 1024**3

Parts = tuple[Images, Ints, Images, Ints]


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


def _read(site: SiteFile) -> tuple[Parts, int]:
    if site.kind == "dataset":
        return _slice(site)
    options = PictureOptions(site.size(), site.whole("channels", 1, 3))
    source, classes = site.source(), None
    held: tuple[NDArray[Any], NDArray[Any]] | None = None
    if site.kind == "npz":
        x, y, held = _read_npz(source)
    elif site.kind == "parquet":
        x, y = read_parquet(source, options)
    else:
        x, y, classes = read_folder(source, site.class_names(), options)
    parts = _cut(x, y, site) if held is None else (x, y, *held)
    images, labels, held_images, held_labels = parts
    scaled = (
        _scaled(images, site),
        np.asarray(labels, dtype=np.int64),
        _scaled(held_images, site),
        np.asarray(held_labels, dtype=np.int64),
    )
    found = max((int(y.max()) + 1 for y in (scaled[1], scaled[3]) if y.size), default=1)
    return scaled, site.whole("classes", 1, MOST_CLASSES, classes or found) or found


def _slice(site: SiteFile) -> tuple[Parts, int]:
    """Return one client's part of a known dataset, as a run on one machine would split it."""
    from flamma.data.build import build_federation

    options = dict(site.data)
    dataset, split = options.pop("dataset"), options.pop("split", "shards")
    number = site.whole("partition", 0, MOST_CLASSES)
    count = site.whole("partitions", 1, MOST_CLASSES)
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

    share = site.held_out()
    if y.ndim != 1 or len(x) != len(y) or len(y) < 2:
        raise DataError(
            f"{site.path}: there must be as many samples as labels, two at least, but their "
            f"shapes are {x.shape} and {y.shape}."
        )
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"{site.path}: labels must be whole numbers, not {y.dtype}.")
    seed = site.whole("seed", 0, 2**31) or 0
    labels = y.astype(np.int64)
    held = held_out_mask(np.zeros(labels.size, dtype=np.int64), labels, 1, seed, share)
    return x[~held], labels[~held], x[held], labels[held]


def _scaled(x: NDArray[Any], site: SiteFile) -> Images:
    """Return samples as float32: bytes divided by 255, then less ``mean`` and over ``std``."""
    if x.dtype == np.uint8:
        scaled: Images = x.astype(np.float32) / np.float32(255)
    elif np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer):
        scaled = np.asarray(x, dtype=np.float32)
    else:
        raise DataError(f"{site.path}: samples must be numbers, not {x.dtype}.")
    channels = x.shape[1] if x.ndim > 1 else 1
    for key, apply in (("mean", np.subtract), ("std", np.divide)):
        values = site.per_channel(key, channels)
        if values is None:
            continue
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


def _key(site: SiteFile) -> str:
    """Return what tells whether kept arrays are those of the site's data as they are now."""
    parts: list[Any] = [flamma.__version__, np.__version__, site.kind, dict(site.data)]
    if site.kind != "dataset":
        source = site.source()
        files = sorted(source.rglob("*")) if source.is_dir() else [source]
        stats = [(str(file), file.stat()) for file in files if file.is_file()]
        parts += [(name, about.st_size, about.st_mtime_ns) for name, about in stats]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
