"""FLamma's strategies in a Flower app of your own.

On the server, :class:`FlammaStrategy`, or :class:`FlowerStrategy` with the name of any registered
strategy, takes the place of Flower's. On a client, :func:`respond`, :func:`batches`,
:func:`reply` and :func:`introduce` add the best response to an existing ``@app.train()``. See
``docs/how-to/flower.md``.

Examples
--------
>>> from flamma.flower import FlowerStrategy
>>> strategy = FlowerStrategy("fedprox", per_round=3, learning_rate=0.1, mu=0.01)

The ServerApp then calls ``strategy.start(grid=grid, initial_arrays=arrays, num_rounds=10)``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flamma.extras import require

if TYPE_CHECKING:
    from flamma.engines.flower.messages import MessageError as MessageError
    from flamma.flower.client import batches as batches
    from flamma.flower.client import introduce as introduce
    from flamma.flower.client import reply as reply
    from flamma.flower.client import respond as respond
    from flamma.flower.strategy import FlammaStrategy as FlammaStrategy
    from flamma.flower.strategy import FlowerStrategy as FlowerStrategy

__all__ = [
    "FlammaStrategy",
    "FlowerStrategy",
    "MessageError",
    "batches",
    "introduce",
    "reply",
    "respond",
]

_LATE = {
    "FlammaStrategy": "flamma.flower.strategy",
    "FlowerStrategy": "flamma.flower.strategy",
    "MessageError": "flamma.engines.flower.messages",
    "batches": "flamma.flower.client",
    "introduce": "flamma.flower.client",
    "reply": "flamma.flower.client",
    "respond": "flamma.flower.client",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'flamma.flower' has no attribute {name!r}")
    require("flamma.flower", "flwr")
    return getattr(import_module(_LATE[name]), name)
