"""Fetches the files of a dataset: tries its sources in order, and checks every checksum."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flamma.data.archives import LARGEST_EXTRACTED_FILE, extract, gunzip, is_package
from flamma.data.records import DataFile, DatasetEntry, Recipe
from flamma.data.sources import Folder, Source
from flamma.data.store import is_file_of, is_present
from flamma.errors import DataError
from flamma.files import write_atomically

SEARCH_DEPTH = 4
"""How many levels of folders below the given one are searched."""

Say = Callable[[str], None]
"""Called with a sentence on what is being tried."""

Places = dict[str, list[Path]]


@dataclass(frozen=True)
class Delivery:
    """The files that came from one source, their size in bytes, and the seconds it took."""

    source: str
    files: tuple[str, ...]
    size: int
    seconds: float


def fetch(
    name: str,
    entry: DatasetEntry,
    folder: Path,
    from_folder: Path | None = None,
    say: Say = lambda _: None,
) -> list[Delivery]:
    """Fetch the files of a dataset that are missing or damaged into its folder.

    Parameters
    ----------
    name : str
        The name of the dataset, for messages.
    entry : DatasetEntry
        Its files and sources.
    folder : Path
        The folder of its files. Each is written under a temporary name and then renamed.
    from_folder : Path, optional
        Look only here, for decoded files, .gz files or packages.
    say : callable
        Called with what is being tried.

    Returns
    -------
    list of Delivery
        Empty if everything was there already.

    Raises
    ------
    DataError
        If a file cannot be fetched; the message says why each source failed.
    """
    missing = [file for file in entry.files if not is_present(folder, file)]
    deliveries: list[Delivery] = []
    failures: list[str] = []
    sources = entry.sources if from_folder is None else (Folder(from_folder),)
    for source in sources:
        if not missing:
            break
        say(f"{name}: trying {source.title}")
        delivery, problems = _try(source, missing, folder)
        failures += [f"{source.title}: {problem}" for problem in problems]
        if delivery.files:
            deliveries.append(delivery)
        missing = [file for file in missing if file.name not in delivery.files]
    if missing:
        raise DataError(_cannot(name, missing, failures))
    return deliveries


def _try(source: Source, wanted: Sequence[DataFile], folder: Path) -> tuple[Delivery, list[str]]:
    """Store the wanted files that a source has; return what was wrong with the others."""
    start = time.monotonic()
    taken: list[DataFile] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="flamma-") as temporary:
        delivered, scratch = Path(temporary, "delivered"), Path(temporary, "unpacked")
        delivered.mkdir()
        try:
            places = _search(source.deliver(delivered), scratch, _names(wanted), problems)
        except DataError as error:
            places = {}
            problems.append(str(error).rstrip("."))
        for file in wanted:
            content = _first_right(file, places, problems)
            if content is not None:
                write_atomically(folder / file.name, content)
                taken.append(file)
    names = tuple(file.name for file in taken)
    size, seconds = sum(file.size for file in taken), time.monotonic() - start
    if not (taken or problems):
        problems.append("the files are not there")
    return Delivery(source.title, names, size, seconds), problems


def _names(wanted: Sequence[DataFile]) -> set[str]:
    names = set()
    for file in wanted:
        names |= {file.name, f"{file.name}.gz"}
        names.update(file.recipe.ingredients if file.recipe else ())
    return names


def _search(folder: Path, scratch: Path, names: set[str], problems: list[str]) -> Places:
    """Return the paths of files of these names, in the folder and in packages inside it."""
    places: Places = {name: [] for name in names}
    packages = []
    for parent, below, files in os.walk(folder):
        if len(Path(parent).relative_to(folder).parts) >= SEARCH_DEPTH:
            below.clear()
        below.sort()
        for file in sorted(files):
            path = Path(parent, file)
            if file in places:
                places[file].append(path)
            elif is_package(path):
                packages.append(path)
    for number, package in enumerate(packages):
        try:
            for path in extract(package, names, scratch / str(number)):
                places[path.name].append(path)
        except DataError as error:
            problems.append(str(error).rstrip("."))
    return places


def _first_right(file: DataFile, places: Places, problems: list[str]) -> bytes | None:
    for attempt in _attempts(file, places):
        try:
            content = attempt()
        except DataError as error:
            problems.append(str(error).rstrip("."))
            continue
        except OSError as error:
            problems.append(f"cannot read {error.filename}: {error.strerror}")
            continue
        if is_file_of(content, file):
            return content
        problems.append(f"{file.name} has another checksum")
    return None


def _attempts(file: DataFile, places: Places) -> Iterator[Callable[[], bytes]]:
    for path in places.get(file.name, []):
        yield partial(_read, path, file.size)
    for path in places.get(f"{file.name}.gz", []):
        yield partial(gunzip, path, file.size)
    if file.recipe is not None:
        for paths in itertools.product(*(places.get(name, []) for name in file.recipe.ingredients)):
            yield partial(_assemble, file.recipe, paths)


def _assemble(recipe: Recipe, paths: Sequence[Path]) -> bytes:
    return recipe.assemble([_read(path, LARGEST_EXTRACTED_FILE) for path in paths])


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size + 1)


def _cannot(name: str, missing: Sequence[DataFile], failures: Sequence[str]) -> str:
    files = ", ".join(file.name for file in missing)
    reasons = "; ".join(dict.fromkeys(failures)) or "no source has them"
    return (
        f"could not get {files} of {name} ({reasons}): put the files into a folder and run "
        f"`flamma data fetch {name} --from DIR`."
    )
