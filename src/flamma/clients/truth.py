"""True client costs and efforts, used only for records and certificates; notes in files."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from flamma.clients.behaviours import Behaviour, BestReport, Encounter, Introduction, Notes, Respond
from flamma.io import read_regular, sync_file, sync_folder, write_atomically
from flamma.types import LocalWork, Params, Population, Profile, Terms


def profile_of(population: Population, client: int) -> Profile:
    """Return the profile of a client; its cost is NaN where it has none."""
    cost = float("nan") if population.costs is None else float(population.costs[client])
    return Profile(client, cost, int(population.samples[client]))


def told(
    population: Population,
    behaviours: Mapping[int, Behaviour],
    best_report: BestReport | None = None,
) -> Population:
    """Return the population as the clients report it to the server."""
    if not behaviours:
        return population
    samples = population.samples.copy()
    costs = None if population.costs is None else population.costs.copy()
    for client, behaviour in behaviours.items():
        true = profile_of(population, client)
        said = behaviour.tell(Introduction(true, population, best_report))
        samples[client] = said.samples
        if costs is not None:
            costs[client] = said.cost
    return replace(population, samples=samples, costs=costs)


@dataclass(frozen=True, eq=False)
class TrueClients:
    """The clients and their actual work.

    Attributes
    ----------
    population : Population
        The true one.
    behaviours : mapping of int to Behaviour
        Of the clients that are not honest.
    respond : callable, optional
        The strategy's; None where the work of clients is not known.
    seed : int
        Of the run.
    """

    population: Population
    behaviours: Mapping[int, Behaviour] = field(default_factory=dict)
    respond: Respond | None = None
    seed: int = 0

    def honest_task(self, terms: Terms) -> LocalWork:
        """Return the work of an honest client for an offer."""
        assert self.respond is not None
        return self.respond(terms, profile_of(self.population, terms.client))

    def encounter(self, terms: Terms) -> Encounter:
        """Return an offer as its client sees it."""
        assert self.respond is not None
        profile = profile_of(self.population, terms.client)
        group = self._groups.get(id(self.behaviours.get(terms.client)), ())
        return Encounter(terms, profile, self.respond, self.seed, group)

    def task(self, terms: Terms) -> LocalWork:
        """Return the work of a client for an offer, honest or not."""
        behaviour = self.behaviours.get(terms.client)
        if behaviour is None:
            return self.honest_task(terms)
        return behaviour.act(self.encounter(terms))

    def effort(self, terms: Terms, selected: tuple[int, ...]) -> float | None:
        """Return the effort of a client that is not honest; None if it does what it reports."""
        behaviour = self.behaviours.get(terms.client)
        if behaviour is None or self.respond is None:
            return None
        encounter = self.encounter(terms)
        task = behaviour.act(encounter)
        return behaviour.effort(task, replace(encounter, selected=selected))

    @cached_property
    def _groups(self) -> dict[int, tuple[int, ...]]:
        return groups_of(self.behaviours)


def groups_of(behaviours: Mapping[int, Behaviour]) -> dict[int, tuple[int, ...]]:
    """Return the clients that have each behaviour, in order, by its identity.

    All clients of one entry of ``[behaviours]`` have one and the same object.
    """
    groups: dict[int, list[int]] = {}
    for client, behaviour in sorted(behaviours.items()):
        groups.setdefault(id(behaviour), []).append(client)
    return {key: tuple(clients) for key, clients in groups.items()}


# Notes of clients in files, so that a run that was interrupted goes on as if it was not.

NOTES = "notes"
"""The folder of a run directory with the notes of clients."""

KEPT = "kept"
"""The folder with the vectors that strategies store at clients, such as control variates."""

_NOTE_SUFFIX = ".note"
_DIGEST_BYTES = hashlib.sha256().digest_size


class NotesInFiles(Notes):
    """Notes in a folder, which is made with the first one: a folder per client, a file per round.

    A client's folder has a few files only, so that reading does not take longer with many clients,
    and any process finds what another one has written. A note whose checksum is wrong counts as
    lost.

    Parameters
    ----------
    folder : Path
        Where they are.
    durable : bool
        Whether each note is synced to disk at once; else by :meth:`sync`.
    """

    def __init__(self, folder: Path, durable: bool = True) -> None:
        super().__init__()
        self.folder = folder
        self.durable = durable
        self._unsynced: deque[Path] = deque()
        self._unpruned: set[int] | None = None  # not known before the folder was looked through

    def write(self, client: int, round: int, note: Params) -> None:
        """Keep a vector."""
        content = note.astype("<f4", copy=False).tobytes()
        path = self._of(client) / f"{round}{_NOTE_SUFFIX}"
        write_atomically(path, hashlib.sha256(content).digest() + content, self.durable)
        if not self.durable:
            self._unsynced.append(path)
        if self._unpruned is not None:
            self._unpruned.add(client)

    def read(self, client: int, round: int) -> Params | None:
        """Return the client's last note of an earlier round, None if there is none."""
        earlier = [number for number in self.rounds(client) if number < round]
        if not earlier:
            return None
        try:
            content = read_regular(self._of(client) / f"{earlier[-1]}{_NOTE_SUFFIX}")
        except OSError:
            return None
        digest, vector = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(vector).digest() != digest:
            return None
        return np.frombuffer(vector, dtype="<f4").astype(np.float32)

    def rounds(self, client: int) -> list[int]:
        """Return the rounds of which a client has a note, in order."""
        try:
            names = os.listdir(self._of(client))
        except (FileNotFoundError, NotADirectoryError):
            return []
        stems = [name.removesuffix(_NOTE_SUFFIX) for name in names if name.endswith(_NOTE_SUFFIX)]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def sync(self) -> None:
        """Make all notes survive a power failure, before a checkpoint depends on them."""
        folders: set[Path] = set()
        while self._unsynced:
            path = self._unsynced.popleft()
            sync_file(path)
            folders |= {path.parent, self.folder, self.folder.parent}
        for folder in sorted(folders):
            sync_folder(folder)

    def prune(self, earliest: int) -> None:
        """Remove every note that no run reads which goes on from this round or a later one."""
        clients = self._unpruned
        if clients is None:
            names = os.listdir(self.folder) if self.folder.is_dir() else []
            clients = {int(name) for name in names if name.isdecimal()}
        # Who has several notes of later rounds has something to remove when these are earlier.
        self._unpruned = {c for c in sorted(clients) if len(self.prune_client(c, earliest)) > 1}

    def prune_client(self, client: int, earliest: int, latest: float = math.inf) -> list[int]:
        """Remove a client's notes that are not needed from ``earliest`` on, or after ``latest``.

        Returns the rounds of those that remain.
        """
        rounds = self.rounds(client)
        needed = max((number for number in rounds if number <= earliest), default=earliest)
        remaining = [number for number in rounds if needed <= number <= latest]
        for number in set(rounds) - set(remaining):
            with contextlib.suppress(FileNotFoundError):
                (self._of(client) / f"{number}{_NOTE_SUFFIX}").unlink()
        return remaining

    def _of(self, client: int) -> Path:
        return self.folder / str(client)
