"""idx files, CIFAR batches and pictures: right ones are read, damaged ones refused."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from flamma.data.images import _cifar_batch_from_png, _parse_cifar, _parse_idx, _parse_labels
from flamma.errors import DataError


def idx(array, kind=8):
    header = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def png(array, mode="RGB", form="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(array, mode=None).convert(mode).save(buffer, format=form)
    return buffer.getvalue()


def test_idx_gives_back_the_array():
    images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(_parse_idx(idx(images), 3, "images"), images)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "ends inside its header"),
        (b"\x00\x00\x08", "ends inside its header"),
        (b"\x1f\x8b\x08\x03" + bytes(20), "begins with 1f8b0803"),
        (idx(np.zeros((2, 2), np.uint8)) + bytes(9), "begins with 00000802"),
        (idx(np.zeros((2, 2, 2), np.uint8), kind=13), "begins with 00000d03"),
        (idx(np.zeros((2, 2, 2), np.uint8))[:-1], "should hold 8 bytes of data"),
        (idx(np.zeros((2, 2, 2), np.uint8)) + b"x", "should hold 8 bytes of data"),
        # A product of sizes that is 0 in 64 bits must not pass for an empty file.
        (b"\x00\x00\x08\x03" + b"\x80\x00\x00\x00" * 2 + b"\x00\x00\x00\x04", "should hold"),
    ],
)
def test_a_damaged_idx_file_is_refused(content, what):
    with pytest.raises(DataError, match=what):
        _parse_idx(content, 3, "train-images")


def test_cifar_rows_are_a_label_and_three_planes():
    row = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
    x, y = _parse_cifar(row * 2, "batch")
    assert x.shape == (2, 3, 32, 32)
    assert y.tolist() == [7, 7]
    assert x[0, :, 5, 9].tolist() == [1, 2, 3]


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(3074), bytes([10]) + bytes(3072)])
def test_a_damaged_cifar_batch_is_refused(content):
    with pytest.raises(DataError, match="no CIFAR-10 batch"):
        _parse_cifar(content, "batch")


def test_a_picture_becomes_a_batch():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (4, 1024, 3), dtype=np.uint8)
    x, y = _parse_cifar(_cifar_batch_from_png(png(rows), [3, 1, 4, 1], "picture"), "batch")
    assert y.tolist() == [3, 1, 4, 1]
    assert np.array_equal(x.transpose(0, 2, 3, 1).reshape(4, 1024, 3), rows)


def test_other_pictures_are_refused():
    rows = np.zeros((4, 1024, 3), dtype=np.uint8)
    good = png(rows)
    for picture, what in [
        (b"not a picture", "damaged picture"),
        (good[: len(good) // 2], "damaged picture"),
        (png(rows, form="BMP"), "damaged picture"),
        (png(rows[:3]), "should be 1024x4 RGB, but is 1024x3"),
        (png(rows, mode="L"), "should be 1024x4 RGB"),
    ]:
        with pytest.raises(DataError, match=what):
            _cifar_batch_from_png(picture, [0, 1, 2, 3], "batch.png")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"[1,10]", b"[1,-1]", b"[1,true]"])
def test_labels_must_be_as_many_whole_numbers(content):
    with pytest.raises(DataError, match=r"labels\.json"):
        _parse_labels(content, 2, "labels.json")
    assert _parse_labels(b"[1, 9]", 2, "labels.json") == [1, 9]
