"""A site's own data: read from every kind of source, checked, and cached for the next process."""

from __future__ import annotations

import io
import json
import os
import re
import sys

import numpy as np
import pyarrow as arrow
import pytest
from PIL import Image
from pyarrow import parquet

from flamma.clients.behaviours import BEHAVIOURS
from flamma.data.build import VALIDATION_SAMPLES, build_federation
from flamma.data.sites import (
    _CACHED_ARRAYS,
    CACHE_FOLDER,
    CACHE_RECORD,
    SITE_PREPARATIONS,
    OverLimitError,
    SiteLimits,
    _DatasetSlice,
    _NpzFile,
    _ParquetFile,
    _PictureFolder,
    load_site,
    read_declared,
    read_site,
)
from flamma.data.splits import HELD_OUT, SPLITS
from flamma.errors import DataError, FlammaError
from fuzzing.site_files import fuzz

SLICE = """
name = "site1"
cost = 0.25
[data]
dataset = "digits"
split = "shards"
partition = 1
partitions = 3
shards_per_client = 2
validation_samples = 200
seed = 4
"""


def site(folder, data):
    path = folder / "site.toml"
    path.write_text(f'name = "here"\n[data]\n{data}\n', encoding="utf-8")
    return path


def arrays(samples=40, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, 1, 6, 6)), np.arange(samples) % classes


def npz(folder, data="npz = 'own.npz'", **content):
    np.savez(folder / "own.npz", **content)
    return site(folder, data)


def picture(seed, size=(5, 7), mode="L"):
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, mode=mode).save(file, "PNG")
    return file.getvalue(), pixels


def folder_of_pictures(place, per_class=5, **options):
    for label, name in enumerate(("cat", "dog")):
        (place / "pictures" / name).mkdir(parents=True)
        for number in range(per_class):
            content, _ = picture(10 * label + number, **options)
            (place / "pictures" / name / f"{number}.png").write_bytes(content)
    return site(place, "folder = 'pictures'")


def test_a_slice_is_what_a_run_on_one_machine_gives_that_client(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(SLICE)
    found = load_site(path)
    data = build_federation("digits", "shards", 3, 4, shards_per_client=2, validation_samples=200)
    own, held = slice(*data.train_offsets[1:3]), slice(*data.held_offsets[1:3])
    assert (found.name, found.cost, found.classes) == ("site1", 0.25, 10)
    assert found.shape == (1, 28, 28)
    np.testing.assert_array_equal(found.x, data.train_x[own])
    np.testing.assert_array_equal(found.y, data.train_y[own])
    np.testing.assert_array_equal(found.held_x, data.held_x[held])
    np.testing.assert_array_equal(found.held_y, data.held_y[held])


def test_a_behaviour_is_a_name_or_a_table_and_honest_by_default(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(SLICE)
    assert load_site(path).behaviour == BEHAVIOURS["honest"]()
    path.write_text('behaviour = "sign-flip"\n' + SLICE)
    assert load_site(path).behaviour == BEHAVIOURS["sign-flip"]()
    path.write_text(SLICE + '\n[behaviour]\nname = "part-trainer"\nshare = 0.25\n')
    assert load_site(path).behaviour == BEHAVIOURS["part-trainer"](share=0.25)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('"free-ridr"', "unknown behaviour 'free-ridr': did you mean free-rider?"),
        ('{name = "dropper", rat = 1}', "did you mean rate?"),
        ('{name = "dropper", rate = 2}', "rate must lie in [0, 1], not 2."),
        ('{name = "dropper", rate = "often"}', "behaviour.rate must be"),
        ("{rate = 0.5}", "behaviour.name must be"),
        ("3", "behaviour must be a name or a table"),
    ],
)
def test_an_impossible_behaviour_is_refused_in_one_sentence(tmp_path, line, says):
    path = tmp_path / "site.toml"
    path.write_text(f"behaviour = {line}\n" + SLICE)
    with pytest.raises(DataError, match=re.escape(says)) as refused:
        load_site(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_a_slice_by_any_split_is_that_of_a_run(tmp_path):
    text = SLICE.replace('"shards"', '"dirichlet"').replace("shards_per_client = 2", "alpha = 3")
    path = tmp_path / "site.toml"
    path.write_text(text)
    data = build_federation("digits", "dirichlet", 3, 4, alpha=3.0)
    own = slice(*data.train_offsets[1:3])
    np.testing.assert_array_equal(load_site(path).x, data.train_x[own])


def test_one_number_of_mean_for_each_channel(tmp_path):
    x, y = arrays()
    with pytest.raises(DataError, match=r"data.mean must be one number, or one for each of 1"):
        load_site(npz(tmp_path, "npz = 'own.npz'\nmean = [1, 2]", x=x, y=y))


def test_the_second_time_arrays_are_mapped_and_equal(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(SLICE)
    first, second = load_site(path), load_site(path)
    assert isinstance(second.x, np.memmap)
    for name in _CACHED_ARRAYS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    second.x[0] = 99  # copy on write: the file keeps what it has
    np.testing.assert_array_equal(load_site(path).x, first.x)


def test_own_arrays_are_cut_the_same_way_every_time_and_class_by_class(tmp_path):
    x, y = arrays()
    path = npz(tmp_path, x=x, y=y)
    found = load_site(path)
    assert (len(found.y), len(found.held_y), found.classes, found.cost) == (32, 8, 4, None)
    assert np.bincount(found.held_y).tolist() == [2, 2, 2, 2]
    assert found.x.dtype == np.float32
    assert found.y.dtype == np.int64
    (tmp_path / CACHE_FOLDER / CACHE_RECORD).unlink()
    np.testing.assert_array_equal(load_site(path).held_x, found.held_x)
    together = np.concatenate([found.x, found.held_x]).reshape(40, -1)
    given = x.astype(np.float32).reshape(40, -1)
    assert {tuple(row) for row in together.tolist()} == {tuple(row) for row in given.tolist()}


def test_a_changed_source_is_read_again(tmp_path):
    x, y = arrays()
    load_site(npz(tmp_path, x=x, y=y))
    found = load_site(npz(tmp_path, x=x[:20] + 1, y=y[:20]))
    assert len(found.y) + len(found.held_y) == 20
    assert len(list((tmp_path / CACHE_FOLDER).glob("*.npy"))) == len(_CACHED_ARRAYS)


def test_damaged_cached_arrays_are_read_again(tmp_path):
    x, y = arrays()
    path = npz(tmp_path, x=x, y=y)
    before = load_site(path)
    for file in (tmp_path / CACHE_FOLDER).glob("*.npy"):
        file.write_bytes(b"rubbish")
    np.testing.assert_array_equal(load_site(path).x, before.x)
    (tmp_path / CACHE_FOLDER / CACHE_RECORD).write_text(json.dumps({"key": "other"}))
    np.testing.assert_array_equal(load_site(path).x, before.x)


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "other classes", "gone"])
def test_a_damaged_cache_is_noted_and_never_taken_for_the_data(tmp_path, caplog, damage):
    x, y = arrays()
    path = npz(tmp_path, x=x, y=y)
    before = load_site(path)
    cache = tmp_path / CACHE_FOLDER
    [file] = cache.glob("*-x.npy")
    content = file.read_bytes()
    if damage == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "cut":
        file.write_bytes(content[:-4])
    elif damage == "longer":
        file.write_bytes(content + b"more")
    elif damage == "gone":
        file.unlink()
    else:
        record = json.loads((cache / CACHE_RECORD).read_text())
        (cache / CACHE_RECORD).write_text(json.dumps({**record, "agreed": 5}))
    for _ in range(2):
        found = load_site(path)
        assert found.classes == before.classes
        for name in _CACHED_ARRAYS:
            np.testing.assert_array_equal(getattr(found, name), getattr(before, name))
    [note] = caplog.messages  # the second time, the cache is whole again
    assert note.startswith(f"the cache {cache} is damaged")


def test_random_damage_to_the_files_of_a_site():
    assert fuzz(seed=11, seconds=120.0, most=240) == 240


def test_a_changed_header_in_an_npz_is_noticed(tmp_path):
    """It asks for fewer numbers than there are, so numpy would not read to the checksum."""
    x, y = arrays()
    path = npz(tmp_path, x=x, y=y)
    file = tmp_path / "own.npz"
    file.write_bytes(file.read_bytes().replace(b"(40, 1, 6, 6)", b"(40, 1, 6, 4)"))
    with pytest.raises(DataError, match=r"the checksum of x\.npy is wrong"):
        load_site(path)


@pytest.mark.parametrize("cut", [slice(20, None), slice(None, 300)])
def test_an_npz_of_which_a_part_is_missing_is_called_damaged(tmp_path, cut):
    x, y = arrays()
    path = npz(tmp_path, x=x, y=y)
    content = (tmp_path / "own.npz").read_bytes()
    (tmp_path / "own.npz").write_bytes(content[cut])
    with pytest.raises(DataError, match=r"own\.npz is damaged") as found:
        load_site(path)
    assert "Errno" not in str(found.value)
    (tmp_path / "own.npz").unlink()
    (tmp_path / "own.npz").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*own\.npz: Is a directory"):
        load_site(path)


def test_a_parquet_file_of_damaged_labels_is_noticed(tmp_path):
    table = arrow.table({"image": [picture(k)[0] for k in range(10)], "label": [0, 1] * 5})
    file = tmp_path / "own.parquet"
    parquet.write_table(
        table, file, write_page_checksum=True, compression="none", use_dictionary=False
    )
    content = file.read_bytes()
    labels = np.array([0, 1] * 5).tobytes()
    assert labels in content
    file.write_bytes(content.replace(labels, labels[:-8] + labels[:8]))
    with pytest.raises(DataError, match="cannot be read as parquet"):
        load_site(site(tmp_path, "parquet = 'own.parquet'"))


def test_whole_numbers_as_floats_are_labels(tmp_path):
    x, y = arrays()
    found = load_site(npz(tmp_path, x=x, y=y.astype(float)))
    assert sorted(np.concatenate([found.y, found.held_y])) == sorted(y)


def test_held_out_arrays_of_ones_own(tmp_path):
    x, y = arrays()
    found = load_site(npz(tmp_path, x=x, y=y, held_x=x[:8] + 1, held_y=y[:8]))
    assert (len(found.y), len(found.held_y)) == (40, 8)


def test_bytes_are_scaled_and_standardised(tmp_path):
    x = np.full((10, 3, 4, 4), 255, dtype=np.uint8)
    data = "npz = 'own.npz'\nmean = [0.5, 0.25, 0.0]\nstd = [0.5]"
    found = load_site(npz(tmp_path, data, x=x, y=np.zeros(10, dtype=int)))
    np.testing.assert_allclose(found.x[0, :, 0, 0], [1.0, 1.5, 2.0])


def test_a_folder_of_pictures_by_class(tmp_path):
    path = folder_of_pictures(tmp_path)
    found = load_site(path)
    assert found.shape == (1, 7, 5)
    assert found.classes == 2
    assert np.bincount(found.y).tolist() == [4, 4]
    _, pixels = picture(0)
    everything = np.concatenate([found.x, found.held_x])
    assert any(np.array_equal(np.rint(x[0] * 255), pixels) for x in everything)


def test_class_names_number_the_folders(tmp_path):
    folder_of_pictures(tmp_path)
    found = load_site(site(tmp_path, "folder = 'pictures'\nclass_names = ['bird', 'dog', 'cat']"))
    assert found.classes == 3
    assert set(found.y.tolist()) == {1, 2}


def test_pictures_of_many_sizes_need_one(tmp_path):
    path = folder_of_pictures(tmp_path)
    (tmp_path / "pictures" / "cat" / "9.png").write_bytes(picture(3, (9, 9), "RGB")[0])
    with pytest.raises(DataError, match=r"give size = \[height, width\]"):
        load_site(path)
    found = load_site(site(tmp_path, "folder = 'pictures'\nsize = [8, 4]\nchannels = 3"))
    assert found.shape == (3, 8, 4)


def test_a_parquet_file_of_pictures(tmp_path):
    contents = [picture(seed)[0] for seed in range(10)]
    labels = [seed % 2 for seed in range(10)]
    for images in (contents, [{"bytes": c, "path": None} for c in contents]):
        table = arrow.table({"image": images, "label": labels})
        parquet.write_table(table, tmp_path / "own.parquet")
        found = load_site(site(tmp_path, "parquet = 'own.parquet'"))
        assert found.shape == (1, 7, 5)
        assert np.bincount(np.concatenate([found.y, found.held_y])).tolist() == [5, 5]
    parquet.write_table(arrow.table({"image": contents}), tmp_path / "own.parquet")
    with pytest.raises(DataError, match="no column label"):
        load_site(site(tmp_path, "parquet = 'own.parquet'"))
    (tmp_path / "own.parquet").write_bytes(b"PAR1 rubbish")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        load_site(site(tmp_path, "parquet = 'own.parquet'"))


X, Y = arrays()
BAD_ARRAYS = {
    "no labels": ({"x": X}, "no array y"),
    "other length": ({"x": X, "y": Y[:-1]}, "samples must be as many as their targets"),
    "not finite": ({"x": np.where(X > 2, np.nan, X), "y": Y}, "not finite"),
    "negative": ({"x": X, "y": Y - 1}, "whole numbers from 0"),
    "too large a label": ({"x": X, "y": Y + 9}, "classes"),
    "a huge label": ({"x": X, "y": Y + 10**6}, "labels must be below 100000, but one is 1000003"),
    "fractions": ({"x": X, "y": Y / 2}, "whole numbers"),
    "held-out fractions": ({"x": X, "y": Y, "held_x": X, "held_y": Y / 2}, "held-out labels must"),
    "not a number": ({"x": X, "y": np.where(Y == 1, np.nan, Y)}, "has 10 missing values"),
    "texts": ({"x": np.array(["a"] * 40).reshape(-1, 1), "y": Y}, "must be numbers"),
    "pickled": ({"x": np.array([{}] * 40, dtype=object), "y": Y}, "without pickles"),
    "half held out": ({"x": X, "y": Y, "held_x": X}, "both held_x and held_y"),
    "other shape": ({"x": X, "y": Y, "held_x": X[:, :, :3], "held_y": Y}, "held-out samples"),
    "one sample": ({"x": X[:1], "y": Y[:1]}, "at least two"),
    "flat": ({"x": X.ravel()[:40], "y": Y}, "samples must have features"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_arrays_that_cannot_be_used(tmp_path, case):
    content, reason = BAD_ARRAYS[case]
    data = "npz = 'own.npz'" + ("\nclasses = 4" if reason == "classes" else "")
    with pytest.raises(DataError, match="from 0 to 3" if reason == "classes" else reason):
        load_site(npz(tmp_path, data, **content))
    assert not (tmp_path / CACHE_FOLDER).exists()


BAD_FILES = {
    "no name": ('[data]\nnpz = "a"', "name must be"),
    "escape": ('name = "here"\n[data]\nnpz = "../own.npz"', "leads out of"),
    "missing": ('name = "here"\n[data]\nnpz = "own.npz"', "which does not exist"),
    "unknown dataset": (SLICE.replace("digits", "minst"), "did you mean mnist"),
    "no such slice": (SLICE.replace("partition = 1", "partition = 3"), "counted from 0"),
    "held out": (SLICE + "held_out = 1.5", "held_out"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_site_file_that_cannot_be_used_is_one_sentence(tmp_path, case):
    text, reason = BAD_FILES[case]
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=reason) as told:
        load_site(path)
    assert str(told.value).startswith(str(path))
    assert "\n" not in str(told.value)


def test_a_link_out_of_the_site_s_folder_is_refused(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    x, y = arrays()
    np.savez(tmp_path / "other.npz", x=x, y=y)
    (here / "own.npz").symlink_to(tmp_path / "other.npz")
    with pytest.raises(DataError, match="leads out of"):
        load_site(site(here, "npz = 'own.npz'"))
    assert len(load_site(site(here, f"npz = '{tmp_path}/other.npz'")).y) == 32


def test_a_picture_linked_from_elsewhere_is_refused(tmp_path):
    path = folder_of_pictures(tmp_path)
    (tmp_path / "secret.png").write_bytes(picture(1)[0])
    (tmp_path / "pictures" / "cat" / "8.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match="copy the file instead of linking"):
        load_site(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no picture", "damaged picture"),
        (picture(1)[0][:60], "damaged picture"),
        (picture(1, (5000, 1))[0], "the longest side may have 4096 pixels"),
    ],
)
def test_pictures_that_cannot_be_used(tmp_path, content, reason):
    path = folder_of_pictures(tmp_path)
    (tmp_path / "pictures" / "cat" / "8.png").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        load_site(path)


# A site's ``site.toml``: what it may contain, and the one sentence for what it may not.


def written(folder, text):
    path = folder / "site.toml"
    path.write_text(text, encoding="utf-8")
    return path


def with_data(folder, data):
    return read_site(written(folder, f'name = "here"\n[data]\n{data}\n'))


def test_reading_the_file_alone_reads_no_data(tmp_path):
    path = written(tmp_path, 'name = "here"\ncost = 2\n[data]\nnpz = "nowhere.npz"')
    found = read_site(path)
    assert (found.name, found.cost, found.kind) == ("here", 2.0, "npz")
    assert not found.tells_cost  # unless the site says so
    with pytest.raises(DataError, match="which does not exist"):
        found.data_path()


@pytest.mark.parametrize(
    ("data", "source"),
    [
        ("npz = 'a.npz'", _NpzFile(npz="a.npz", held_out=HELD_OUT)),
        (
            "npz = 'a'\nmean = [0]\nstd = [1, 2, 3]\nclasses = 4\nseed = 5\nheld_out = 0.5",
            _NpzFile(npz="a", mean=(0.0,), std=(1.0, 2.0, 3.0), classes=4, seed=5, held_out=0.5),
        ),
        (
            "parquet = 'a'\nsize = [8, 4]\nchannels = 3",
            _ParquetFile(parquet="a", size=(8, 4), channels=3),
        ),
        (
            "folder = 'a'\nclass_names = ['cat', 'dog']",
            _PictureFolder(folder="a", class_names=("cat", "dog")),
        ),
        (
            "dataset = 'digits'\npartition = 1\npartitions = 3",
            _DatasetSlice(
                dataset="digits",
                split=SPLITS.choose("shards", "split"),
                partition=1,
                partitions=3,
                held_out=HELD_OUT,
                validation_samples=VALIDATION_SAMPLES,
            ),
        ),
        (
            "dataset = 'digits'\npartition = 0\npartitions = 3\nsplit = 'dirichlet'\nalpha = 2",
            _DatasetSlice(
                dataset="digits",
                split=SPLITS.choose({"name": "dirichlet", "alpha": 2}, "split"),
                partition=0,
                partitions=3,
            ),
        ),
    ],
)
def test_a_source_is_what_the_file_says_and_the_rest_at_its_default(tmp_path, data, source):
    assert with_data(tmp_path, data).source == source


def test_a_slice_takes_the_options_of_any_registered_split(tmp_path, monkeypatch):
    def stripes(pool, *, width: int = 3):
        return np.arange(pool.labels.size) // width % pool.clients

    monkeypatch.setitem(SPLITS._ours, "stripes", stripes)
    data = "dataset = 'digits'\npartition = 0\npartitions = 3\nsplit = 'stripes'\nwidth = 7"
    assert with_data(tmp_path, data).source.split.options == {"width": 7}


def test_options_of_other_splits_have_no_effect_as_in_a_configuration(tmp_path):
    data = "dataset = 'digits'\npartition = 0\npartitions = 3\nsplit = 'iid'\nalpha = 0.5"
    assert with_data(tmp_path, data).source.split.options == {"uneven": 0.0}


NPZ = '[data]\nnpz = "a"'
BAD_FILES_SITE_FILES = {
    "no data": ('name = "here"', r"\[data\] must have exactly one of the keys dataset, npz"),
    "two sources": ('name = "here"\n[data]\nnpz = "a"\nfolder = "b"', "exactly one of the keys"),
    "no table": ('name = "here"\ndata = 3', "exactly one of the keys"),
    "no name": (NPZ, "name must be lower-case letters"),
    "a path for a name": (f'name = "../x"\n{NPZ}', "name must be lower-case letters"),
    "a number for a name": (f"name = 3\n{NPZ}", "name must be a text, not 3"),
    "no word": (f'name = "here"\ntell_cost = 1\n{NPZ}', "tell_cost must be true or false, not 1"),
    "no cost": (f'name = "here"\ncost = 0\n{NPZ}', "cost must be positive, not 0"),
    "cost beyond floats": (f'name = "here"\ncost = 1{"0" * 400}\n{NPZ}', "cost must be a number"),
    "endless cost": (f'name = "here"\ncost = inf\n{NPZ}', "cost must be a number, not inf"),
    "unknown key at the top": (f'name = "here"\ncosts = 1\n{NPZ}', "did you mean cost"),
    "no TOML": ("name = ", "not valid TOML"),
}


@pytest.mark.parametrize("case", BAD_FILES_SITE_FILES)
def test_a_site_file_that_cannot_be_used_is_one_sentence_site_files(tmp_path, case):
    text, reason = BAD_FILES_SITE_FILES[case]
    path = written(tmp_path, text)
    with pytest.raises(FlammaError, match=reason) as told:
        read_site(path)
    assert "\n" not in str(told.value)
    assert str(told.value).startswith(str(path))


SLICE_SITE_FILES = "dataset = 'digits'\npartition = 0\npartitions = 3\n"
BAD_DATA = {
    "npz = 3": "data.npz must be a text, not 3",
    "npz = 'a'\nheldout = 1": r"unknown key in data 'heldout': did you mean held_out\?",
    "npz = 'a'\nchannels = 1": "unknown key in data 'channels'",
    "npz = 'a'\nheld_out = 1": r"data.held_out must lie in \(0, 1\), not 1",
    "npz = 'a'\nheld_out = '0.2'": "data.held_out must be a number, not '0.2'",
    "npz = 'a'\nseed = -1": "data.seed must be at least 0, not -1",
    "npz = 'a'\nclasses = 0": r"data.classes must lie in \[1, 100,000\], not 0",
    "npz = 'a'\nmean = [nan]": "data.mean must be a finite number, not nan",
    "npz = 'a'\nmean = 0.5": "data.mean must be a list, not 0.5",
    "npz = 'a'\nstd = [1, 0, 1]": "data.std must be above 0, not 0",
    "folder = 'a'\nchannels = 4": "data.channels must be 1 or 3, not 4",
    "folder = 'a'\nchannels = true": "data.channels must be a whole number, not True",
    "folder = 'a'\nsize = [8]": r"data.size must be \[height, width\], .* not \[8\]",
    "folder = 'a'\nsize = [8, 5000]": r"data.size must be .* from 1 to 4096, not \[8, 5000\]",
    "folder = 'a'\nclass_names = ['cat', 2]": "data.class_names must be a text, not 2",
    "dataset = 'digits'": "data.partition is the number of this client, counted from 0",
    "dataset = 'digits'\npartition = 3\npartitions = 3": "must be below data.partitions",
    f"{SLICE_SITE_FILES}split = 'shrads'": r"unknown split 'shrads': did you mean shards\?",
    f"{SLICE_SITE_FILES}partion = 1": r"unknown key in data 'partion': did you mean partition\?",
    f"{SLICE_SITE_FILES}shards_per_client = 'two'": "data.shards_per_client must be a whole number",
}


@pytest.mark.parametrize("data", BAD_DATA)
def test_an_option_that_cannot_be_used_is_named_with_the_file(tmp_path, data):
    with pytest.raises(DataError, match=BAD_DATA[data]) as told:
        with_data(tmp_path, data)
    assert str(told.value).startswith(f"{tmp_path / 'site.toml'}: ")
    assert "\n" not in str(told.value)


def test_data_outside_the_site_s_folder_need_their_absolute_path(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    other = tmp_path / "other.npz"
    other.touch()
    with pytest.raises(DataError, match="leads out of"):
        with_data(here, 'npz = "../other.npz"').data_path()
    assert with_data(here, f'npz = "{other}"').data_path() == other


# What a site does at most, by its own file.

SITE = 'name = "a"\n{limits}\n[data]\nnpz = "data.npz"\n'


def read(tmp_path, limits):
    path = tmp_path / "site.toml"
    path.write_text(SITE.format(limits=limits))
    return read_site(path).limits


def test_a_site_says_what_it_does_at_most(tmp_path):
    limits = read(tmp_path, "limits = {epochs = 5, seconds = 60, bytes = 1000}")
    assert limits == SiteLimits(5, 60, 1000)
    limits.check_epochs(5)
    limits.check_bytes(1000)
    with pytest.raises(OverLimitError, match=r"for 5\.5 epochs, and this site does at most 5$"):
        limits.check_epochs(5.5)
    with pytest.raises(OverLimitError, match="1,001 bytes, and this site takes at most 1,000"):
        limits.check_bytes(1001)


def test_a_file_without_limits_has_one_of_epochs_alone(tmp_path):
    limits = read(tmp_path, "")
    limits.check_epochs(1000)
    limits.check_bytes(10**12)
    assert limits.time_limit(None) is None
    with pytest.raises(OverLimitError):
        limits.check_epochs(10**6)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ("limits = {epochs = 0}", "limits.epochs must be above 0"),
        ("limits = {seconds = -1}", "limits.seconds must be at least 0"),
        ("limits = {epoch = 3}", "did you mean epochs"),
    ],
)
def test_limits_that_cannot_work_name_the_key(tmp_path, limits, why):
    with pytest.raises(DataError, match=why):
        read(tmp_path, limits)


# Code that is installed at a site prepares its samples; only the site itself names it.

CODE = '''
def window(x, y, *, centre: float = 0.0):
    """Keep what is above a value.

    Parameters
    ----------
    centre : float
        That value.
    """
    return x[y < 2] - centre, y[y < 2]
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with an entry point, as pip would have installed it."""
    place = tmp_path / "packages"
    about = place / "clinic-1.0.dist-info"
    about.mkdir(parents=True)
    (place / "clinic.py").write_text(CODE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[flamma.site_preparations]\nwindow = clinic:window\n")
    monkeypatch.syspath_prepend(place)
    yield place / "clinic.py"
    sys.modules.pop("clinic", None)


def site_site_preparations(place, line):
    x = np.arange(36, dtype=np.float64).reshape(12, 3)
    np.savez(place / "own.npz", x=x, y=np.arange(12) % 3)
    path = place / "site.toml"
    path.write_text(f'name = "here"\n[data]\nnpz = "own.npz"\n{line}\n')
    return path, x


def test_samples_go_through_the_installed_function_with_its_options(tmp_path, installed):
    path, x = site_site_preparations(tmp_path, 'prepare = {name = "window", centre = 2}')
    found = load_site(path)
    together = np.concatenate([found.x, found.held_x])
    kept = x[np.arange(12) % 3 < 2] - 2
    assert sorted(together.tolist()) == sorted(kept.tolist())
    assert set(found.y.tolist()) == {0, 1}


def test_changed_code_is_not_taken_out_of_the_cache(tmp_path, installed):
    path, _ = site_site_preparations(tmp_path, 'prepare = "window"')
    before = load_site(path).x
    installed.write_text(CODE.replace("- centre", "+ 1"))
    os.utime(installed, ns=(1, 1))
    sys.modules.pop("clinic")
    np.testing.assert_array_equal(load_site(path).x, before + 1)


@pytest.mark.parametrize(
    ("code", "line", "reason"),
    [
        (CODE, 'prepare = "windw"', "unknown preparation 'windw': did you mean window?"),
        (CODE, 'prepare = {name = "window", center = 2}', "did you mean centre"),
        ("def window(x, y):\n    raise OSError('no\\nPACS')", 'prepare = "window"', "failed: no."),
        ("def window(x, y):\n    return x", 'prepare = "window"', "the preparation window failed"),
        (
            "def window(x, y):\n    return x[1:], y",
            'prepare = "window"',
            "must be as many as",
        ),
    ],
)
def test_a_preparation_that_cannot_be_used_is_one_sentence(tmp_path, installed, code, line, reason):
    installed.write_text(code)
    with pytest.raises(DataError) as refused:
        load_site(site_site_preparations(tmp_path, line)[0])
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_there_is_none_unless_a_package_brings_it():
    assert list(SITE_PREPARATIONS) == []


# A site's table is read by declared columns, the same ones at all sites, or refused.

COLUMNS = """
target = "outcome"
classes = ["ill", "well", "unknown"]
[[columns]]
name = "age"
mean = 50
std = 10
[[columns]]
name = "ward"
categories = ["1", "2", "a"]
"""
ROWS = [(40, "1", "well"), (50, "2", "ill"), (60, "1", "well"), (75, "2", "ill")] * 3
HEADER = ("age", "ward", "outcome")


def site_site_tables(place, columns=COLUMNS, table="people.csv", more="held_out = 0.5"):
    (place / "columns.toml").write_text(columns)
    path = place / "site.toml"
    path.write_text(f'name = "here"\n[data]\ntable = "{table}"\n{more}\n')
    return path


def csv(place, rows=ROWS, header=HEADER, name="people.csv"):
    lines = [",".join(map(str, row)) for row in (header, *rows)]
    (place / name).write_text("\n".join(lines) + "\n")


def everything(found):
    x = np.concatenate([found.x, found.held_x])
    y = np.concatenate([found.y, found.held_y])
    return sorted((*row, label) for row, label in zip(x.tolist(), y.tolist(), strict=True))


EXPECTED = sorted(
    ((age - 50) / 10, float(ward == "1"), float(ward == "2"), 0.0, int(outcome == "well"))
    for age, ward, outcome in ROWS
)


def test_a_table_is_encoded_as_declared_whatever_the_site_has_of_it(tmp_path):
    csv(tmp_path)  # all of its wards are whole numbers, and nobody is unknown
    found = load_site(site_site_tables(tmp_path))
    assert everything(found) == EXPECTED
    assert (found.classes, found.labels) == (3, ("ill", "well", "unknown"))
    assert found.shape == (4,)
    again = load_site(tmp_path / "site.toml")  # out of the cache
    assert again.labels == found.labels
    assert again.columns_sha256 == found.columns_sha256 != ""


def test_a_parquet_file_and_other_columns_give_the_same(tmp_path):
    age, ward, outcome = zip(*ROWS, strict=True)
    columns = {"name": ["x"] * 12, "outcome": outcome, "ward": list(map(int, ward)), "age": age}
    parquet.write_table(arrow.table(columns), tmp_path / "people.parquet")
    assert everything(load_site(site_site_tables(tmp_path, table="people.parquet"))) == EXPECTED


def test_numbers_are_predicted_where_no_classes_are_declared(tmp_path):
    csv(tmp_path)
    columns = 'target = "age"\n[[columns]]\nname = "ward"\ncategories = ["1", "2"]\n'
    found = load_site(site_site_tables(tmp_path, columns, more='task = "regression"'))
    assert sorted(set(found.y.ravel().tolist())) == [40.0, 50.0, 60.0, 75.0]
    assert found.labels == ()


def test_the_checksum_goes_by_what_is_declared_and_not_by_how_it_is_written(tmp_path):
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text(COLUMNS)
    other.write_text(COLUMNS.replace("mean = 50", "# ten years\nmean = 50.0"))
    assert read_declared(one).sha256 == read_declared(other).sha256
    other.write_text(COLUMNS.replace("mean = 50", "mean = 51"))
    assert read_declared(one).sha256 != read_declared(other).sha256


REFUSED = {
    "a category": ([*ROWS, (1, "b", "ill")], COLUMNS, "column 'ward' has 'b', but declared are"),
    "a class": ([*ROWS, (1, "1", "dead")], COLUMNS, "column 'outcome' has 'dead', but declared"),
    "a float label": ([(1, "1", 0.5)] * 4, COLUMNS.replace('"ill"', '"0"'), "has '0.5', but decl"),
    "no numbers": ([*ROWS, ("old", "1", "ill")], COLUMNS, "column 'age' must be numbers"),
    "a gap": (
        [*ROWS, (1, "", "ill")],
        COLUMNS,
        "line 14: column 'ward' has 1 missing",
    ),
    "no column": (ROWS, COLUMNS.replace('"age"', '"ages"'), "no column 'ages': did you mean 'age'"),
    "no target": (ROWS, COLUMNS.replace('target = "outcome"', ""), "a target and at least one"),
    "a key": (ROWS, COLUMNS.replace("std = 10", "sdt = 10"), "did you mean std"),
    "a scale": (ROWS, COLUMNS.replace("std = 10", "std = 0"), "must be positive, not 0"),
    "one class": (ROWS, COLUMNS.replace(', "well", "unknown"', ""), "at least two"),
    "no classes": (ROWS, COLUMNS.replace("classes =", "# "), "needs classes, but the task is"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_declared_is_refused_in_one_sentence(tmp_path, case):
    rows, columns, reason = REFUSED[case]
    csv(tmp_path, rows)
    with pytest.raises(DataError) as refused:
        load_site(site_site_tables(tmp_path, columns))
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_floating_point_numbers_are_no_categories(tmp_path):
    age, ward, outcome = zip(*ROWS, strict=True)
    columns = {"outcome": outcome, "ward": [float(w) for w in ward], "age": age}
    parquet.write_table(arrow.table(columns), tmp_path / "people.parquet")
    with pytest.raises(DataError, match="column 'ward' has floating-point numbers"):
        load_site(site_site_tables(tmp_path, table="people.parquet"))


def test_classes_of_a_table_stand_in_one_place(tmp_path):
    csv(tmp_path)
    with pytest.raises(DataError, match=r"data\.classes of a table stands in columns\.toml"):
        load_site(site_site_tables(tmp_path, more="classes = 3"))


def test_other_columns_are_read_anew_and_not_taken_out_of_the_cache(tmp_path):
    csv(tmp_path)
    before = load_site(site_site_tables(tmp_path))
    after = load_site(site_site_tables(tmp_path, COLUMNS.replace("std = 10", "std = 20.0")))
    np.testing.assert_array_equal(after.x[:, 0] * 2, before.x[:, 0])
