"""The King James Bible, character by character: what comes next, with a client for each book.

The text of 1611 as Debian's package bible-kjv-text has it (C. Chapin, Bible Retrieval System,
1989). A sample is a piece of a book, and the target of each of its characters is the next one.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from flamma.data.columns import is_tested
from flamma.data.records import DataFile, Dataset, DatasetEntry, Recipe
from flamma.data.sources import DebianPackage
from flamma.data.squashed import unsquash
from flamma.data.store import read_verified
from flamma.errors import DataError
from flamma.types import Ints

PIECE = 80
"""Characters of a sample."""
BOOKS = 66
TRAINED_PIECES = 100 * BOOKS
"""Pieces that a run trains on by default, of 37,000: with all of them, five local epochs of the
longest books are half an hour of a core."""
CHARACTERS = "\n !'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWYZabcdefghijklmnopqrstuvwxyz"
"""All characters of the text, in the order of their tokens; a verse ends with a new line."""

VERSE = re.compile(r"(\d?[A-Za-z]+)\d+:\d+ (.*)")

BIBLE_FILE = DataFile(
    "bible.txt",
    "e53aaf0af1e58f259e35d0d9f7ca1bbe154fd77bb95471279b37b34d3c397a98",
    4_404_475,
    Recipe(("bible.data",), lambda contents: unsquash(contents[0], "bible.data")),
)


def load_bible(folder: Path, _samples: int) -> Dataset:
    """Return the pieces of all books; every tenth of a book is in the test set."""
    return bible_from_text(read_verified(folder, BIBLE_FILE, "bible"))


def bible_from_text(content: bytes) -> Dataset:
    """Return the dataset of a text with a title, and then a verse a line, such as ``Ge1:1 In``."""
    books = books_of(content.decode("ascii", errors="replace"))
    pieces = [pieces_of(tokens_of(text)) for text in books.values()]
    x, y = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    counts = [len(own) for own, _ in pieces]
    groups = np.repeat(np.arange(len(books)), counts)
    test = np.concatenate([is_tested(count) for count in counts])
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


def books_of(text: str) -> dict[str, str]:
    r"""Return the text of each book by its name; the first line, a title, is left out.

    Examples
    --------
    >>> books_of("Holy Bible\nGe1:1 In the\nGe1:2 And\nExo1:1 Now\n")
    {'Ge': 'In the\nAnd\n', 'Exo': 'Now\n'}
    """
    books: dict[str, list[str]] = {}
    for line in text.splitlines()[1:]:
        verse = VERSE.fullmatch(line)
        if verse is None:
            raise DataError(f"{BIBLE_FILE.name} has a line that is no verse.")
        books.setdefault(verse[1], []).append(f"{verse[2]}\n")
    return {book: "".join(verses) for book, verses in books.items()}


def tokens_of(text: str) -> Ints:
    r"""Return the tokens of a text: the places of its characters in :data:`CHARACTERS`.

    Examples
    --------
    >>> tokens_of("a\n")
    array([37,  0])
    """
    codes = np.frombuffer(text.encode("latin-1", errors="replace"), dtype=np.uint8)
    known = np.frombuffer(CHARACTERS.encode(), dtype=np.uint8)
    places = np.minimum(np.searchsorted(known, codes), known.size - 1)
    if (known[places] != codes).any():
        raise DataError(f"{BIBLE_FILE.name} has a character that is none of its {known.size}.")
    return places.astype(np.int64)


def pieces_of(tokens: Ints, length: int = PIECE) -> tuple[Ints, Ints]:
    """Return the pieces of a text and the next token at each place; what is left over is dropped.

    Examples
    --------
    >>> x, y = pieces_of(np.arange(8), length=3)
    >>> x.tolist(), y.tolist()
    ([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, 6]])
    """
    end = (tokens.size - 1) // length * length
    return tokens[:end].reshape(-1, length), tokens[1 : end + 1].reshape(-1, length)


BIBLE = DatasetEntry(
    about="the next character in the King James Bible (Debian's bible-kjv-text), by book",
    shape=(PIECE,),
    class_names=tuple(CHARACTERS),
    train=46_551,
    test=5_137,
    load=load_bible,
    files=(BIBLE_FILE,),
    sources=(DebianPackage("bible-kjv-text"),),
    task="next-token",
    defaults={
        "model.name": "gru",
        "data.split": "groups",
        "data.clients": BOOKS,
        "data.train_samples": TRAINED_PIECES,
        "training.learning_rate": 0.5,
    },
)
