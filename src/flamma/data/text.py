"""Reads compressed text as Chapin's Bible Retrieval System stores it (1989).

The file has a header of 84 bytes, the size of a window of text, the number of windows, where each
begins and where the last one ends (numbers of 32 bits, highest byte first). A window is compressed
as by ``compress -b 16``, without its three bytes of header: T. A. Welch, A technique for
high-performance data compression, Computer 1984.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sized
from itertools import pairwise

import numpy as np

from flamma.data.fetch import DebianPackage, read_verified
from flamma.data.records import DataFile, Dataset, DatasetEntry, Recipe
from flamma.data.tables import every_tenth
from flamma.errors import DataError
from flamma.types import Ints

_SQUASHED_MAGIC = b"EC02Compressed Data File"
_SQUASHED_HEADER = 84
_MOST_WINDOWS = 10_000
_LARGEST_WINDOW = 1 << 20
"""Bytes of text that a window may hold."""

_FIRST_BITS, _MOST_BITS = 9, 16
_CLEAR_CODE = 256
"""The code that empties the table, which comes at the end of a window and nowhere else."""


def unsquash(content: bytes, name: str) -> bytes:
    """Return the text of such a file.

    Raises
    ------
    DataError
        If the file is damaged, or would be larger than its header says.
    """
    if not content.startswith(_SQUASHED_MAGIC) or len(content) < _SQUASHED_HEADER + 8:
        raise DataError(f"{name} is no compressed text.")
    size, count = struct.unpack_from(">2I", content, _SQUASHED_HEADER)
    places = _SQUASHED_HEADER + 8
    if size > _LARGEST_WINDOW or count > _MOST_WINDOWS or len(content) < places + 4 * (count + 1):
        raise DataError(f"{name} has a damaged header.")
    starts = struct.unpack_from(f">{count + 1}I", content, places)
    windows = [_unpack_codes(content[a:b], size, name) for a, b in pairwise(starts)]
    return b"".join(windows)


def _unpack_codes(content: bytes, most: int, name: str) -> bytes:
    """Return what codes of 9 to 16 bits stand for, at most ``most`` bytes.

    A code below 256 is a byte. Each further code is what the last one stood for and one byte more,
    so a code that is just being defined ends as it begins.

    Examples
    --------
    >>> codes = [ord("a"), 257, ord("b")]  # 257 is "aa", which is just being defined
    >>> packed = sum(code << 9 * place for place, code in enumerate(codes)).to_bytes(4, "little")
    >>> _unpack_codes(packed, 10, "letters")
    b'aaab'
    """
    table = [bytes([byte]) for byte in range(256)] + [b""]
    found: list[bytes] = []
    last, length = b"", 0
    for code in _codes(content, table):
        if code == _CLEAR_CODE:
            break
        entry = table[code] if code < len(table) else last + last[:1]
        length += len(entry)
        if code > len(table) or not entry or length > most:
            raise DataError(f"{name} is damaged: it has a code that cannot be.")
        if last and len(table) < 1 << _MOST_BITS:
            table.append(last + entry[:1])
        found.append(entry)
        last = entry
    return b"".join(found)


def _codes(content: bytes, table: Sized) -> Iterator[int]:
    """Yield the codes, each as long as the table needs at that time.

    Eight codes of one length are a group. Longer codes begin with a new group, so what is left of
    the last one is skipped.
    """
    bits, place, start = _FIRST_BITS, 0, 0
    while place + bits <= 8 * len(content):
        byte, shift = divmod(place, 8)
        yield int.from_bytes(content[byte : byte + 4], "little") >> shift & (1 << bits) - 1
        place += bits
        if len(table) == 1 << bits and bits < _MOST_BITS:
            place += (start - place) % (8 * bits)
            bits, start = bits + 1, place


# The King James Bible, character by character: what comes next, with a client for each book.
#
# The text of 1611 as Debian's package bible-kjv-text has it (C. Chapin, Bible Retrieval System,
# 1989). A sample is a piece of a book, and the target of each of its characters is the next one.

_PIECE = 80
"""Characters of a sample."""
_BOOKS = 66
_TRAINED_PIECES = 100 * _BOOKS
"""Pieces that a run trains on by default, of 37,000: with all of them, five local epochs of the
longest books are half an hour of a core."""
_CHARACTERS = "\n !'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWYZabcdefghijklmnopqrstuvwxyz"
"""All characters of the text, in the order of their tokens; a verse ends with a new line."""

_VERSE = re.compile(r"(\d?[A-Za-z]+)\d+:\d+ (.*)")

_BIBLE_FILE = DataFile(
    "bible.txt",
    "e53aaf0af1e58f259e35d0d9f7ca1bbe154fd77bb95471279b37b34d3c397a98",
    4_404_475,
    Recipe(("bible.data",), lambda contents: unsquash(contents[0], "bible.data")),
)


def bible_from_text(content: bytes) -> Dataset:
    """Return the dataset of a text with a title, and then a verse a line, such as ``Ge1:1 In``."""
    books = _books_of(content.decode("ascii", errors="replace"))
    pieces = [_pieces_of(_tokens_of(text)) for text in books.values()]
    x, y = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    counts = [len(own) for own, _ in pieces]
    groups = np.repeat(np.arange(len(books)), counts)
    test = np.concatenate([every_tenth(count) for count in counts])
    return Dataset(
        "bible",
        x[~test],
        y[~test],
        x[test],
        y[test],
        BIBLE.class_names,
        groups=groups[~test],
        task=BIBLE.task,
        group_names=tuple(books),
    )


def _books_of(text: str) -> dict[str, str]:
    r"""Return the text of each book by its name; the first line, a title, is left out.

    Examples
    --------
    >>> _books_of("Holy Bible\nGe1:1 In the\nGe1:2 And\nExo1:1 Now\n")
    {'Ge': 'In the\nAnd\n', 'Exo': 'Now\n'}
    """
    books: dict[str, list[str]] = {}
    for line in text.splitlines()[1:]:
        verse = _VERSE.fullmatch(line)
        if verse is None:
            raise DataError(f"{_BIBLE_FILE.name} has a line that is no verse.")
        books.setdefault(verse[1], []).append(f"{verse[2]}\n")
    return {book: "".join(verses) for book, verses in books.items()}


def _tokens_of(text: str) -> Ints:
    r"""Return the tokens of a text: the places of its characters in :data:`_CHARACTERS`.

    Examples
    --------
    >>> _tokens_of("a\n")
    array([37,  0])
    """
    codes = np.frombuffer(text.encode("latin-1", errors="replace"), dtype=np.uint8)
    known = np.frombuffer(_CHARACTERS.encode(), dtype=np.uint8)
    places = np.minimum(np.searchsorted(known, codes), known.size - 1)
    if (known[places] != codes).any():
        raise DataError(f"{_BIBLE_FILE.name} has a character that is none of its {known.size}.")
    return places.astype(np.int64)


def _pieces_of(tokens: Ints, length: int = _PIECE) -> tuple[Ints, Ints]:
    """Return the pieces of a text and the next token at each place; what is left over is dropped.

    Examples
    --------
    >>> x, y = _pieces_of(np.arange(8), length=3)
    >>> x.tolist(), y.tolist()
    ([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, 6]])
    """
    end = (tokens.size - 1) // length * length
    return tokens[:end].reshape(-1, length), tokens[1 : end + 1].reshape(-1, length)


BIBLE = DatasetEntry(
    about="the next character in the King James Bible (Debian's bible-kjv-text), by book",
    shape=(_PIECE,),
    class_names=tuple(_CHARACTERS),
    train=46_551,
    test=5_137,
    load=lambda folder, _: bible_from_text(read_verified(folder, _BIBLE_FILE, "bible")),
    files=(_BIBLE_FILE,),
    sources=(DebianPackage("bible-kjv-text"),),
    task="next-token",
    defaults={
        "model.name": "gru",
        "data.split": "groups",
        "data.clients": _BOOKS,
        "data.train_samples": _TRAINED_PIECES,
        "training.learning_rate": 0.5,
    },
)
