"""Pictures of 16 bits keep them, and what programs leave among data is no class."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from flamma.data.own import from_data
from flamma.data.pictures import PictureOptions, decode, stacked
from flamma.data.sites import load_site
from flamma.errors import DataError

DEPTHS = np.array([[0, 255], [256, 4095], [40000, 65535]], dtype=np.uint16)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def site(place, more=""):
    path = place / "site.toml"
    path.write_text(f'name = "here"\n[data]\nfolder = "pictures"\n{more}\n')
    return path


def pictures(place, classes=("cat", "dog"), pixels=DEPTHS, each=4):
    for name in classes:
        folder = place / "pictures" / name
        folder.mkdir(parents=True)
        for number in range(each):
            (folder / f"{number}.png").write_bytes(png(pixels))
    return place / "pictures"


def test_sixteen_bits_are_kept_and_become_shares_of_the_largest(tmp_path):
    pictures(tmp_path)
    found = load_site(site(tmp_path))
    expected = DEPTHS.astype(np.float32) / np.float32(65535)
    np.testing.assert_array_equal(found.x, np.broadcast_to(expected, (6, 1, 3, 2)))
    assert len(np.unique(found.x)) == DEPTHS.size  # nothing is cut off at 255


def test_sixteen_bits_of_ones_own_pictures_on_one_machine(tmp_path):
    folder = pictures(tmp_path, each=8)
    data = from_data(folder, clients=2, standardise=False)
    expected = DEPTHS.astype(np.float32) / np.float32(65535)
    np.testing.assert_allclose(data.train_x[0, 0], expected, rtol=1e-7)
    assert data.encoding.scale == 65535


def test_sixteen_bits_are_resized_without_a_loss_of_depth():
    flat = np.full((8, 8), 4095, dtype=np.uint16)
    found = decode(png(flat), "a", PictureOptions((2, 3), 3))
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, np.full((3, 2, 3), 4095))


def test_pictures_of_two_depths_are_refused():
    contents = [("a.png", png(DEPTHS)), ("b.png", png(DEPTHS.astype(np.uint8)))]
    with pytest.raises(DataError, match=r"b\.png has 8 bits, but the pictures before it 16"):
        stacked(contents, 2, PictureOptions())


def colours_of_16_bits():
    """A PNG that Pillow cannot write: two pixels of red, green and blue with two bytes each."""

    def chunk(kind, content):
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    row = b"\0" + struct.pack(">6H", 1, 2, 3, 4095, 4095, 4095)
    header = struct.pack(">2I5B", 2, 1, 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_colours_of_16_bits_are_refused_since_half_would_be_lost():
    with pytest.raises(DataError, match=r"a\.png has colours or transparency of 16 bits"):
        decode(colours_of_16_bits(), "a.png", PictureOptions())


def test_what_programs_leave_behind_is_no_class(tmp_path):
    folder = pictures(tmp_path)
    for name in (".ipynb_checkpoints", "__MACOSX", "@eaDir"):
        (folder / name).mkdir()
        (folder / name / "0-checkpoint.png").write_bytes(png(DEPTHS))
    (folder / "cat" / "._0.png").write_bytes(b"a resource fork")
    found = load_site(site(tmp_path))
    assert found.labels == ("cat", "dog")
    assert found.classes == 2
    assert len(found.y) + len(found.held_y) == 8
    assert set(from_data(folder, clients=2).labels) == {"cat", "dog"}


def test_a_class_may_have_such_a_name_if_it_is_declared(tmp_path):
    pictures(tmp_path, ("__MACOSX", "dog"))
    assert load_site(site(tmp_path, 'class_names = ["dog", "__MACOSX"]')).labels[1] == "__MACOSX"


def test_a_site_that_lacks_a_class_numbers_the_others_by_the_declared_names(tmp_path):
    pictures(tmp_path, ("cat", "dog"))
    found = load_site(site(tmp_path, 'class_names = ["bird", "cat", "dog"]'))
    assert (found.classes, found.labels) == (3, ("bird", "cat", "dog"))
    assert set(found.y.tolist()) == {1, 2}
