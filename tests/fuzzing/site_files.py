"""Random damage to a site's files: one sentence says what is wrong, or the site loads as before.

A ``.npz`` file and the cache have checksums, so damage to them never gives other data. A changed
``site.toml``, picture or parquet file may say something else that is as valid; it gives data of
the right form or one sentence. ``fuzz(seed, seconds)`` returns how many inputs it has tried; a
failure is an AssertionError that names the input.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import tempfile
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as arrow
from PIL import Image
from pyarrow import parquet

from flamma.data.sites import _CACHED_ARRAYS, CACHE_FOLDER, load_site
from flamma.errors import FlammaError
from flamma.tasks.base import MAX_CLASSES

WORDS = (
    *('""', '"here"', '"x"', "'../x'", "'/dev/null'", '"\\u0000"', f'"{"n" * 300}"'),
    *("0", "-1", "1", "3", "2.5", "1e308", "-0.0", "nan", "inf", "9" * 30, "9" * 5000, "0x_"),
    *("true", "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "[]", "[1, 2]", "[[1]]"),
    *("{}", '{name = "iid"}', "[1979-05-27]", "['cat', 'dog']", "[" * 500 + "]" * 500, "="),
)
KEYS = (
    *("name", "cost", "tell_cost", "npz", "parquet", "folder", "dataset", "split", "partition"),
    *("partitions", "seed", "held_out", "classes", "mean", "std", "size", "channels", "x"),
    *("class_names", "train_samples", "validation_samples", "data_dir", "alpha", "width"),
)


def picture(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 4), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, mode="L").save(file, "PNG")
    return file.getvalue()


def make_npz(folder):
    rng = np.random.default_rng(0)
    np.savez(folder / "own.npz", x=rng.normal(size=(20, 3)).astype("f4"), y=np.arange(20) % 3)
    return "npz = 'own.npz'"


def make_compressed(folder):
    x = np.random.default_rng(0).integers(0, 256, (20, 1, 3, 3), dtype=np.uint8)
    y = np.arange(20) % 3
    np.savez_compressed(folder / "own.npz", x=x, y=y, held_x=x[:4], held_y=y[:4])
    return "npz = 'own.npz'\nmean = [0.5]\nstd = [0.25]"


def make_parquet(folder):
    table = arrow.table({"image": [picture(k) for k in range(8)], "label": [0, 1] * 4})
    parquet.write_table(table, folder / "own.parquet", write_page_checksum=True)
    return "parquet = 'own.parquet'"


def make_folder(folder):
    for label, name in enumerate(("cat", "dog")):
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(3):
            content = picture(10 * label + number)
            (folder / "pictures" / name / f"{number}.png").write_bytes(content)
    return "folder = 'pictures'\nsize = [5, 4]"


def make_slice(folder):
    return "dataset = 'synthetic'\npartition = 1\npartitions = 3\ntrain_samples = 90"


KINDS = {
    "npz": make_npz,
    "compressed": make_compressed,
    "parquet": make_parquet,
    "folder": make_folder,
    "slice": make_slice,
}
CHECKSUMMED = ("npz", "compressed")


class Sites:
    """One undamaged site of every kind below a folder, with its data."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.files, self.data = {}, {}
        for kind, make in KINDS.items():
            place = self.folder / kind
            place.mkdir()
            text = f'name = "here"\ncost = 0.5\n[data]\n{make(place)}\n'
            (place / "site.toml").write_text(text, encoding="utf-8")
            files = [path for path in sorted(place.rglob("*")) if path.is_file()]
            self.files[kind] = {path.relative_to(place): path.read_bytes() for path in files}
            self.data[kind] = load_site(place / "site.toml")

    def restored(self, kind):
        """Return the folder of a site as it was in the beginning, but without a cache."""
        place = self.folder / kind
        shutil.rmtree(place)
        for name, content in self.files[kind].items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        return place


def pick(rng, values):
    values = list(values)
    return values[int(rng.integers(0, len(values)))]


def torn(data, rng):
    """Return bytes with a bit flipped, the end cut off, or a part zeroed, doubled or replaced."""
    data = bytearray(data)
    start = int(rng.integers(0, len(data) + 1))
    stop = min(len(data), start + int(rng.integers(1, 40)))
    kind = rng.integers(0, 8)
    if kind < 4 and data:
        data[start % len(data)] ^= 1 << int(rng.integers(0, 8))
    elif kind == 4:
        del data[start:]
    elif kind == 5:
        data[start:stop] = bytes(stop - start)
    elif kind == 6:
        data[start:start] = data[start:stop]
    else:
        data[start:stop] = rng.bytes(stop - start)
    return bytes(data)


def damaged_text(text, rng):
    """Return the text of a ``site.toml`` with a line changed, added, left out or torn."""
    lines = text.splitlines()
    place = int(rng.integers(0, len(lines)))
    kind = rng.integers(0, 6)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(place, f"{pick(rng, KEYS)} = {pick(rng, WORDS)}")
    elif kind == 2:
        lines.insert(place, lines[place])
    elif kind == 3:
        return torn(text.encode(), rng)
    else:
        key = lines[place].partition("=")[0]
        lines[place] = f"{key} = {pick(rng, WORDS)}"
    return "\n".join(lines).encode(errors="surrogatepass")


def rezipped(content, rng):
    """Return an archive whose members are torn, but have the right checksums."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            member = old.read(name)
            new.writestr(name, torn(member, rng) if rng.integers(0, 2) else member)
    return out.getvalue()


def loaded(path):
    """Return a site's data, None if one sentence says why there are none."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of Pillow and numpy
        try:
            return load_site(path)
        except FlammaError as error:
            sentence = str(error)
    assert "\n" not in sentence, sentence
    assert len(sentence) < 6000, sentence
    return None


def is_valid(site):
    assert 1 <= site.classes <= MAX_CLASSES
    for x, y in ((site.x, site.y), (site.held_x, site.held_y)):
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        assert len(x) == len(y) > 0
        assert np.isfinite(x).all()
        assert 0 <= y.min() <= y.max() < site.classes


def is_same(site, other):
    assert site.classes == other.classes
    for name in _CACHED_ARRAYS:
        one, two = getattr(site, name), getattr(other, name)
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)


def try_text(sites, rng):
    kind = pick(rng, KINDS)
    place = sites.restored(kind)
    text = (place / "site.toml").read_text(encoding="utf-8")
    (place / "site.toml").write_bytes(damaged_text(text, rng))
    site = loaded(place / "site.toml")
    if site is not None:
        is_valid(site)


def try_data(sites, rng):
    kind = pick(rng, [kind for kind in KINDS if kind != "slice"])
    place = sites.restored(kind)
    name = pick(rng, [name for name in sites.files[kind] if name.name != "site.toml"])
    content = (place / name).read_bytes()
    honest_checksums = kind in CHECKSUMMED and rng.integers(0, 3) == 0
    for _ in range(int(rng.integers(1, 4))):
        content = rezipped(content, rng) if honest_checksums else torn(content, rng)
        if honest_checksums:
            break
    (place / name).write_bytes(content)
    site = loaded(place / "site.toml")
    if site is None:
        return
    is_valid(site)
    if kind in CHECKSUMMED and not honest_checksums:
        is_same(site, sites.data[kind])


def try_cache(sites, rng):
    kind = pick(rng, KINDS)
    place = sites.restored(kind)
    load_site(place / "site.toml")
    files = sorted((place / CACHE_FOLDER).iterdir())
    for _ in range(int(rng.integers(1, 3))):
        file = pick(rng, files)
        action = rng.integers(0, 12)
        if action == 0:
            file.unlink(missing_ok=True)
        elif action == 1 and file.exists():
            file.write_bytes(pick(rng, files[:1]).read_bytes() if files[0].exists() else b"")
        elif file.exists():
            file.write_bytes(torn(file.read_bytes(), rng))
    site = loaded(place / "site.toml")
    assert site is not None
    is_same(site, sites.data[kind])


TRIALS = (try_text, try_data, try_cache)


def fuzz(seed: int, seconds: float, most: int | None = None) -> int:
    """Try random damage for so long, or so often, and return how often."""
    count, end = 0, time.monotonic() + seconds
    logging.getLogger("flamma.data.sites").setLevel(logging.ERROR)
    # Most of the time would go into removing files from a disk.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        sites = Sites(folder)
        while time.monotonic() < end and count != most:
            rng = np.random.default_rng((seed, count))
            trial = TRIALS[count % len(TRIALS)]
            try:
                trial(sites, rng)
            except BaseException as error:
                message = f"input {count} of seed {seed} ({trial.__name__}): {error!r}"
                raise AssertionError(message) from error
            count += 1
    return count
