"""What clients last sent, one row of weights each, as a value that never changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from flamma.errors import RunError, StrategyError
from flamma.io import check_regular
from flamma.types import Floats, Ints, Params

# A file of equally long rows of weights in numbered slots, read and written by need.
#
# Nothing of it is mapped into memory or cached in the process: a row is read when it is asked
# for, and the system's page cache keeps what there is room for.

_HEADER_BYTES: Final = 4
"""Before the numbers of a row stands the power of two that they are multiples of."""

_HALF_EXPONENT: Final = 15
"""The numbers of a float16 row are scaled to less than 2 to this, far from its largest value."""

_LARGEST_SCALED: Final = 2.0**_HALF_EXPONENT - 16
"""The largest float16 below that: rounding up to the power could leave the range of float32."""

_EXPONENT_GAP: Final = 112
"""How much larger the exponent's bias is in float32 than in float16."""

THREADED_NUMBERS: Final = 2**25
"""From so many numbers on a sum is worth more than one thread."""

COLUMNS_PER_THREAD: Final = 2**14
"""With fewer numbers of a row each, threads wait for one another more than they add up."""

_FLOAT16_BITS: Final = np.int32(~0x70001FFF)
"""The bits of a float32 that those of a float16, shifted into their places, may have."""


class _RowFile:
    """Numbered slots for rows of ``size`` weights, and which of them are in use.

    Parameters
    ----------
    size : int
        Weights in a row.
    half : bool
        Whether they are kept in float16, each row with a power of two of its own as its unit.
    path : Path, optional
        Where the file is, made with the first row; without one it is an unnamed temporary file.
    """

    def __init__(self, size: int, half: bool, path: Path | None = None) -> None:
        self.size = size
        self.half = half
        self.path = path
        self.slot_bytes = _HEADER_BYTES + size * (2 if half else 4)
        self._descriptor = -1
        self._uses = np.zeros(0, dtype=np.int64)
        self._released: deque[Ints] = deque()

    def hold(self, slots: Ints, owner: object) -> None:
        """Keep these slots from being written again as long as their owner lives.

        Whichever thread drops the owner, its slots are counted off by the next :meth:`allocate`.
        """
        self._grow(int(np.max(slots, initial=-1)) + 1)
        self._uses[slots] += 1
        weakref.finalize(owner, self._released.append, slots).atexit = False

    def allocate(self, count: int) -> Ints:
        """Return so many slots that nothing holds, for an owner that will hold them."""
        while self._released:
            self._uses[self._released.popleft()] -= 1
        unused = np.flatnonzero(self._uses == 0)
        self._grow(self._uses.size + count - unused.size)
        return np.flatnonzero(self._uses == 0)[:count]

    def write(self, slot: int, content: bytes) -> None:
        """Write one row as :meth:`encode` made it."""
        try:
            descriptor, written = self._opened(), 0
            while written < len(content):
                place = slot * self.slot_bytes + written
                written += os.pwrite(descriptor, content[written:], place)
        except OSError as error:
            raise self._cannot_write(error) from error

    def read(self, slot: int) -> bytes:
        """Return the content of one slot; shorter than a row if the file is cut off."""
        return self._pread(self.slot_bytes, slot)

    def sync(self) -> None:
        """Make all rows survive a power failure."""
        if self._descriptor < 0:
            return
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._cannot_write(error) from error

    def check_room(self, slots: int, purpose: str) -> None:
        """Refuse what the disk has no room for.

        Raises
        ------
        RunError
            With what is needed and what is free.
        """
        folder = self._folder
        free = shutil.disk_usage(folder).free
        if self.path is not None and self.path.exists():
            free += self.path.stat().st_size
        if slots * self.slot_bytes > free:
            raise RunError(
                f"{purpose} takes up to {slots * self.slot_bytes / 1e9:,.1f} GB on disk, but "
                f"{free / 1e9:,.1f} GB are free in {folder}: make room, choose another directory, "
                f"or use fewer clients, a smaller model, or a strategy without a memory, such as "
                f"flamma or fedavg."
            )

    def encode(self, row: Params) -> bytes:
        """Return the bytes of a row; in float16 a number is off by 2^-11 of itself at most.

        Numbers below 2^-28 of the row's largest are off by up to 2^-39 of the largest.
        """
        if not self.half:
            return bytes(_HEADER_BYTES) + row.tobytes()
        most = float(np.max(np.abs(row), initial=0.0))
        exponent = int(np.frexp(most)[1]) - _HALF_EXPONENT
        scaled = np.clip(np.ldexp(row, -exponent), -_LARGEST_SCALED, _LARGEST_SCALED)
        return (
            exponent.to_bytes(_HEADER_BYTES, "little", signed=True)
            + scaled.astype(np.float16).tobytes()
        )

    def decode(self, content: bytes) -> Params:
        """Return the row of these bytes."""
        self._check(len(content), self.slot_bytes)
        row = np.frombuffer(
            content, dtype=np.float16 if self.half else np.float32, offset=_HEADER_BYTES
        )
        return np.ldexp(row.astype(np.float32), _exponent(content))

    def weighted_sum(self, slots: Ints, weights: Floats) -> Floats:
        """Return Σ w_k row_k in double precision, added up one by one in the order given.

        Each number is a sum of its own, so how many threads share them does not show.
        """
        exponents = [_exponent(self._pread(_HEADER_BYTES, slot)) for slot in slots.tolist()]
        scaled = np.ldexp(weights, exponents).tolist()
        threads = min(usable_cores(), self.size // COLUMNS_PER_THREAD)
        if slots.size * self.size < THREADED_NUMBERS or threads < 2:
            return self._sum(slots, scaled, 0, self.size)
        cuts = [k * self.size // threads for k in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            sums = pool.map(lambda cut: self._sum(slots, scaled, *cut), pairwise(cuts))
            return np.concatenate([*sums])

    def _sum(self, slots: Ints, weights: Sequence[float], first: int, last: int) -> Floats:
        """Return the sum of some of the columns.

        The bits of a float16, moved to where a float32 has them, are its value but for a power of
        two. NumPy's own conversion takes twice as long.
        """
        count, width = last - first, 2 if self.half else 4
        total, product = np.zeros(count), np.empty(count)
        numbers = np.empty(count, dtype=np.float32)
        bits, unit = numbers.view(np.int32), 2.0**_EXPONENT_GAP
        halves = np.empty(count if self.half else 0, dtype=np.int16)
        for slot, weight in zip(slots.tolist(), weights, strict=True):
            place = slot * self.slot_bytes + _HEADER_BYTES + first * width
            into: NDArray[Any] = halves if self.half else numbers
            self._check(self._preadv(into, place), into.nbytes)
            if self.half:
                np.left_shift(halves, np.int32(13), out=bits, dtype=np.int32)
                np.bitwise_and(bits, _FLOAT16_BITS, out=bits)
                weight *= unit
            np.multiply(numbers, weight, out=product, dtype=np.float64)
            np.add(total, product, out=total)
        return total

    @property
    def where(self) -> str:
        """What the file is called in messages."""
        return "a temporary file" if self.path is None else str(self.path)

    @property
    def _folder(self) -> Path:
        """The nearest folder that exists already."""
        if self.path is None:
            return Path(tempfile.gettempdir())
        return next(folder for folder in self.path.absolute().parents if folder.exists())

    def _pread(self, count: int, slot: int) -> bytes:
        try:
            return os.pread(self._opened(), count, slot * self.slot_bytes)
        except OSError as error:
            raise RunError(f"cannot read {self.where}: {error.strerror}.") from error

    def _preadv(self, into: NDArray[Any], place: int) -> int:
        try:
            return os.preadv(self._opened(), [into.data], place)
        except OSError as error:
            raise RunError(f"cannot read {self.where}: {error.strerror}.") from error

    def _cannot_write(self, error: OSError) -> RunError:
        return RunError(
            f"cannot write the clients' rows to {self.where}: {error.strerror}; make room, then "
            f"flamma resume."
        )

    def _check(self, found: int, wanted: int) -> None:
        if found != wanted:
            raise RunError(f"{self.where} is damaged: it ends before its last row.")

    def _grow(self, slots: int) -> None:
        more = max(0, slots - self._uses.size)
        self._uses = np.concatenate((self._uses, np.zeros(more, dtype=np.int64)))

    def _opened(self) -> int:
        if self._descriptor < 0:
            if self.path is None:
                self._descriptor, name = tempfile.mkstemp()
                os.unlink(name)
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            weakref.finalize(self, os.close, self._descriptor).atexit = False
            check_regular(self._descriptor, Path(self.where))
        return self._descriptor


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _exponent(content: bytes) -> int:
    return int.from_bytes(content[:_HEADER_BYTES], "little", signed=True)


RowFormat = Literal["auto", "float32", "float16"]

_FLOAT32_ROWS_BYTES = 2**28
"""By default rows are in float32 as long as those of all clients together are no larger."""

MATRIX_BYTES = 2**30
"""The largest matrix of rows that is put together in memory, for aggregators that need one."""

Checksums = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of weights of the clients that have one, in slots of a file.

    New rows go to slots that no living ``Rows`` uses, so one that was saved, or that a round
    started from, stays as it was. Memory is taken for one row at a time.

    Attributes
    ----------
    slots : ndarray
        Each client's slot, -1 for one without a row.
    checksums : ndarray
        The start of the SHA-256 of each client's row as it is in the file.
    file : _RowFile
        Where the rows are.
    most_slots : int
        How many slots there may be in the file, those of older checkpoints among them.
    """

    slots: Ints
    checksums: Checksums
    file: _RowFile
    most_slots: int

    def __post_init__(self) -> None:
        self.file.hold(self.slots[self.slots >= 0], self)

    @classmethod
    def empty(cls, clients: int, size: int, kept_as: RowFormat, most_slots: int) -> Self:
        """Return the rows of a server that has not heard from any client."""
        fits = clients * size * np.float32().nbytes <= _FLOAT32_ROWS_BYTES
        half = kept_as == "float16" or (kept_as == "auto" and not fits)
        none = np.full(clients, -1, dtype=np.int64)
        return cls(none, np.zeros(clients, dtype=np.uint64), _RowFile(size, half), most_slots)

    @property
    def known(self) -> Ints:
        """The clients that have a row, in order."""
        return np.flatnonzero(self.slots >= 0)

    def updated(self, clients: Sequence[int], rows: Iterable[Params], forgotten: Ints) -> Rows:
        """Return the rows with new ones of some clients, and without those of forgotten ones."""
        slots, checksums = self.slots.copy(), self.checksums.copy()
        slots[forgotten] = -1
        taken = self.file.allocate(len(clients)).tolist()
        for slot, client, row in zip(taken, clients, rows, strict=True):
            content = self.file.encode(row)
            self.file.write(slot, content)
            slots[client], checksums[client] = slot, _checksum(content)
        return replace(self, slots=slots, checksums=checksums)

    def weighted_sum(self, clients: Ints, weights: Floats) -> Floats:
        """Return Σ w_i row_i in double precision, added up one by one in the order given."""
        return self.file.weighted_sum(self.slots[clients], weights)

    def each(self, clients: Ints) -> Iterator[Params]:
        """Yield the rows of these clients."""
        for slot in self.slots[clients].tolist():
            yield self.file.decode(self.file.read(slot))

    def matrix(self, clients: Ints) -> Params:
        """Return the rows of these clients as a matrix.

        Raises
        ------
        StrategyError
            If it would be larger than ``MATRIX_BYTES``.
        """
        check_matrix(clients.size, self.file.size)
        matrix = np.empty((clients.size, self.file.size), dtype=np.float32)
        for place, row in enumerate(self.each(clients)):
            matrix[place] = row
        return matrix

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Params:
        """Return a matrix with a row for every client, zero for one that has none."""
        whole = np.zeros((self.slots.size, self.file.size), dtype=dtype or np.float32)
        whole[self.known] = self.matrix(self.known)
        return whole

    def intact(self) -> bool:
        """Return whether every row is as it was written."""
        known = self.known
        return all(
            _checksum(self.file.read(slot)) == checksum
            for slot, checksum in zip(
                self.slots[known].tolist(), self.checksums[known].tolist(), strict=True
            )
        )

    def emptied(self) -> Rows:
        """Return no rows, of as many clients."""
        return replace(self, slots=np.full_like(self.slots, -1))

    def moved(self, path: Path) -> Rows:
        """Return these rows, of which there are none yet, with a file of their own at a path.

        Raises
        ------
        RunError
            If the disk has no room for as many as there may be.
        """
        assert not self.known.size
        file = _RowFile(self.file.size, self.file.half, path)
        kind = "float16" if file.half else "float32"
        purpose = (
            f"remembering {self.slots.size:,} clients with {file.size:,} weights each in {kind}"
        )
        file.check_room(self.most_slots, purpose)
        return replace(self, file=file)

    def table(self) -> dict[str, NDArray[Any]]:
        """Return who has a row, where it is and its checksum: what a checkpoint has of it."""
        known = self.known
        return {"clients": known, "slots": self.slots[known], "checksums": self.checksums[known]}

    def restored(self, table: Mapping[str, NDArray[Any]]) -> Rows:
        """Return the rows of the same file that :meth:`table` told of.

        Raises
        ------
        RunError
            If that is no table of such rows.
        """
        slots, checksums = np.full_like(self.slots, -1), np.zeros_like(self.checksums)
        try:
            clients = table["clients"]
            slots[clients], checksums[clients] = table["slots"], table["checksums"]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise RunError(
                "the checkpoint is of another configuration than config.toml."
            ) from error
        return replace(self, slots=slots, checksums=checksums)


def check_matrix(rows: int, size: int) -> None:
    """Refuse to put more rows together than fit into a matrix.

    Raises
    ------
    StrategyError
        With the figures.
    """
    needed = rows * size * np.float32().nbytes
    if needed > MATRIX_BYTES:
        raise StrategyError(
            f"an aggregator other than mean needs all rows at once, {needed / 1e9:,.1f} GB for "
            f"{rows:,} clients with {size:,} weights each, but no more than "
            f"{MATRIX_BYTES / 1e9:,.1f} GB are held in memory: use the aggregator mean, fewer "
            f"clients or a smaller model."
        )


def _checksum(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little")
