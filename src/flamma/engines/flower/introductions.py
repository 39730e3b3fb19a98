"""What a server makes of the introductions of its clients: data that fit theirs, and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flamma.data.federated import FederatedData
from flamma.engines.flower.handover import no_data, with_validation
from flamma.engines.flower.messages import SiteProfile
from flamma.errors import ConfigError, RunError
from flamma.experiments.config import OWN, Config
from flamma.experiments.engine import NetworkEngine
from flamma.types import Floats, Ints


def server_data(
    config: Config,
    profiles: Sequence[SiteProfile],
    data: FederatedData | None,
    labels: tuple[str, ...] = (),
) -> FederatedData:
    """Return the data the server evaluates on; the clients' samples must have the same shape.

    ``labels`` are the classes as all clients call them.
    """
    shapes = {profile.shape for profile in profiles}
    classes = max(profile.classes for profile in profiles)
    tasks = sorted({profile.task for profile in profiles})
    assert isinstance(config.engine, NetworkEngine)
    own = config.engine.validation_set()
    if own is not None and (data is not None or config.data.dataset != OWN):
        raise ConfigError(
            f"a validation set of the server's own is for sites that bring data of their own, not "
            f"for slices of {config.data.dataset}, which has one: remove [validation]."
        )
    if data is None and config.data.dataset != OWN:
        from flamma.experiments.run import build_data

        data = build_data(config)
    if data is None:
        named = labels if len(labels) == classes else ()
        data = no_data(sorted(shapes)[0], classes, tasks[0], named)
        data = data if own is None else with_validation(data, *own)
    if tasks != [data.task]:
        others = ", ".join(task for task in tasks if task != data.task)
        raise RunError(f"the run is one of {data.task}, but clients have data of {others}.")
    if shapes != {data.shape} or classes > data.classes:
        found = ", ".join(str(shape) for shape in sorted(shapes))
        raise RunError(
            f"the run has samples of the shape {data.shape} in {data.classes} classes, but the "
            f"clients have {found} in up to {classes}."
        )
    return data


def reported_samples(profiles: dict[int, SiteProfile]) -> tuple[Ints, Ints]:
    """Return how many training and held-out samples each client has."""
    ordered = [profiles[k] for k in sorted(profiles)]
    train = np.array([profile.samples for profile in ordered], dtype=np.int64)
    return train, np.array([profile.held_out for profile in ordered], dtype=np.int64)


def reported_costs(profiles: dict[int, SiteProfile]) -> Floats:
    """Return the clients' own costs: NaN if one is not told, infinite if a client has none."""
    ordered = [profiles[k] for k in sorted(profiles)]
    return np.array([p.cost if p.own_cost else math.inf for p in ordered])
