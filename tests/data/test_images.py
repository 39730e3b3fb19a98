"""idx files, CIFAR batches and pictures: right ones are read, damaged ones refused."""

from __future__ import annotations

import io
import struct
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from flamma.data import images
from flamma.data.fetch import fetch
from flamma.data.images import CIFAR10, cifar_batch_from_png, parse_cifar, parse_idx
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
    assert np.array_equal(parse_idx(idx(images), 3), images)


def test_cifar_rows_are_a_label_and_three_planes():
    row = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
    x, y = parse_cifar(row * 2)
    assert x.shape == (2, 3, 32, 32)
    assert y.tolist() == [7, 7]
    assert x[0, :, 5, 9].tolist() == [1, 2, 3]


def test_a_picture_becomes_a_batch():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (4, 1024, 3), dtype=np.uint8)
    x, y = parse_cifar(cifar_batch_from_png(png(rows), [3, 1, 4, 1], "picture"))
    assert y.tolist() == [3, 1, 4, 1]
    assert np.array_equal(x.transpose(0, 2, 3, 1).reshape(4, 1024, 3), rows)


def assembled(picture, labels, monkeypatch, tmp_path):
    monkeypatch.setattr(images, "_CIFAR_BATCH", 4)
    recipe = CIFAR10.files[0].recipe
    for name, content in zip(recipe.ingredients, (picture, labels), strict=True):
        (tmp_path / name).write_bytes(content)
    entry = replace(CIFAR10, files=CIFAR10.files[:1])
    fetch("cifar10", entry, tmp_path / "here", tmp_path)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda rows: b"not a picture", "are damaged"),
        (lambda rows: png(rows)[: len(png(rows)) // 2], "are damaged"),
        (lambda rows: png(rows, form="BMP"), "are damaged"),
        (lambda rows: png(rows[:3]), "should be 1024x4 RGB, but is 1024x3"),
        (lambda rows: png(rows, mode="L"), "should be 1024x4 RGB"),
        (png, "has another checksum"),
    ],
)
def test_other_pictures_are_refused(damage, what, monkeypatch, tmp_path):
    picture = damage(np.zeros((4, 1024, 3), dtype=np.uint8))
    with pytest.raises(DataError, match=what):
        assembled(picture, b"[0, 1, 2, 3]", monkeypatch, tmp_path)


@pytest.mark.parametrize("labels", [b"", b"{}", b"[1]", b"[1,2,3,400]", b"[1,2,3,-1]"])
def test_other_labels_are_refused(labels, monkeypatch, tmp_path):
    with pytest.raises(DataError, match=r"could not get data_batch_1\.bin of cifar10"):
        assembled(png(np.zeros((4, 1024, 3), dtype=np.uint8)), labels, monkeypatch, tmp_path)
