"""Behaviours: what a client tells, does and sends back; honest unless a run says otherwise.

The server sees only what it is told. Another package adds a behaviour by an entry point of the
group ``flamma.behaviours`` that names a frozen dataclass derived from :class:`Behaviour`; its
fields are its options.
"""

from flamma.clients.behaviours.assignment import BehaviourAssignment as BehaviourAssignment
from flamma.clients.behaviours.assignment import assign as assign
from flamma.clients.behaviours.assignment import make_behaviour as make_behaviour
from flamma.clients.behaviours.assignment import read_assignments as read_assignments
from flamma.clients.behaviours.catalogue import BEHAVIOURS as BEHAVIOURS
from flamma.clients.behaviours.contract import Behaviour as Behaviour
from flamma.clients.behaviours.contract import Encounter as Encounter
from flamma.clients.behaviours.contract import Introduction as Introduction
from flamma.clients.behaviours.contract import Notes as Notes
from flamma.clients.behaviours.truth import TrueClients as TrueClients
from flamma.clients.behaviours.truth import told as told
