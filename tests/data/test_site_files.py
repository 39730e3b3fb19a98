"""A site's ``site.toml``: what it may say, and the one sentence where it says something else."""

from __future__ import annotations

import pytest

from flamma.data.site_files import read_site
from flamma.errors import DataError


def written(folder, text):
    path = folder / "site.toml"
    path.write_text(text, encoding="utf-8")
    return path


def with_options(folder, options):
    return read_site(written(folder, f'name = "here"\n[data]\nfolder = "pictures"\n{options}\n'))


def test_reading_the_file_alone_reads_no_data(tmp_path):
    path = written(tmp_path, 'name = "here"\ncost = 2\n[data]\nnpz = "nowhere.npz"')
    found = read_site(path)
    assert (found.name, found.cost, found.kind) == ("here", 2.0, "npz")
    assert not found.tells_cost  # unless the site says so
    with pytest.raises(DataError, match="there is no"):
        found.source()


def test_options_are_what_the_file_says(tmp_path):
    options = "size = [8, 4]\nchannels = 3\nheld_out = 0.5\nmean = [0]\nstd = [1, 2, 3]"
    found = with_options(tmp_path, f"{options}\nclass_names = ['cat', 'dog']")
    assert found.size() == (8, 4)
    assert found.whole("channels", 1, 3) == 3
    assert found.held_out() == 0.5
    assert found.per_channel("mean", 3) == [0.0]
    assert found.per_channel("std", 3) == [1.0, 2.0, 3.0]
    assert found.class_names() == ["cat", "dog"]


def test_options_that_are_not_there(tmp_path):
    found = with_options(tmp_path, "")
    assert found.held_out() == 0.2
    assert (found.size(), found.class_names(), found.per_channel("std", 3)) == (None, None, None)
    assert found.whole("classes", 1, 9) is None
    assert found.whole("classes", 1, 9, default=4) == 4
    with pytest.raises(DataError, match="classes must be a whole number from 1 to 9, not 10"):
        found.whole("classes", 1, 9, default=10)


BAD_FILES = {
    "no data": ('name = "here"', "must have one of"),
    "two sources": ('name = "here"\n[data]\nnpz = "a"\nfolder = "b"', "must have one of"),
    "no name": ('[data]\nnpz = "a"', "name must be"),
    "a path for a name": ('name = "../x"\n[data]\nnpz = "a"', "name must be"),
    "no word": ('name = "here"\ntell_cost = 1\n[data]\nnpz = "a"', "true or false, not 1"),
    "no cost": ('name = "here"\ncost = 0\n[data]\nnpz = "a"', "cost must be positive"),
    "cost beyond floats": (f'name = "here"\ncost = 1{"0" * 400}\n[data]\nnpz = "a"', "cost must"),
    "endless cost": ('name = "here"\ncost = inf\n[data]\nnpz = "a"', "positive and finite"),
    "unknown key": ('name = "here"\n[data]\nnpz = "a"\nheldout = 1', "did you mean held_out"),
    "no text": ('name = "here"\n[data]\nnpz = 3', "data.npz must be a text, not 3"),
    "no TOML": ("name = ", "not valid TOML"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_site_file_that_cannot_be_used_is_one_sentence(tmp_path, case):
    text, reason = BAD_FILES[case]
    with pytest.raises(DataError, match=reason) as told:
        read_site(written(tmp_path, text))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("options", "ask", "reason"),
    [
        ("channels = 4", lambda s: s.whole("channels", 1, 3), "from 1 to 3, not 4"),
        ("channels = true", lambda s: s.whole("channels", 1, 3), "from 1 to 3, not True"),
        ("held_out = 1", lambda s: s.held_out(), "held_out must lie between 0 and 1, not 1"),
        ("held_out = '0.2'", lambda s: s.held_out(), "held_out must lie between"),
        ("size = [8]", lambda s: s.size(), r"size must be \[height, width\], not \[8\]"),
        ("size = [8, 5000]", lambda s: s.size(), "size must be"),
        ("class_names = ['cat', 2]", lambda s: s.class_names(), "a list of texts"),
        ("mean = [1, 2]", lambda s: s.per_channel("mean", 3), "mean must be one number, or one"),
        ("std = [1, 0, 1]", lambda s: s.per_channel("std", 3), "std must be one number, or one"),
        ("mean = [nan]", lambda s: s.per_channel("mean", 3), "mean must be one number"),
    ],
)
def test_an_option_that_cannot_be_used(tmp_path, options, ask, reason):
    with pytest.raises(DataError, match=reason):
        ask(with_options(tmp_path, options))


def test_data_outside_the_site_s_folder_need_their_whole_path(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    other = tmp_path / "other.npz"
    other.touch()
    with pytest.raises(DataError, match="leads out of"):
        read_site(written(here, 'name = "here"\n[data]\nnpz = "../other.npz"')).source()
    found = read_site(written(here, f'name = "here"\n[data]\nnpz = "{other}"'))
    assert found.source() == other
