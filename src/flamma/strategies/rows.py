"""What clients last sent, one row of weights each, as a value that never changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from flamma.errors import RunError, StrategyError
from flamma.strategies.row_file import RowFile
from flamma.types import Floats, Ints, Params

RowFormat = Literal["auto", "float32", "float16"]

FLOAT32_ROWS_BYTES = 2**28
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
    file : RowFile
        Where the rows are.
    most_slots : int
        How many slots there may be in the file, those of older checkpoints among them.
    """

    slots: Ints
    checksums: Checksums
    file: RowFile
    most_slots: int

    def __post_init__(self) -> None:
        self.file.hold(self.slots[self.slots >= 0], self)

    @classmethod
    def empty(cls, clients: int, size: int, kept_as: RowFormat, most_slots: int) -> Self:
        """Return the rows of a server that has not heard from any client."""
        fits = clients * size * np.float32().nbytes <= FLOAT32_ROWS_BYTES
        half = kept_as == "float16" or (kept_as == "auto" and not fits)
        none = np.full(clients, -1, dtype=np.int64)
        return cls(none, np.zeros(clients, dtype=np.uint64), RowFile(size, half), most_slots)

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
        file = RowFile(self.file.size, self.file.half, path)
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
