"""Notes of clients in files, so that a run that was interrupted goes on as if it was not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flamma.clients.behaviours.contract import Notes
from flamma.files import write_atomically
from flamma.types import Params

NOTES = "notes"
"""The folder of a run directory with what clients kept from one round to another."""


KEPT = "kept"
"""The folder with what strategies let clients keep, such as control variates or own models."""


class NotesInFiles(Notes):
    """Notes in a folder, which is made with the first one: a file for each client and round.

    They are never removed: a behaviour that writes one in every round fills the disk.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def write(self, client: int, round: int, note: Params) -> None:  # noqa: A002
        """Keep a vector."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = note.astype("<f4", copy=False).tobytes()
        write_atomically(self.folder / f"{client}-{round}.f4", content)

    def read(self, client: int, round: int) -> Params | None:  # noqa: A002
        """Return the client's last note of an earlier round, None if there is none."""
        found = {int(f.stem.partition("-")[2]): f for f in self.folder.glob(f"{client}-*.f4")}
        earlier = [number for number in found if number < round]
        if not earlier:
            return None
        return np.frombuffer(found[max(earlier)].read_bytes(), dtype="<f4").astype(np.float32)
