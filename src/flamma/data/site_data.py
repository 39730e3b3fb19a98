"""Loads a site's data as its ``site.toml`` says: arrays, pictures, a table, part of a dataset.

The data stay on the site. They are cached beside the file as plain arrays, which the next process
maps into memory instead of decoding everything again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import flamma
from flamma.clients.behaviours import Behaviour
from flamma.data.build import build_federation
from flamma.data.cache import cached_arrays, store_arrays
from flamma.data.datasets import DATASETS
from flamma.data.encoding import BYTE_SCALE, SIXTEEN_BIT_SCALE
from flamma.data.npz_files import read_npz
from flamma.data.partition import held_out_mask
from flamma.data.pictures import read_folder, read_parquet
from flamma.data.site_files import (
    DatasetSlice,
    NpzFile,
    OwnPictures,
    OwnSamples,
    ParquetFile,
    PictureFolder,
    SiteFile,
    TableFile,
    read_site,
    read_site_source,
)
from flamma.data.site_limits import SiteLimits
from flamma.data.site_preparations import prepared, source_state
from flamma.data.site_tables import read_declared, read_table
from flamma.errors import ConfigError, DataError
from flamma.tasks import DEFAULT_TASK, TASKS, Task
from flamma.types import Inputs, Targets

CACHE_FOLDER = ".arrays"
CACHE_FORM = 2
"""What tells a cache of today from those with other values beside the arrays."""
CACHED_ARRAYS = ("x", "y", "held_x", "held_y")
LARGEST_ARRAY_BYTES = 32 * 1024**3

Parts = tuple[Inputs, Targets, Inputs, Targets]
"""Training samples and targets, held-out samples and targets."""


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's name, its cost if it gives one, and its training and held-out data.

    ``tells_cost`` is whether the server may know the cost. ``behaviour`` is honest but in a test
    of one's own federation. ``labels`` are what classes are called, empty if they have numbers
    only, and ``columns_sha256`` is of a table's declared columns. ``limits`` are what it does at
    most for an order.
    """

    name: str
    cost: float | None
    x: Inputs
    y: Targets
    held_x: Inputs
    held_y: Targets
    classes: int
    tells_cost: bool = False
    behaviour: Behaviour = field(default_factory=Behaviour)
    task: str = DEFAULT_TASK
    labels: tuple[str, ...] = ()
    columns_sha256: str = ""
    limits: SiteLimits = field(default_factory=SiteLimits)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])


def load_site(path: str | Path) -> SiteData:
    """Return the data of the site with this ``site.toml``.

    The held-out part is stratified by class, and the same every time.

    Raises
    ------
    DataError
        If the file or the data it names cannot be used; one sentence names the file and why.
    """
    site = read_site(Path(path))
    try:
        parts, about = _load(site)
    except (ConfigError, DataError) as error:
        raise DataError(f"{site.path}: {error}") from error
    told = (site.tells_cost, site.behaviour, task_of(site.source))
    labels, digest = tuple(about["labels"]), about["columns_sha256"]
    return SiteData(
        site.name, site.cost, *parts, about["classes"], *told, labels, digest, site.limits
    )


def all_samples(path: Path, table: Mapping[str, Any], where: str) -> tuple[Inputs, Targets]:
    """Return all samples and targets of a source that a table of another file names.

    Parameters
    ----------
    path : Path
        That file; relative names of data start at its folder.
    table : mapping
        The table, with the keys of the table ``[data]`` of a ``site.toml``.
    where : str
        What the table is called.

    Raises
    ------
    DataError
        If the table or the data it names cannot be used.
    """
    try:
        if "dataset" in table:
            raise DataError(f"[{where}] names data of one's own, by npz, parquet or folder.")
        kind, source = read_site_source(table, where)
        site = SiteFile(path.resolve(), "", None, False, kind, source)
        assert not isinstance(source, DatasetSlice)  # a table that names a dataset is refused above
        parts, classes = _own_parts(_read(site, source), source)
        _check(parts, classes, TASKS[task_of(source)])
    except (ConfigError, DataError) as error:
        raise DataError(f"{path}: {error}") from error
    return np.concatenate([parts[0], parts[2]]), np.concatenate([parts[1], parts[3]])


def _load(site: SiteFile) -> tuple[Parts, dict[str, Any]]:
    folder, key = site.path.parent / CACHE_FOLDER, _cache_key(site)
    found = cached_arrays(folder, key, CACHED_ARRAYS)
    if found is not None:
        (x, y, held_x, held_y), about = found
        return (x, y, held_x, held_y), about
    about = {"labels": (), "columns_sha256": ""}
    if isinstance(site.source, DatasetSlice):
        parts, about["classes"] = _slice(site.source)
    else:
        samples = _read(site, site.source)
        parts, about["classes"] = _own_parts(samples, site.source)
        about |= {"labels": samples.labels, "columns_sha256": samples.columns_sha256}
    _check(parts, about["classes"], TASKS[task_of(site.source)])
    store_arrays(folder, key, dict(zip(CACHED_ARRAYS, parts, strict=True)), about)
    return parts, about


@dataclass(frozen=True, eq=False)
class _SamplesRead:
    """A site's own samples as they were read, before any are held out."""

    x: NDArray[Any]
    y: NDArray[Any]
    held: tuple[NDArray[Any], NDArray[Any]] | None = None
    labels: tuple[str, ...] = ()
    columns_sha256: str = ""


def _read(site: SiteFile, source: OwnSamples) -> _SamplesRead:
    path, names = site.data_path(), source.class_names
    if isinstance(source, NpzFile):
        return _SamplesRead(*read_npz(path), labels=names)
    if isinstance(source, ParquetFile):
        return _SamplesRead(*read_parquet(path, source), labels=names)
    if isinstance(source, TableFile):
        declared = read_declared(site.data_path("columns"))
        if bool(declared.classes) != TASKS[source.task].labels_samples:
            raise DataError(
                f"{source.columns} {'has' if declared.classes else 'needs'} classes, but the task "
                f"is {source.task}: change data.task or the file."
            )
        samples = read_table(path, declared)
        return _SamplesRead(*samples, labels=declared.labels, columns_sha256=declared.sha256)
    assert isinstance(source, PictureFolder)
    x, y, names = read_folder(path, names, source)
    return _SamplesRead(x, y, labels=names)


def _own_parts(samples: _SamplesRead, source: OwnSamples) -> tuple[Parts, int]:
    """Return what a site trains on and what it holds out, and the number of classes."""
    task = TASKS[source.task]
    x, y = prepared(source.prepare, samples.x, samples.y)
    labels = task.targets(y, "labels")
    if samples.held is None:
        x, labels, held_x, held_labels = _hold_out(x, labels, source)
    else:
        held_x, held_y = prepared(source.prepare, *samples.held)
        held_labels = task.targets(held_y, "held-out labels")
    parts = (_scaled(x, source), labels, _scaled(held_x, source), held_labels)
    pairs = ((parts[0], labels), (parts[2], held_labels))
    found = max((task.outputs(x, y) for x, y in pairs if len(y)), default=1)
    return parts, source.classes or len(samples.labels) or found


def _slice(source: DatasetSlice) -> tuple[Parts, int]:
    data = build_federation(
        source.dataset,
        source.split,
        source.partitions,
        source.seed,
        train_samples=source.train_samples,
        validation_samples=source.validation_samples,
        held_out=source.held_out,
        data_dir=Path(source.data_dir) if source.data_dir else None,
    )
    number = source.partition
    own = slice(data.train_offsets[number], data.train_offsets[number + 1])
    held = slice(data.held_offsets[number], data.held_offsets[number + 1])
    parts = (data.train_x[own], data.train_y[own], data.held_x[held], data.held_y[held])
    return parts, data.classes


def _hold_out(
    x: NDArray[Any], y: Targets, source: OwnSamples
) -> tuple[NDArray[Any], Targets, NDArray[Any], Targets]:
    labelled = TASKS[source.task].labels_samples
    if (labelled and y.ndim != 1) or x.shape[:1] != y.shape[:1] or len(y) < 2:
        raise DataError(
            f"there must be as many samples as labels, and at least two, but their shapes are "
            f"{x.shape} and {y.shape}."
        )
    owners = np.zeros(len(y), dtype=np.int64)
    classes = y if labelled else owners
    held = held_out_mask(owners, classes, 1, source.seed, source.held_out)
    return x[~held], y[~held], x[held], y[held]


def _scaled(x: NDArray[Any], source: OwnSamples) -> Inputs:
    """Return samples as float32: pictures from 0 to 1, then standardised by mean and std.

    Whole numbers that may be token ids stay what they are, unless they are standardised.
    """
    task = TASKS[source.task]
    if x.dtype == np.uint16 and isinstance(source, OwnPictures):
        x = x.astype(np.float32) / np.float32(SIXTEEN_BIT_SCALE)
    tokens = x.dtype.kind in "iu" and not (source.mean or source.std)
    if task.takes_tokens or (tokens and x.dtype != np.uint8):
        return np.ascontiguousarray(task.inputs(x))
    if x.dtype == np.uint8:
        scaled: Inputs = x.astype(np.float32) / np.float32(BYTE_SCALE)
    elif np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer):
        scaled = np.asarray(x, dtype=np.float32)
    else:
        raise DataError(f"samples must be numbers, not {x.dtype}.")
    channels = x.shape[1] if x.ndim > 1 else 1
    for key, apply in (("mean", np.subtract), ("std", np.divide)):
        values = getattr(source, key)
        if not values:
            continue
        if len(values) not in (1, channels):
            raise DataError(
                f"data.{key} must be one number, or one for each of {channels} channels, not "
                f"{len(values)}."
            )
        column = np.array(values, dtype=np.float32).reshape(1, -1, *[1] * (x.ndim - 2))
        scaled = apply(scaled, column)
    return np.ascontiguousarray(scaled)


def _check(parts: Parts, classes: int, task: Task) -> None:
    x, y, held_x, held_y = parts
    for images, labels, what in ((x, y, "x and y"), (held_x, held_y, "held_x and held_y")):
        wrong_labels = task.labels_samples and labels.ndim != 1
        if not 2 <= images.ndim <= 4 or wrong_labels or len(images) != len(labels):
            raise DataError(
                f"{what} must be (samples, features) or (samples, channels, height, width) and as "
                f"many labels, but have the shapes {images.shape} and {labels.shape}."
            )
        if not len(labels):
            raise DataError(f"{what} have no samples.")
        if images.nbytes > LARGEST_ARRAY_BYTES:
            raise DataError(f"{what} have more than {LARGEST_ARRAY_BYTES // 1024**3} GiB.")
        predicted = labels[labels != task.ignored] if labels.dtype.kind == "i" else labels[:0]
        if predicted.size and (predicted.min() < 0 or predicted.max() >= classes):
            raise DataError(
                f"labels must lie from 0 to {classes - 1}, but {what} have {predicted.min()} "
                f"to {predicted.max()}."
            )
        if not np.isfinite(images).all():
            raise DataError(f"{what} have a value that is not finite.")
    if x.shape[1:] != held_x.shape[1:]:
        raise DataError(
            f"training samples have the shape {x.shape[1:]}, held-out samples {held_x.shape[1:]}."
        )


def task_of(source: OwnSamples | DatasetSlice) -> str:
    """Return the task of a site's data: what its file says, or that of the dataset."""
    if isinstance(source, DatasetSlice):
        return DATASETS[source.dataset].task
    return source.task


def _cache_key(site: SiteFile) -> str:
    """Return a key that changes with the options, the data files and the versions."""
    versions = (flamma.__version__, np.__version__, CACHE_FORM)
    parts: list[Any] = [*versions, site.kind, asdict(site.source)]
    if not isinstance(site.source, DatasetSlice):
        path = site.data_path()
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        if isinstance(site.source, TableFile):
            files.append(site.data_path("columns"))
        parts += source_state(site.source.prepare)
        stats = [(str(file), file.stat()) for file in files if file.is_file()]
        parts += [(name, about.st_size, about.st_mtime_ns) for name, about in stats]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
