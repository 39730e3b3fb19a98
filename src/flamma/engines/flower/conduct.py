"""How a client behaves: as a simulation's configuration says, or as a site's own file does."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from flamma.clients.behaviours import Behaviour, Notes, assign
from flamma.clients.truth import NotesInFiles, groups_of
from flamma.engines.flower.environment import NOTES_VARIABLE
from flamma.engines.flower.payload import read_configuration
from flamma.errors import ConfigError
from flamma.types import Inputs, Params, Targets

Memory = MutableMapping[str, Any]
"""What a client keeps from one message to the next: a measured cost, a lanes plan, a note."""

_Samples = Callable[[int], tuple[Inputs, Targets]]
"""Returns another client's training samples and targets."""


class NotesInMemory(Notes):
    """The last note of one client, in the memory that lasts as long as Flower's run.

    Notes of different names do not know of each other.
    """

    def __init__(self, memory: Memory, name: str = "note") -> None:
        super().__init__()
        self.memory = memory
        self.name, self.name_of_round = name, f"{name} of round"

    def write(self, client: int, round: int, note: Params) -> None:
        """Keep a vector in place of the one before."""
        self.memory[self.name] = note.astype("<f4", copy=False).tobytes()
        self.memory[self.name_of_round] = round

    def read(self, client: int, round: int) -> Params | None:
        """Return the last note if it is of an earlier round, None if there is none."""
        if self.name not in self.memory or self.memory[self.name_of_round] >= round:
            return None
        return np.frombuffer(self.memory[self.name], dtype="<f4").astype(np.float32)


def _no_others(client: int) -> tuple[Inputs, Targets]:
    """Refuse to look for another client's data: a site has none."""
    raise ConfigError(f"a site has no data of client {client}.")


@dataclass(frozen=True, eq=False)
class ClientConduct:
    """How one client behaves, and what it needs for that.

    Attributes
    ----------
    behaviour : Behaviour
        Honest by default.
    notes : Notes
        What it keeps from round to round.
    group : tuple of int
        The clients that it may collude with.
    introduces : bool
        Whether the behaviour also decides what the client tells of itself. In a simulation the
        client tells the truth, and the server's process, which records it, asks the behaviour.
    samples_of : callable
        Returns the data of another client.
    """

    behaviour: Behaviour = field(default_factory=Behaviour)
    notes: Notes = field(default_factory=Notes)
    group: tuple[int, ...] = ()
    introduces: bool = False
    samples_of: _Samples = _no_others


def site_conduct(behaviour: Behaviour, memory: Memory) -> ClientConduct:
    """Return how a deployed site behaves; the server has no say in it."""
    return ClientConduct(
        behaviour, NotesInMemory(memory), introduces=type(behaviour) is not Behaviour
    )


def simulated_conduct(
    text: str, client: int, samples_of: _Samples, memory: Memory
) -> ClientConduct:
    """Return how a client of a simulation behaves, as the configuration says."""
    behaviours, groups = _assigned(text)
    if client not in behaviours:
        return ClientConduct()
    behaviour, folder = behaviours[client], os.environ.get(NOTES_VARIABLE)
    notes = NotesInFiles(Path(folder)) if folder else NotesInMemory(memory)
    return ClientConduct(behaviour, notes, groups[id(behaviour)], samples_of=samples_of)


@lru_cache(maxsize=1)
def _assigned(text: str) -> tuple[Mapping[int, Behaviour], Mapping[int, tuple[int, ...]]]:
    config = read_configuration(text)
    behaviours = assign(config.behaviours, config.data.clients, config.seed)
    return behaviours, groups_of(behaviours)
