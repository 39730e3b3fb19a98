"""A site's ``site.toml``: its name, its cost, its behaviour, and where its data are.

A kind of source is a dataclass whose fields are the keys of the table ``[data]``. The file is
checked here; the data are read by ``site_data``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from flamma.clients.behaviours import BEHAVIOURS, Behaviour, make_behaviour
from flamma.data.build import DEFAULT_SPLIT, VALIDATION_SAMPLES, choose_split
from flamma.data.partition import HELD_OUT
from flamma.data.pictures import PictureOptions
from flamma.data.site_limits import SiteLimits
from flamma.data.site_preparations import SITE_PREPARATIONS
from flamma.errors import ConfigError, DataError
from flamma.names import SITE_NAME, unknown
from flamma.options import from_table
from flamma.registry import Choice
from flamma.tasks import DEFAULT_TASK, TASKS
from flamma.tasks.labels import MOST_CLASSES
from flamma.toml import read_toml


@dataclass(frozen=True, kw_only=True)
class OwnSamples:
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
        The :data:`preparation <flamma.data.site_preparations.SITE_PREPARATIONS>`, installed at
        the site, that samples and labels go through first, with its options.
    """

    held_out: float = HELD_OUT
    seed: int = 0
    classes: int | None = None
    task: str = DEFAULT_TASK
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    prepare: Annotated[Choice | None, SITE_PREPARATIONS] = None

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise DataError(f"data.held_out must lie between 0 and 1, not {self.held_out:g}.")
        if self.seed < 0:
            raise DataError(f"data.seed must be at least 0, not {self.seed}.")
        if self.classes is not None and not 1 <= self.classes <= MOST_CLASSES:
            raise DataError(f"data.classes must be from 1 to {MOST_CLASSES}, not {self.classes}.")
        if self.task not in TASKS:
            raise DataError(unknown("task", self.task, TASKS))
        if len(set(self.class_names)) != len(self.class_names):
            raise DataError("data.class_names must be different names.")
        if self.class_names and self.classes not in (None, len(self.class_names)):
            raise DataError(
                f"data.classes says {self.classes}, but data.class_names has "
                f"{len(self.class_names)}: leave out data.classes."
            )
        if self.std and min(self.std) <= 0:
            raise DataError(f"data.std must be positive, not {min(self.std):g}.")


@dataclass(frozen=True, kw_only=True)
class NpzFile(OwnSamples):
    """Arrays ``x`` and ``y``, and perhaps ``held_x`` and ``held_y``, in a file of numpy."""

    npz: str


@dataclass(frozen=True, kw_only=True)
class OwnPictures(PictureOptions, OwnSamples):
    """The keys of every source of a site's own pictures."""

    def __post_init__(self) -> None:
        OwnSamples.__post_init__(self)
        PictureOptions.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class ParquetFile(OwnPictures):
    """A parquet file with the columns ``image`` and ``label``."""

    parquet: str


@dataclass(frozen=True, kw_only=True)
class PictureFolder(OwnPictures):
    """A folder with one folder of pictures per class, which are sorted without ``class_names``."""

    folder: str


@dataclass(frozen=True, kw_only=True)
class TableFile(OwnSamples):
    """A CSV or parquet file, whose columns are declared in a file that all sites have.

    Parameters
    ----------
    columns : str
        The file with the :class:`~flamma.data.site_tables.DeclaredTable`.
    """

    table: str
    columns: str = "columns.toml"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("classes", "class_names", "mean", "std"):
            if getattr(self, key):
                raise DataError(f"data.{key} of a table stands in {self.columns}, not here.")


@dataclass(frozen=True, kw_only=True)
class DatasetSlice:
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


SiteSource = NpzFile | ParquetFile | PictureFolder | TableFile | DatasetSlice

SITE_SOURCES: dict[str, type[SiteSource]] = {
    "dataset": DatasetSlice,
    "npz": NpzFile,
    "parquet": ParquetFile,
    "folder": PictureFolder,
    "table": TableFile,
}
"""The kinds of sources by the key that a site names its data with."""


@dataclass(frozen=True)
class SiteFile:
    """A checked ``site.toml``.

    ``kind`` is the key of :data:`SITE_SOURCES` by which the file names its data. ``tells_cost`` is
    whether the server may know the site's cost. ``behaviour`` is what the key of that name says,
    honest without it. ``limits`` are what the site does at most for an order.
    """

    path: Path
    name: str
    cost: float | None
    tells_cost: bool
    kind: str
    source: SiteSource
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


def read_site(path: Path) -> SiteFile:
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
        kind, source = read_site_source(top.data)
    except (ConfigError, DataError) as error:
        raise DataError(f"{path}: {error}") from error
    own = (path.resolve(), top.name, top.cost, top.tell_cost)
    return SiteFile(*own, kind, source, behaviour, top.limits)


def read_site_source(table: Any, where: str = "data") -> tuple[str, SiteSource]:
    """Return the kind of a source and the source that a table describes.

    Raises
    ------
    FlammaError
        If it does not describe one.
    """
    named = [kind for kind in SITE_SOURCES if isinstance(table, Mapping) and kind in table]
    if len(named) != 1:
        raise DataError(f"[{where}] must have exactly one of the keys {', '.join(SITE_SOURCES)}.")
    kind = SITE_SOURCES[named[0]]
    options: dict[str, Any] = {}
    if kind is DatasetSlice:
        keys = [field.name for field in fields(kind) if field.name != "split"]
        options["split"], table = choose_split(table, keys)
    return named[0], kind(**options, **from_table(kind, table, f"{where}."))
