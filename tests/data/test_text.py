"""The Bible from a small text of the same form: nothing here is downloaded."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

import flamma
from flamma.data import text as bible
from flamma.data.build import build_federation
from flamma.data.federated import from_arrays
from flamma.data.fetch import fetch
from flamma.data.text import (
    _BIBLE_FILE,
    _CHARACTERS,
    _PIECE,
    _SQUASHED_HEADER,
    _SQUASHED_MAGIC,
    BIBLE,
    _tokens_of,
    _unpack_codes,
    bible_from_text,
    unsquash,
)
from flamma.errors import DataError
from flamma.experiments.config import make_config

_VERSE = "And the earth was without form, and void; and darkness was upon the face of the deep."
_BOOKS = ("Ge", "Exo", "1Sm")
TEXT = "Holy Bible\n" + "".join(
    f"{book}{chapter}:1 {_VERSE}\n" for book in _BOOKS for chapter in range(1, 31)
)


def squeezed(text, most_bits=16):
    """Return the codes of ``compress``, by its description: the reference to read them with."""
    known = {bytes([byte]): byte for byte in range(256)}
    free, codes, last = 257, [], b""
    for byte in text:
        longer = last + bytes([byte])
        if longer in known:
            last = longer
            continue
        codes.append(known[last])
        known[longer], free = free, free + 1
        last = bytes([byte])
    codes += [known[last], 256]
    stream, places, bits, group, read = 0, 0, 9, 0, 257
    for number, code in enumerate(codes):
        stream |= code << places
        places += bits
        read += number > 0
        if read == 1 << bits and bits < most_bits:
            places += (group - places) % (8 * bits)
            group, bits = places, bits + 1
    return stream.to_bytes(-(-places // 8), "little")


def squashed(text, window=1000):
    windows = [squeezed(text[k : k + window]) for k in range(0, len(text), window)]
    first = _SQUASHED_HEADER + 8 + 4 * (len(windows) + 1)
    starts = np.cumsum([first, *map(len, windows)]).tolist()
    head = _SQUASHED_MAGIC.ljust(_SQUASHED_HEADER, b"\0") + struct.pack(">2I", window, len(windows))
    return head + struct.pack(f">{len(starts)}I", *starts) + b"".join(windows)


@pytest.mark.parametrize("text", [b"a", b"aaaaaaa", TEXT.encode(), bytes(range(256)) * 40])
def test_codes_of_all_lengths_are_read(text):
    assert _unpack_codes(squeezed(text), len(text), "t") == text
    assert unsquash(squashed(text), "t") == text


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "no compressed text"),
        (b"x" * 200, "no compressed text"),
        (
            _SQUASHED_MAGIC.ljust(_SQUASHED_HEADER, b"\0") + struct.pack(">2I", 1000, 2**31),
            "damaged header",
        ),
        (
            _SQUASHED_MAGIC.ljust(_SQUASHED_HEADER, b"\0") + struct.pack(">2I", 2**31, 1),
            "damaged header",
        ),
        (squashed(b"a" * 500).replace(struct.pack(">I", 1000), struct.pack(">I", 400)), "damaged"),
    ],
)
def test_damaged_text_is_refused(content, what):
    with pytest.raises(DataError, match=what):
        unsquash(content, "t")


def test_a_code_that_is_not_defined_yet_is_refused():
    with pytest.raises(DataError, match="t is damaged"):
        _unpack_codes((97 | 300 << 9).to_bytes(3, "little"), 100, "t")
    with pytest.raises(DataError, match="t is damaged"):
        _unpack_codes((257).to_bytes(2, "little"), 100, "t")


def test_the_target_is_the_next_character_and_pieces_do_not_overlap():
    data = bible_from_text(TEXT.encode())
    book = (_VERSE + "\n") * 30
    pieces = len(book) // _PIECE
    own = np.flatnonzero(data.groups == 1)
    assert own.size == pieces - pieces // 10
    read = ["".join(_CHARACTERS[token] for token in row) for row in data.train_x[own]]
    assert read[:2] == [book[:_PIECE], book[_PIECE : 2 * _PIECE]]
    wanted = "".join(_CHARACTERS[token] for token in data.train_y[own[1]])
    assert wanted == book[_PIECE + 1 : 2 * _PIECE + 1]
    assert data.group_names == _BOOKS


def test_what_is_no_verse_or_another_character_is_refused():
    with pytest.raises(DataError, match="no verse"):
        bible_from_text(b"Title\nGe1:1 In\nnothing\n")
    with pytest.raises(DataError, match="none of its 63"):
        _tokens_of("X")
    assert _tokens_of(_CHARACTERS).tolist() == list(range(63))


def test_the_file_of_the_package_is_decoded_and_books_are_clients(tmp_path, monkeypatch):
    file = replace(_BIBLE_FILE, sha256=hashlib.sha256(TEXT.encode()).hexdigest(), size=len(TEXT))
    monkeypatch.setattr(bible, "_BIBLE_FILE", file)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "bible.data").write_bytes(squashed(TEXT.encode()))
    fetch("bible", replace(BIBLE, files=(file,)), tmp_path / "bible", tmp_path / "there")
    data = build_federation("bible", "groups", 3, 0, validation_samples=0, data_dir=tmp_path)
    assert (data.task, data.classes, data.shape) == ("next-token", 63, (_PIECE,))
    assert data.client_names == _BOOKS


def test_a_run_of_it_has_a_recurrent_model_and_the_books():
    config = make_config({"data": {"dataset": "bible"}})
    assert (config.model.name, config.data.split.name, config.data.clients) == ("gru", "groups", 66)
    assert config.data.train_samples == 6600
    chosen = make_config({"data": {"dataset": "bible", "clients": 5}, "model": "transformer"})
    assert (chosen.model.name, chosen.data.clients) == ("transformer", 5)


@pytest.mark.parametrize(("model", "options"), [("gru", {}), ("transformer", {"size": 32})])
def test_both_models_of_text_learn_it(tmp_path, model, options):
    small = bible_from_text(TEXT.encode())
    parts = [(small.train_x[small.groups == k], small.train_y[small.groups == k]) for k in range(3)]
    data = from_arrays(
        [(x[:20], y[:20]) for x, y in parts],
        [(x[20:], y[20:]) for x, y in parts],
        task="next-token",
    )
    counts = np.bincount(data.held_y.ravel())
    usual = 100 * counts.max() / counts.sum()
    run = flamma.run(
        data=data,
        model={"name": model, **options},
        strategy="fedavg",
        rounds=3,
        per_round=3,
        batch_size=8,
        learning_rate=BIBLE.defaults["training.learning_rate"],
        evaluation__metric="accuracy",
    )
    assert run.history[-1].metric("accuracy") > usual + 20
