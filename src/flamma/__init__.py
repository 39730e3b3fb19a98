"""FLamma: fair, incentive-compatible federated learning as a Stackelberg game.

The heavy parts load when they are first used, so ``import flamma`` costs next to nothing.
"""

from flamma.errors import FlammaError as FlammaError

__version__ = "0.1.0"
