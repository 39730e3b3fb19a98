"""The rounds of a run: the same loop for every strategy and every engine."""

from flamma.federation.certification import certified as certified
from flamma.federation.loop import Clients as Clients
from flamma.federation.loop import Federation as Federation
from flamma.federation.loop import Finished as Finished
