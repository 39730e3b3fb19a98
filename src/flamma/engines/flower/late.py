"""Sites that were not there when a run began, and may come later."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flamma.clients.trust import lower_median
from flamma.data.federated import FederatedData
from flamma.engines.flower.messages import MessageError, SiteProfile
from flamma.types import Ints

LATE_SITES = "late"
"""The key of ``run.json`` with the names of the sites that were not there at the beginning."""


def with_placeholders(
    profiles: Mapping[int, SiteProfile], names: Sequence[str], written: Mapping[str, int]
) -> dict[int, SiteProfile]:
    """Return a profile of every client, made up for those that are not there.

    A late client counts for at most the samples that the operator wrote down, else for the median
    of those that are there, since the samples of a run's clients are fixed when it begins. What
    costs it has is not known, so the configuration says.

    Parameters
    ----------
    profiles : mapping
        What those said that are there, by number; at least one.
    names : sequence of str
        The names of all clients.
    written : mapping
        The samples of clients by name, as far as the operator has written them down.
    """
    some = next(iter(profiles.values()))
    usual = int(lower_median(np.array([profile.samples for profile in profiles.values()])))
    complete = dict(profiles)
    for client, name in enumerate(names):
        if client not in complete:
            complete[client] = SiteProfile(
                name,
                samples=written.get(name, usual),
                held_out=0,
                cost=math.nan,
                own_cost=False,
                shape=some.shape,
                classes=some.classes,
                lanes=True,
                task=some.task,
            )
    return complete


def at_most_recorded(most: Ints, recorded: Ints, late: frozenset[int]) -> Ints:
    """Return the most samples that clients count for: of late ones no more than was recorded."""
    own = [client in late for client in range(most.size)]
    return np.where(own, np.minimum(most, recorded), most)


def check_fits(profile: SiteProfile, data: FederatedData) -> None:
    """Refuse a client whose samples do not fit the model of a run.

    Raises
    ------
    MessageError
        If its task, the shape of its samples or its classes are others.
    """
    if profile.task != data.task:
        raise MessageError(f"it has data of {profile.task}, and the run is one of {data.task}")
    if profile.shape != data.shape or profile.classes > data.classes:
        raise MessageError(
            f"it has samples of the shape {profile.shape} in {profile.classes} classes, and the "
            f"run has {data.shape} in {data.classes}"
        )
