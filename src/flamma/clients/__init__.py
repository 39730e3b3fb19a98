"""Clients: their costs, speeds and behaviours, faults, virtual time, and limits of trust.

Another package adds a behaviour, a kind of costs or a kind of speeds by an entry point; see
:mod:`flamma.clients.behaviours` and :mod:`flamma.clients.costs`.

Examples
--------
>>> from flamma.clients import COSTS, CostedClients, true_costs
>>> list(COSTS)
['constant', 'lognormal', 'measured', 'csv', 'clock']
>>> true_costs(COSTS.choose({"name": "constant", "value": 0.2}, "costs"), CostedClients(3, seed=0))
array([0.2, 0.2, 0.2])
"""

from flamma.clients.behaviours import BEHAVIOURS, Behaviour, Encounter, Introduction, Notes
from flamma.clients.costs import COSTS, SPEEDS, CostedClients, PacedClients, true_costs, true_speeds
from flamma.clients.time import Faults, VirtualClock
from flamma.clients.trust import Trust, TrustLimits

__all__ = [
    "BEHAVIOURS",
    "COSTS",
    "SPEEDS",
    "Behaviour",
    "CostedClients",
    "Encounter",
    "Faults",
    "Introduction",
    "Notes",
    "PacedClients",
    "Trust",
    "TrustLimits",
    "VirtualClock",
    "true_costs",
    "true_speeds",
]
