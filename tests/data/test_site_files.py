"""A site's ``site.toml``: what it may contain, and the one sentence for what it may not."""

from __future__ import annotations

import numpy as np
import pytest

from flamma.data.build import VALIDATION_SAMPLES
from flamma.data.sites import DatasetSlice, NpzFile, ParquetFile, PictureFolder, read_site
from flamma.data.splits import HELD_OUT, SPLITS
from flamma.errors import DataError, FlammaError


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
        ("npz = 'a.npz'", NpzFile(npz="a.npz", held_out=HELD_OUT)),
        (
            "npz = 'a'\nmean = [0]\nstd = [1, 2, 3]\nclasses = 4\nseed = 5\nheld_out = 0.5",
            NpzFile(npz="a", mean=(0.0,), std=(1.0, 2.0, 3.0), classes=4, seed=5, held_out=0.5),
        ),
        (
            "parquet = 'a'\nsize = [8, 4]\nchannels = 3",
            ParquetFile(parquet="a", size=(8, 4), channels=3),
        ),
        (
            "folder = 'a'\nclass_names = ['cat', 'dog']",
            PictureFolder(folder="a", class_names=("cat", "dog")),
        ),
        (
            "dataset = 'digits'\npartition = 1\npartitions = 3",
            DatasetSlice(
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
            DatasetSlice(
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
BAD_FILES = {
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


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_site_file_that_cannot_be_used_is_one_sentence(tmp_path, case):
    text, reason = BAD_FILES[case]
    path = written(tmp_path, text)
    with pytest.raises(FlammaError, match=reason) as told:
        read_site(path)
    assert "\n" not in str(told.value)
    assert str(told.value).startswith(str(path))


SLICE = "dataset = 'digits'\npartition = 0\npartitions = 3\n"
BAD_DATA = {
    "npz = 3": "data.npz must be a text, not 3",
    "npz = 'a'\nheldout = 1": r"unknown key in data 'heldout': did you mean held_out\?",
    "npz = 'a'\nchannels = 1": "unknown key in data 'channels'",
    "npz = 'a'\nheld_out = 1": "data.held_out must lie between 0 and 1, not 1",
    "npz = 'a'\nheld_out = '0.2'": "data.held_out must be a number, not '0.2'",
    "npz = 'a'\nseed = -1": "data.seed must be at least 0, not -1",
    "npz = 'a'\nclasses = 0": "data.classes must be from 1 to 100000, not 0",
    "npz = 'a'\nmean = [nan]": "data.mean must be a finite number, not nan",
    "npz = 'a'\nmean = 0.5": "data.mean must be a list, not 0.5",
    "npz = 'a'\nstd = [1, 0, 1]": "data.std must be positive, not 0",
    "folder = 'a'\nchannels = 4": "data.channels must be 1 or 3, not 4",
    "folder = 'a'\nchannels = true": "data.channels must be a whole number, not True",
    "folder = 'a'\nsize = [8]": r"data.size must be \[height, width\], .* not \[8\]",
    "folder = 'a'\nsize = [8, 5000]": r"data.size must be .* from 1 to 4096, not \[8, 5000\]",
    "folder = 'a'\nclass_names = ['cat', 2]": "data.class_names must be a text, not 2",
    "dataset = 'digits'": "data.partition is the number of this client, counted from 0",
    "dataset = 'digits'\npartition = 3\npartitions = 3": "must be below data.partitions",
    f"{SLICE}split = 'shrads'": r"unknown split 'shrads': did you mean shards\?",
    f"{SLICE}partion = 1": r"unknown key in data 'partion': did you mean partition\?",
    f"{SLICE}shards_per_client = 'two'": "data.shards_per_client must be a whole number",
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
