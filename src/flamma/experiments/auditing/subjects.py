"""Which clients are audited: by number, or by the place of their true cost among all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from flamma.errors import ConfigError
from flamma.names import quoted
from flamma.types import Floats

ROLES: Mapping[str, Callable[[int], int]] = {
    "cheapest": lambda clients: 0,
    "median": lambda clients: clients // 2,
    "dearest": lambda clients: clients - 1,
}
"""Clients by their place among all in the order of their true costs."""


def choose_subjects(given: Sequence[str | int] | None, costs: Floats) -> dict[str, int]:
    """Return the clients that are audited, by what they are called; one may have two names.

    Raises
    ------
    ConfigError
        If a client does not exist.

    Examples
    --------
    >>> choose_subjects(None, np.array([0.3, 0.1, 0.2]))
    {'cheapest': 1, 'median': 2, 'dearest': 0}
    >>> choose_subjects(["2", "dearest"], np.array([0.3, 0.1, 0.2]))
    {'2': 2, 'dearest': 0}
    """
    order = np.argsort(costs, kind="stable")
    found: dict[str, int] = {}
    for name in given or ROLES:
        chosen = {str(name): -1}
        if name == "all":
            chosen = {str(client): client for client in range(costs.size)}
        elif name in ROLES:
            chosen = {str(name): int(order[ROLES[str(name)](costs.size)])}
        elif str(name).isascii() and str(name).isdigit():
            chosen = {str(int(name)): int(name)}
        if not all(0 <= client < costs.size for client in chosen.values()):
            raise ConfigError(
                f"there is no client {quoted(name)} to audit: use a number from 0 to "
                f"{costs.size - 1}, all, {', '.join(list(ROLES)[:-1])} or {list(ROLES)[-1]}."
            )
        found |= chosen
    return found
