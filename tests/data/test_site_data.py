"""A site's own data: read from every kind of source, checked, and cached for the next process."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pyarrow as arrow
import pytest
from PIL import Image
from pyarrow import parquet

from flamma.clients.behaviours import BEHAVIOURS
from flamma.data.build import build_federation
from flamma.data.sites import CACHE_FOLDER, CACHE_RECORD, CACHED_ARRAYS, load_site
from flamma.errors import DataError
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
        ('{name = "dropper", rate = 2}', "behaviour: rate must lie in [0, 1], not 2."),
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
    for name in CACHED_ARRAYS:
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
    assert len(list((tmp_path / CACHE_FOLDER).glob("*.npy"))) == len(CACHED_ARRAYS)


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
        (cache / CACHE_RECORD).write_text(json.dumps({**record, "about": 5}))
    for _ in range(2):
        found = load_site(path)
        assert found.classes == before.classes
        for name in CACHED_ARRAYS:
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
    with pytest.raises(DataError, match="the array x is longer than its header says"):
        load_site(path)


@pytest.mark.parametrize("cut", [slice(20, None), slice(None, 300)])
def test_an_npz_of_which_a_part_is_missing_is_called_damaged(tmp_path, cut):
    x, y = arrays()
    path = npz(tmp_path, x=x, y=y)
    content = (tmp_path / "own.npz").read_bytes()
    (tmp_path / "own.npz").write_bytes(content[cut])
    with pytest.raises(DataError, match=r"a part of the file is missing|not a zip") as found:
        load_site(path)
    assert "Errno" not in str(found.value)
    (tmp_path / "own.npz").unlink()
    (tmp_path / "own.npz").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*own\.npz: Is a directory"):
        load_site(path)


def test_a_directory_that_hides_the_held_out_arrays_is_noticed(tmp_path):
    x, y = arrays()
    path = npz(tmp_path, x=x, y=y, held_x=x[:8], held_y=y[:8])
    file = tmp_path / "own.npz"
    content = bytearray(file.read_bytes())
    entry = content.rindex(b"y.npy", 0, content.rindex(b"held_x.npy")) - 46
    content[entry + 33] = 128  # the comment of this entry swallows those after it
    file.write_bytes(content)
    with pytest.raises(DataError, match="does not list all of its arrays"):
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
    "other length": ({"x": X, "y": Y[:-1]}, "as many samples as labels"),
    "not finite": ({"x": np.where(X > 2, np.nan, X), "y": Y}, "not finite"),
    "negative": ({"x": X, "y": Y - 1}, "whole numbers from 0"),
    "too large a label": ({"x": X, "y": Y + 9}, "classes"),
    "a huge label": ({"x": X, "y": Y + 10**6}, "labels must be below 100000, but one is 1000003"),
    "fractions": ({"x": X, "y": Y / 2}, "whole numbers"),
    "held-out fractions": ({"x": X, "y": Y, "held_x": X, "held_y": Y / 2}, "held-out labels must"),
    "not a number": ({"x": X, "y": np.where(Y == 1, np.nan, Y)}, "whole numbers"),
    "texts": ({"x": np.array(["a"] * 40).reshape(-1, 1), "y": Y}, "must be numbers"),
    "pickled": ({"x": np.array([{}] * 40, dtype=object), "y": Y}, "without pickles"),
    "half held out": ({"x": X, "y": Y, "held_x": X}, "both held_x and held_y"),
    "other shape": ({"x": X, "y": Y, "held_x": X[:, :, :3], "held_y": Y}, "held-out samples"),
    "one sample": ({"x": X[:1], "y": Y[:1]}, "at least two"),
    "flat": ({"x": X.ravel()[:40], "y": Y}, "samples, features"),
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
