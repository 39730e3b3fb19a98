"""Where a client of a Flower run keeps vectors from one message to the next.

In a simulation they are in the run's directory. A deployed site has them in its own folder, for
the last few runs: it does not learn when a run is over.
"""

from __future__ import annotations

import os
from pathlib import Path

from flamma.clients.behaviours import Notes
from flamma.clients.truth import KEPT, NotesInFiles
from flamma.engines.flower.conduct import Memory, NotesInMemory
from flamma.engines.flower.environment import KEPT_VARIABLE
from flamma.engines.flower.final_model import remove_old_runs
from flamma.engines.flower.messages import MessageError, Order
from flamma.engines.flower.payload import read_configuration

SITE_STATE = "state"
"""The folder beside ``site.toml`` with what outlives a restart of the site."""

_VERSIONS_AT_SITE = 16
"""Rounds of a run whose vectors a site keeps, however far back the server may want to go."""


def strategy_keeps(order: Order) -> bool:
    """Return whether the strategy of an order lets clients keep anything."""
    return read_configuration(order.config).strategy.needs.client_memory


def simulated_kept(order: Order, memory: Memory) -> Notes:
    """Return what a client of a simulation has kept."""
    folder = os.environ.get(KEPT_VARIABLE)
    if folder is None:
        return NotesInMemory(memory, "kept")
    return pruned(NotesInFiles(Path(folder)), order)


def site_kept(site: Path, order: Order) -> Notes:
    """Return what a deployed site has kept of this run, and remove what it has of old ones.

    Parameters
    ----------
    site : Path
        The site's ``site.toml``.
    order : Order
        What the site is asked to do.

    Raises
    ------
    MessageError
        If the order does not say which run it is of.
    """
    if not order.run:
        raise MessageError("the order does not say of which run it is")
    own = site.parent / SITE_STATE / KEPT / order.run
    own.mkdir(parents=True, exist_ok=True)
    os.utime(own)
    remove_old_runs(own)
    kept = NotesInFiles(own)
    rounds = kept.prune_client(order.client, order.earliest, order.round)
    if len(rounds) > _VERSIONS_AT_SITE:
        kept.prune_client(order.client, rounds[-_VERSIONS_AT_SITE])
    return kept


def pruned(notes: Notes, order: Order) -> Notes:
    """Return a client's notes without those that the run will not ask for any more.

    A note of a later round than the last finished one was made before the run was interrupted and
    went on from an earlier round.
    """
    if isinstance(notes, NotesInFiles):
        notes.prune_client(order.client, order.earliest, order.round)
    return notes
