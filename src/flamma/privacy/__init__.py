"""Central differential privacy: clients' updates are clipped, and noise hides each one of them.

The neighbouring relation is zero-out (Ponomareva et al., "How to DP-fy ML", JAIR 77, 2023): two
runs are neighbours if in one of them every update of a single client is the zero vector. The client
still counts in the mean, since who took part and with how many samples is public.
:mod:`flamma.privacy.mechanism` releases noisy updates to the strategy, which sees nothing else, and
:mod:`flamma.privacy.accounting` computes what the releases together have cost.
"""

from flamma.privacy.accounting import epsilon_spent as epsilon_spent
from flamma.privacy.accounting import require_accountant as require_accountant
from flamma.privacy.mechanism import PrivateRounds as PrivateRounds
from flamma.privacy.table import PrivacyConfig as PrivacyConfig
from flamma.privacy.table import losses_refused as losses_refused
