"""FLamma's strategies inside a Flower app of your own.

On the server, :class:`FlammaStrategy` or any registered strategy by name takes the place of
Flower's. On a client, :func:`respond`, :func:`batches`, :func:`reply` and :func:`introduce` add the
best response to an existing ``@app.train()``. See ``docs/how-to/flower.md``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flamma.errors import MissingExtraError

if TYPE_CHECKING:
    from flamma.engines.flower.own import batches as batches
    from flamma.engines.flower.own import introduce as introduce
    from flamma.engines.flower.own import reply as reply
    from flamma.engines.flower.own import respond as respond
    from flamma.engines.flower.strategy import FlammaStrategy as FlammaStrategy
    from flamma.engines.flower.strategy import FlowerStrategy as FlowerStrategy

_LATE = {
    "FlammaStrategy": "strategy",
    "FlowerStrategy": "strategy",
    "batches": "own",
    "introduce": "own",
    "reply": "own",
    "respond": "own",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'flamma.flower' has no attribute {name!r}")
    try:
        module = import_module(f"flamma.engines.flower.{_LATE[name]}")
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == "flwr":
            raise MissingExtraError("flamma.flower", "flower") from error
        raise
    return getattr(module, name)
