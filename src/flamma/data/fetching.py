"""Getting a dataset's files: try its sources in order, keep what has the right checksum."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flamma.data.archives import MOST_BYTES, gunzip, is_package, unpack
from flamma.data.records import DataFile, DatasetEntry, Recipe
from flamma.data.sources import Folder, Source
from flamma.data.store import is_file_of, is_present
from flamma.errors import DataError
from flamma.files import write_atomically

DEEPEST = 4
"""How many folders below a named one are searched."""

Say = Callable[[str], None]
Places = dict[str, list[Path]]


@dataclass(frozen=True)
class Delivery:
    """What a source brought: which files, how many bytes, in how many seconds."""

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
    """Bring the files of a dataset that are missing or damaged into its folder.

    Parameters
    ----------
    name : str
        The dataset's, for messages.
    entry : DatasetEntry
        Its files and sources.
    folder : Path
        Where its files belong. Each is written under a temporary name and then renamed.
    from_folder : Path, optional
        Look here and nowhere else: decoded files, .gz files, or packages.
    say : callable
        Is told what is tried.

    Returns
    -------
    list of Delivery
        Empty if everything was there already.

    Raises
    ------
    DataError
        If some file cannot be had; the message says what every source answered.
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
    """Store every wanted file that a source has in some form; say what is wrong with the rest."""
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
    """Return where files of these names are, in the folder and in the packages lying there."""
    places: Places = {name: [] for name in names}
    packages = []
    for parent, below, files in os.walk(folder):
        if len(Path(parent).relative_to(folder).parts) >= DEEPEST:
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
            for path in unpack(package, names, scratch / str(number)):
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
    return recipe.assemble([_read(path, MOST_BYTES) for path in paths])


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
