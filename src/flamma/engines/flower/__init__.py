"""Our runs over Flower: in its simulation, or with clients at real sites.

Strategies, responses, trainers and records are the same as on every engine. This package only
carries them in Flower's messages. For a Flower app of your own, see :mod:`flamma.flower`.

Examples
--------
>>> from flamma.engines.flower import simulation
>>> simulation.FlowerSimulation.summary
"Flower's simulation, with clients in Ray's processes"
"""

__all__ = ["client_app", "server_app", "simulation"]
