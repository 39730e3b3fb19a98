"""Reads compressed text as Chapin's Bible Retrieval System stores it (1989).

The file has a header of 84 bytes, the size of a window of text, the number of windows, where each
begins and where the last one ends (numbers of 32 bits, highest byte first). A window is compressed
as by ``compress -b 16``, without its three bytes of header: T. A. Welch, A technique for
high-performance data compression, Computer 1984.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sized
from itertools import pairwise

from flamma.errors import DataError

SQUASHED_MAGIC = b"EC02Compressed Data File"
SQUASHED_HEADER = 84
MOST_WINDOWS = 10_000
LARGEST_WINDOW = 1 << 20
"""Bytes of text that a window may hold."""

FIRST_BITS, MOST_BITS = 9, 16
CLEAR_CODE = 256
"""The code that empties the table, which comes at the end of a window and nowhere else."""


def unsquash(content: bytes, name: str) -> bytes:
    """Return the text of such a file.

    Raises
    ------
    DataError
        If the file is damaged, or would be larger than its header says.
    """
    if not content.startswith(SQUASHED_MAGIC) or len(content) < SQUASHED_HEADER + 8:
        raise DataError(f"{name} is no compressed text.")
    size, count = struct.unpack_from(">2I", content, SQUASHED_HEADER)
    places = SQUASHED_HEADER + 8
    if size > LARGEST_WINDOW or count > MOST_WINDOWS or len(content) < places + 4 * (count + 1):
        raise DataError(f"{name} has a damaged header.")
    starts = struct.unpack_from(f">{count + 1}I", content, places)
    windows = [unpack_codes(content[a:b], size, name) for a, b in pairwise(starts)]
    return b"".join(windows)


def unpack_codes(content: bytes, most: int, name: str) -> bytes:
    """Return what codes of 9 to 16 bits stand for, at most so many bytes.

    A code below 256 is a byte. Each further code is what the last one stood for and one byte more,
    so a code that is just being defined ends as it begins.

    Examples
    --------
    >>> codes = [ord("a"), 257, ord("b")]  # 257 is "aa", which is just being defined
    >>> packed = sum(code << 9 * place for place, code in enumerate(codes)).to_bytes(4, "little")
    >>> unpack_codes(packed, 10, "letters")
    b'aaab'
    """
    table = [bytes([byte]) for byte in range(256)] + [b""]
    found: list[bytes] = []
    last, length = b"", 0
    for code in _codes(content, table):
        if code == CLEAR_CODE:
            break
        entry = table[code] if code < len(table) else last + last[:1]
        length += len(entry)
        if code > len(table) or not entry or length > most:
            raise DataError(f"{name} is damaged: it has a code that cannot be.")
        if last and len(table) < 1 << MOST_BITS:
            table.append(last + entry[:1])
        found.append(entry)
        last = entry
    return b"".join(found)


def _codes(content: bytes, table: Sized) -> Iterator[int]:
    """Yield the codes, each as long as the table needs at that time.

    Eight codes of one length are a group. Longer codes begin with a new group, so what is left of
    the last one is skipped.
    """
    bits, place, start = FIRST_BITS, 0, 0
    while place + bits <= 8 * len(content):
        byte, shift = divmod(place, 8)
        yield int.from_bytes(content[byte : byte + 4], "little") >> shift & (1 << bits) - 1
        place += bits
        if len(table) == 1 << bits and bits < MOST_BITS:
            place += (start - place) % (8 * bits)
            bits, start = bits + 1, place
