"""What a site does at most for one order of the server, whatever the order says."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

import flamma
from flamma.clients.behaviours import BEHAVIOURS, Behaviour, make_behaviour
from flamma.data.build import DEFAULT_SPLIT, VALIDATION_SAMPLES, build_federation, choose_split
from flamma.data.datasets import DATASETS
from flamma.data.encoding import BYTE_SCALE, FeatureColumn, SampleEncoding
from flamma.data.own import (
    IMAGE_COLUMN,
    LABEL_COLUMN,
    GatheredSamples,
    gathered_arrays,
    gathered_npz,
    parquet_columns,
    table_columns,
)
from flamma.data.pictures import PictureOptions, read_folder
from flamma.data.splits import HELD_OUT, MIN_SAMPLES, held_out_mask
from flamma.data.tables import Array, Values, column_array, no_column, object_array, shown_names
from flamma.errors import DataError, FlammaError
from flamma.io import SITE_NAME, file_sha256, quoted, read_toml, unknown, write_atomically
from flamma.registry import Between, CheckedOptions, Choice, Registry, above, at_least, from_table
from flamma.tasks import DEFAULT_TASK, TASKS, Task
from flamma.tasks.base import MAX_CLASSES
from flamma.types import Inputs, Ints, LocalWork, Targets


class OverLimitError(DataError):
    """An order is more than the site does; the message says what was asked for."""


@dataclass(frozen=True)
class SiteLimits(CheckedOptions, within="limits.", error=DataError):
    """The table ``[limits]`` of a ``site.toml``, for one order each.

    Parameters
    ----------
    epochs : float
        The most epochs over the site's data, those for a personal model included; mini-batches
        of a warm-up count as the part of an epoch that they are.
    seconds : float
        The longest that training may take; 0 for no limit.
    bytes : int
        The most bytes that the weights of an order may take; 0 for no limit.
    """

    epochs: Annotated[float, Between(0, without="low", infinite=True)] = 1000.0
    seconds: Annotated[float, at_least(0)] = 0.0
    bytes: Annotated[int, at_least(0)] = 0

    def check_epochs(self, epochs: float) -> None:
        """Refuse an order of more epochs.

        Raises
        ------
        OverLimitError
            With both numbers.
        """
        if epochs > self.epochs:
            raise OverLimitError(
                f"the order is for {epochs:g} epochs, and this site does at most {self.epochs:g}"
            )

    def check_bytes(self, size: int) -> None:
        """Refuse an order of more bytes.

        Raises
        ------
        OverLimitError
            With both numbers.
        """
        if 0 < self.bytes < size:
            raise OverLimitError(
                f"the order has weights of {size:,} bytes, and this site takes at most "
                f"{self.bytes:,}"
            )

    def time_limit(self, other: float | None) -> float | None:
        """Return the shorter of this limit and another one; None if there is neither.

        Examples
        --------
        >>> SiteLimits(seconds=60.0).time_limit(None), SiteLimits(seconds=60.0).time_limit(20.0)
        (60.0, 20.0)
        """
        limits = [limit for limit in (self.seconds, other) if limit]
        return min(limits) if limits else None


UNLIMITED = SiteLimits(epochs=math.inf)
"""The limits of a simulated client."""


def epochs_of(task: LocalWork, samples: int, batch_size: int) -> float:
    """Return the epochs of a task; mini-batches are the part of one that they are of the samples.

    Examples
    --------
    >>> from flamma.types import Terms
    >>> epochs_of(LocalWork(Terms(0, 0, batches=5), epochs=0, learning_rate=0.1), 100, 10)
    0.5
    """
    if task.terms.batches is None:
        return task.epochs
    return task.terms.batches / max(1, math.ceil(samples / batch_size))


# What a site does to its own samples before anything else: code that is installed at the site.
#
# Only the site's own ``site.toml`` names it. A server can neither send code nor choose some.

_Preparation = Callable[..., tuple[Array, Array]]
"""Takes samples and labels as they were read, and returns those to use; keywords are options."""

SITE_PREPARATIONS: Registry[_Preparation] = Registry("preparation", "flamma.site_preparations", {})
"""All preparations that are installed, by name."""


def _prepared(choice: Choice, samples: GatheredSamples) -> GatheredSamples:
    """Return samples and labels as the chosen preparation makes them."""
    called = f"the preparation {choice.name}"
    try:
        x, y = SITE_PREPARATIONS.bind(choice)(samples.x, samples.y)
        x, y = np.asarray(x), np.asarray(y)
    except Exception as error:  # whatever a site's own code may do
        lines = str(error).splitlines() or [type(error).__name__]
        raise DataError(f"{called} failed: {lines[0].rstrip('.')}.") from error
    return gathered_arrays(x, y, f"samples of {called}")


# A site's ``site.toml``: its name, its cost, its behaviour, and where its data are.
#
# A kind of source is a dataclass whose fields are the keys of the table ``[data]``. The file is
# checked here; the data are read by :func:`load_site`.


@dataclass(frozen=True, kw_only=True)
class _OwnSamples(CheckedOptions, within="data.", error=DataError):
    """The keys of every source of a site's own samples.

    Parameters
    ----------
    held_out : float
        The share of the samples that is held out.
    seed : int
        The seed of which samples are held out.
    classes : int
        The number of classes; by default one more than the largest label.
    task : str
        What is to be predicted: ``classification``, ``regression`` or ``next-token``.
    mean, std : list of float
        Subtracted from the samples, and what they are then divided by: one number, or one for
        each channel.
    class_names : list of str
        What classes are called, in the order of their labels; sites must agree on them.
    prepare : str or table
        The :data:`preparation <flamma.data.sites.SITE_PREPARATIONS>`, installed at
        the site, that samples and labels go through first, with its options.
    """

    held_out: Annotated[float, Between(0, 1, without="both")] = HELD_OUT
    seed: Annotated[int, at_least(0)] = 0
    classes: Annotated[int | None, Between(1, MAX_CLASSES)] = None
    task: str = DEFAULT_TASK
    mean: tuple[float, ...] = ()
    std: Annotated[tuple[float, ...], above(0)] = ()
    class_names: tuple[str, ...] = ()
    prepare: Annotated[Choice | None, SITE_PREPARATIONS] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task not in TASKS:
            raise DataError(unknown("task", self.task, TASKS))
        if len(set(self.class_names)) != len(self.class_names):
            raise DataError("data.class_names must be different names.")
        if self.class_names and self.classes not in (None, len(self.class_names)):
            raise DataError(
                f"data.classes says {self.classes}, but data.class_names has "
                f"{len(self.class_names)}: leave out data.classes."
            )


@dataclass(frozen=True, kw_only=True)
class _NpzFile(_OwnSamples):
    """Arrays ``x`` and ``y``, and perhaps ``held_x`` and ``held_y``, in a file of numpy."""

    npz: str


@dataclass(frozen=True, kw_only=True)
class _ParquetFile(PictureOptions, _OwnSamples):
    """A parquet file with the columns ``image`` and ``label``."""

    parquet: str


@dataclass(frozen=True, kw_only=True)
class _PictureFolder(PictureOptions, _OwnSamples):
    """A folder with one folder of pictures per class, which are sorted without ``class_names``."""

    folder: str


@dataclass(frozen=True, kw_only=True)
class _TableFile(_OwnSamples):
    """A CSV or parquet file, whose columns are declared in a file that all sites have.

    Parameters
    ----------
    columns : str
        The file with the :class:`~flamma.data.sites.DeclaredTable`.
    """

    table: str
    columns: str = "columns.toml"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("classes", "class_names", "mean", "std"):
            if getattr(self, key):
                raise DataError(f"data.{key} of a table stands in {self.columns}, not here.")


@dataclass(frozen=True, kw_only=True)
class _DatasetSlice:
    """One client's part of a registered dataset, as a run on one machine would split it.

    Parameters
    ----------
    split : str
        The split; its options are further keys of the table.
    partition, partitions : int
        Which client this is, counted from 0, and how many there are.
    """

    dataset: str
    split: Choice = DEFAULT_SPLIT
    partition: int = -1
    partitions: int = 0
    seed: int = 0
    held_out: float = HELD_OUT
    train_samples: int | None = None
    validation_samples: int = VALIDATION_SAMPLES
    data_dir: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.partition < self.partitions:
            raise DataError(
                "data.partition is the number of this client, counted from 0, and must be below "
                "data.partitions, the number of clients."
            )


_SiteSource = _NpzFile | _ParquetFile | _PictureFolder | _TableFile | _DatasetSlice

_SITE_SOURCES: dict[str, type[_SiteSource]] = {
    "dataset": _DatasetSlice,
    "npz": _NpzFile,
    "parquet": _ParquetFile,
    "folder": _PictureFolder,
    "table": _TableFile,
}
"""The kinds of sources by the key that a site names its data with."""


@dataclass(frozen=True)
class _SiteFile:
    """A checked ``site.toml``.

    ``kind`` is the key of :data:`_SITE_SOURCES` by which the file names its data. ``tells_cost`` is
    whether the server may know the site's cost. ``behaviour`` is what the key of that name says,
    honest without it. ``limits`` are what the site does at most for an order.
    """

    path: Path
    name: str
    cost: float | None
    tells_cost: bool
    kind: str
    source: _SiteSource
    behaviour: Behaviour = field(default_factory=Behaviour)
    limits: SiteLimits = field(default_factory=SiteLimits)

    def data_path(self, key: str = "") -> Path:
        """Return where the site's own data are, or what another key of ``[data]`` names.

        Raises
        ------
        DataError
            If there is nothing, or a relative path leads out of the site's folder.
        """
        key = key or self.kind
        home, given = self.path.parent, Path(getattr(self.source, key))
        path = home / given
        try:
            leads_out = not given.is_absolute() and not path.resolve().is_relative_to(home)
            exists = path.exists()
        except (OSError, ValueError, RuntimeError) as error:  # a name that no file can have
            raise DataError(f"data.{key} cannot be used: {error}.") from error
        if leads_out:
            raise DataError(
                f"data.{key} leads out of {home}: give the absolute path if you mean that."
            )
        if not exists:
            raise DataError(f"data.{key} names {path}, which does not exist.")
        return path


@dataclass(frozen=True)
class _Top:
    name: str = ""
    cost: float | None = None
    tell_cost: bool = False
    behaviour: Any = "honest"
    data: Any = None
    limits: SiteLimits = field(default_factory=SiteLimits)


def read_site(path: Path) -> _SiteFile:
    """Return a site's file, checked, without reading its data.

    Raises
    ------
    DataError
        If the file cannot be used; one sentence names the file and the key.
    """
    table = read_toml(path)
    try:
        top = _Top(**from_table(_Top, table))
        if not SITE_NAME.fullmatch(top.name):
            raise DataError(
                f"name must be lower-case letters, digits and hyphens, at most 40, not "
                f"{top.name!r}."
            )
        if top.cost is not None and top.cost <= 0:
            raise DataError(f"cost must be positive, not {top.cost:g}.")
        behaviour = make_behaviour(BEHAVIOURS.choose(top.behaviour, "behaviour"), "behaviour")
        kind, source = _read_site_source(top.data)
    except FlammaError as error:
        raise DataError(f"{path}: {error}") from error
    own = (path.resolve(), top.name, top.cost, top.tell_cost)
    return _SiteFile(*own, kind, source, behaviour, top.limits)


def _read_site_source(table: Any, where: str = "data") -> tuple[str, _SiteSource]:
    """Return the kind of a source and the source that a table describes.

    Raises
    ------
    FlammaError
        If it does not describe one.
    """
    named = [kind for kind in _SITE_SOURCES if isinstance(table, Mapping) and kind in table]
    if len(named) != 1:
        raise DataError(f"[{where}] must have exactly one of the keys {', '.join(_SITE_SOURCES)}.")
    kind = _SITE_SOURCES[named[0]]
    options: dict[str, Any] = {}
    if kind is _DatasetSlice:
        keys = [field.name for field in fields(kind) if field.name != "split"]
        options["split"], table = choose_split(table, keys)
    return named[0], kind(**options, **from_table(kind, table, f"{where}."))


# A site's table: CSV or parquet, read by columns that the whole federation has declared.
#
# Categories and standardisation must be the same at all sites, and no site sees the others' rows.
# So a file, the same at all sites, declares the columns. Sites tell its SHA-256 as they introduce
# themselves, and those with another one are refused.


@dataclass(frozen=True)
class _DeclaredColumn:
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
    columns: tuple[_DeclaredColumn, ...] = ()

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
        declared = asdict(replace(self, classes=self.labels))
        return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()

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
    except FlammaError as error:
        raise DataError(f"{path.name}: {error}") from error


def _read_table(path: Path, declared: DeclaredTable) -> GatheredSamples:
    """Return the samples of a table, encoded as declared; targets are numbered if classes are."""
    columns, _ = table_columns(path, texts=declared.texts)
    used = {}
    for name in (declared.target, *(column.name for column in declared.columns)):
        if name not in columns:
            raise DataError(f"{path.name}: {no_column(name, list(columns))}")
        used[name] = _texts(columns[name], name) if name in declared.texts else columns[name]
    for column in declared.columns:
        if column.categories:
            _places(column_array(used[column.name], column.name), column.name, column.categories)
    y = column_array(used.pop(declared.target), declared.target)
    if declared.classes:
        y = _places(y, declared.target, declared.labels)
    return GatheredSamples(declared.encoding.encode(used), y, declared.encoding)


def _texts(values: Values, name: str) -> Array:
    """Return a column as texts: whole numbers and truth values of a parquet file have theirs."""
    array = column_array(values, name)
    if array.dtype.kind == "f":
        raise DataError(
            f"column {quoted(name)} has floating-point numbers, but is declared as one of "
            f"categories: make them whole numbers or texts."
        )
    written = [str(value) for value in array.tolist()]
    return object_array([t.lower() for t in written] if array.dtype.kind == "b" else written)


def _places(values: Array, name: str, declared: tuple[str, ...]) -> Ints:
    """Return where each text stands among those that are declared."""
    places = {text: place for place, text in enumerate(declared)}
    strangers = sorted(set(values.tolist()) - places.keys())
    if strangers:
        raise DataError(
            f"column {quoted(name)} has {shown_names(strangers)}, but declared are "
            f"{shown_names(declared)}."
        )
    return np.array([places[value] for value in values.tolist()], dtype=np.int64)


# A cache of arrays on disk, which the next process maps into memory instead of decoding again.
#
# The record of a cache has the SHA-256 of every array, and of itself. All are verified when the
# arrays are loaded, so a damaged cache is never taken for the data.

CACHE_FOLDER, CACHE_RECORD = ".arrays", "about.json"
_CACHE_FORM = 3
"""What tells a cache of today from those with other values beside the arrays."""
_CACHED_ARRAYS = ("x", "y", "held_x", "held_y")

Parts = tuple[Inputs, Targets, Inputs, Targets]
"""Training samples and targets, held-out samples and targets."""


class SiteClasses(NamedTuple):
    """What sites must agree on: how many classes there are, what they are called, the columns.

    ``labels`` are empty if classes have numbers only, and ``columns_sha256`` is of the declared
    columns of a table.
    """

    classes: int
    labels: tuple[str, ...] = ()
    columns_sha256: str = ""


_log = logging.getLogger(__name__)


def _store_arrays(folder: Path, key: str, parts: Parts, agreed: SiteClasses) -> None:
    """Store a site's arrays and what is known of them under a key, in place of what is there.

    If the folder cannot be written, nothing is cached and no error is raised.
    """
    try:
        digests = {}
        for name, array in zip(_CACHED_ARRAYS, parts, strict=True):
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            digests[name] = hashlib.sha256(buffer.getbuffer()).hexdigest()
            write_atomically(folder / f"{key[:16]}-{name}.npy", buffer.getbuffer(), durable=False)
        record = {"key": key, "agreed": agreed, "arrays": digests}
        checked = json.dumps({**record, "sha256": _checksum(record)})
        write_atomically(folder / CACHE_RECORD, checked.encode(), durable=False)
        for old in folder.glob("*.npy"):
            if not old.name.startswith(key[:16]):
                old.unlink(missing_ok=True)
    except (FlammaError, OSError):
        return


def _cached_arrays(folder: Path, key: str) -> tuple[Parts, SiteClasses] | None:
    """Return the arrays stored under this key and what is known of them, None if not usable.

    The arrays are mapped copy-on-write: changing them does not change the files. If the cache is
    damaged, a warning is logged.
    """
    try:
        content = (folder / CACHE_RECORD).read_bytes()
    except OSError:
        return None  # nothing was cached
    try:
        record = json.loads(content)
        if record.pop("sha256") != _checksum(record):
            raise ValueError("the checksum of its record is another")
        if record["key"] != key:
            return None  # the cache of other data or options
        arrays = []
        for name in _CACHED_ARRAYS:
            path = folder / f"{key[:16]}-{name}.npy"
            if file_sha256(path) != record["arrays"][name]:
                raise ValueError(f"the checksum of {path.name} is another")
            arrays.append(np.load(path, mmap_mode="c", allow_pickle=False))
        x, y, held_x, held_y = arrays
        classes, labels, columns_sha256 = record["agreed"]
        return (x, y, held_x, held_y), SiteClasses(classes, tuple(labels), columns_sha256)
    except Exception as error:  # whatever the damage is, the data themselves are read again
        reason = str(error) or type(error).__name__
        _log.warning("the cache %s is damaged (%s): the data are read again", folder, reason)
        return None


def _checksum(record: object) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


# Loads a site's data as its ``site.toml`` says: arrays, pictures, a table, part of a dataset.
#
# The data stay on the site. They are cached beside the file as plain arrays, which the next
# process maps into memory instead of decoding everything again.


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's name, its cost if it gives one, and its training and held-out data.

    ``agreed`` is what sites must agree on. ``tells_cost`` is whether the server may know the cost.
    ``behaviour`` is honest, except in tests of a federation. ``limits`` are what the site does
    at most for an order.
    """

    name: str
    cost: float | None
    x: Inputs
    y: Targets
    held_x: Inputs
    held_y: Targets
    agreed: SiteClasses
    tells_cost: bool = False
    behaviour: Behaviour = field(default_factory=Behaviour)
    task: str = DEFAULT_TASK
    limits: SiteLimits = field(default_factory=SiteLimits)

    @property
    def classes(self) -> int:
        """How many numbers a model gives for each prediction."""
        return self.agreed.classes

    @property
    def labels(self) -> tuple[str, ...]:
        """What classes are called; empty if they have numbers only."""
        return self.agreed.labels

    @property
    def columns_sha256(self) -> str:
        """The checksum of a table's declared columns."""
        return self.agreed.columns_sha256

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
    folder = site.path.parent / CACHE_FOLDER
    source = site.source
    try:
        task = DATASETS[source.dataset].task if isinstance(source, _DatasetSlice) else source.task
        key = _cache_key(site)
        found = _cached_arrays(folder, key)
        if found is None:
            found = _read(site, task)
            _store_arrays(folder, key, *found)
    except FlammaError as error:
        raise DataError(f"{site.path}: {error}") from error
    (x, y, held_x, held_y), agreed = found
    return SiteData(
        site.name,
        site.cost,
        x,
        y,
        held_x,
        held_y,
        agreed,
        site.tells_cost,
        site.behaviour,
        task,
        site.limits,
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
            raise DataError(f"[{where}] names data of one's own, by npz, parquet, folder or table.")
        kind, source = _read_site_source(table, where)
        assert not isinstance(source, _DatasetSlice)  # a table that names a dataset is refused
        parts, _ = _read(_SiteFile(path.resolve(), "", None, False, kind, source), source.task)
    except FlammaError as error:
        raise DataError(f"{path}: {error}") from error
    return np.concatenate([parts[0], parts[2]]), np.concatenate([parts[1], parts[3]])


def _read(site: _SiteFile, task_name: str) -> tuple[Parts, SiteClasses]:
    """Return what a site trains on and holds out, and the values that are cached beside them."""
    source, task = site.source, TASKS[task_name]
    if isinstance(source, _DatasetSlice):
        parts, classes = _slice(source)
        agreed = SiteClasses(classes)
    else:
        samples, labels, digest = _own_samples(site, source)
        parts = _own_parts(samples, source, task)
        found = max(task.outputs(x, y) for x, y in (parts[:2], parts[2:]))
        agreed = SiteClasses(source.classes or len(labels) or found, labels, digest)
    for x, y, what in ((*parts[:2], "x and y"), (*parts[2:], "held_x and held_y")):
        if not 2 <= x.ndim <= 4 or (task.labels_samples and y.ndim != 1):
            raise DataError(
                f"{what} must be (samples, features) or (samples, channels, height, width) and as "
                f"many labels, but have the shapes {x.shape} and {y.shape}."
            )
        if not len(y):
            raise DataError(f"{what} have no samples.")
        predicted = y[y != task.ignored] if y.dtype.kind == "i" else y[:0]
        if predicted.size and (predicted.min() < 0 or predicted.max() >= agreed.classes):
            raise DataError(
                f"labels must lie from 0 to {agreed.classes - 1}, but {what} have "
                f"{predicted.min()} to {predicted.max()}."
            )
    return parts, agreed


def _own_samples(
    site: _SiteFile, source: _OwnSamples
) -> tuple[GatheredSamples, tuple[str, ...], str]:
    """Return a site's samples, what classes are called, and the checksum of declared columns."""
    path, names = site.data_path(), source.class_names
    if isinstance(source, _NpzFile):
        return gathered_npz(path), names, ""
    if isinstance(source, _ParquetFile):
        columns = parquet_columns(path, source, (IMAGE_COLUMN, LABEL_COLUMN))
        return gathered_arrays(columns[IMAGE_COLUMN], columns[LABEL_COLUMN]), names, ""
    if isinstance(source, _PictureFolder):
        x, y, names = read_folder(path, names, source)
        return gathered_arrays(x, y), names, ""
    assert isinstance(source, _TableFile)
    declared = read_declared(site.data_path("columns"))
    if bool(declared.classes) != TASKS[source.task].labels_samples:
        raise DataError(
            f"{source.columns} {'has' if declared.classes else 'needs'} classes, but the task is "
            f"{source.task}: change data.task or the file."
        )
    return _read_table(path, declared), declared.labels, declared.sha256


def _own_parts(samples: GatheredSamples, source: _OwnSamples, task: Task) -> Parts:
    """Return the samples to train on and those that are held out, prepared and scaled."""
    test = samples.test
    if source.prepare is not None:
        samples = _prepared(source.prepare, samples)
        test = None if test is None else _prepared(source.prepare, test)
    x, y = samples.x, task.targets(samples.y, "labels")
    if test is not None:
        held_x, held_y = test.x, task.targets(test.y, "held-out labels")
    elif (task.labels_samples and y.ndim != 1) or len(y) < MIN_SAMPLES:
        raise DataError(
            f"there must be a label for each sample, and at least two of them, but their shapes "
            f"are {x.shape} and {y.shape}."
        )
    else:
        owners = np.zeros(len(y), dtype=np.int64)
        classes = y if task.labels_samples else owners
        held = held_out_mask(owners, classes, 1, source.seed, source.held_out)
        x, y, held_x, held_y = x[~held], y[~held], x[held], y[held]
    if held_x.shape[1:] != x.shape[1:]:
        raise DataError(
            f"training samples have the shape {x.shape[1:]}, held-out samples {held_x.shape[1:]}."
        )
    if task.takes_tokens or isinstance(source, _TableFile):
        return task.inputs(x), y, task.inputs(held_x), held_y
    encoding = _encoding_of(samples, source)
    return encoding.applied(x), y, encoding.applied(held_x), held_y


def _encoding_of(samples: GatheredSamples, source: _OwnSamples) -> SampleEncoding:
    """Return what scales samples: bytes to 0 to 1, then all by the file's mean and std.

    Whole numbers that may be token ids stay what they are, unless they are standardised.
    """
    encoding, channels = samples.encoding, samples.x.shape[1]
    for key in ("mean", "std"):
        if len(values := getattr(source, key)) not in (0, 1, channels):
            raise DataError(
                f"data.{key} must be one number, or one for each of {channels} channels, not "
                f"{len(values)}."
            )
    if samples.x.dtype == np.uint8:
        encoding = replace(encoding, dtype="float32", scale=BYTE_SCALE)
    if not (source.mean or source.std):
        return encoding
    mean, std = np.resize(source.mean or 0.0, channels), np.resize(source.std or 1.0, channels)
    moments = (tuple(mean.tolist()), tuple(std.tolist()))
    return replace(encoding, dtype="float32", mean=moments[0], std=moments[1])


def _slice(source: _DatasetSlice) -> tuple[Parts, int]:
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


def _cache_key(site: _SiteFile) -> str:
    """Return a key that changes with the options, the data files, the code and the versions."""
    source = site.source
    parts: list[Any] = [flamma.__version__, np.__version__, _CACHE_FORM, site.kind, asdict(source)]
    if not isinstance(source, _DatasetSlice):
        path = site.data_path()
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        if isinstance(source, _TableFile):
            files.append(site.data_path("columns"))
        if source.prepare is not None:
            code = inspect.getmodule(SITE_PREPARATIONS[source.prepare.name])
            files.append(Path(getattr(code, "__file__", None) or ""))
        stats = [(str(file), file.stat()) for file in files if file.is_file()]
        parts += [(name, about.st_size, about.st_mtime_ns) for name, about in stats]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
