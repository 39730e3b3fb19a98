"""Which strategies an app of somebody's own cannot have, since its clients are not FLamma's."""

from __future__ import annotations

from typing import Any

from flamma.errors import FlammaError
from flamma.strategies.base import Strategy

_CLIENT_SIDE = {
    "survey": "asks clients for their losses before it selects",
    "prepare": "changes how clients train by vectors of its own",
    "personal_work": "lets clients train models for themselves",
}
"""The methods of a strategy that need FLamma's own clients, and what they are for."""


def check_own_app(strategy: Strategy[Any]) -> None:
    """Refuse a strategy that cannot work in an app whose clients are somebody else's.

    Raises
    ------
    FlammaError
        With what it would need.
    """
    if trains := strategy.component_that_needs("server_update"):
        raise FlammaError(
            f"{trains} trains on the server's own data, which it cannot do in an app of your "
            f"own: choose another."
        )
    if strategy.needs.clock:
        raise FlammaError(
            f"{strategy.name} is asynchronous, which needs the virtual clock of FLamma's local "
            f"engine: choose another, or use flamma run --engine local."
        )
    if needed := _needs_our_clients(type(strategy)):
        raise FlammaError(
            f"{strategy.name} {needed}, which the clients of an app of your own cannot do: choose "
            f"another, or run it with flamma run --engine flower or flamma deploy."
        )


def _needs_our_clients(strategy: type[Strategy[Any]]) -> str:
    """Return what a strategy needs FLamma's own clients for, empty if they need not be ours."""
    for method, purpose in _CLIENT_SIDE.items():
        if getattr(strategy, method) is not getattr(Strategy, method):
            return purpose
    return "lets clients keep a vector from round to round" if strategy.needs.client_memory else ""
