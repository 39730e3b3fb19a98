"""Central differential privacy: clients' updates are clipped, and noise hides each one of them.

What is protected is a client, with all of its data: two runs are neighbours if in one of them the
updates of a single client are replaced by no update at all. :mod:`flamma.privacy.mechanism`
releases noisy updates to the strategy, which sees nothing else, and
:mod:`flamma.privacy.accounting` tells what the releases together have cost.
"""

from flamma.privacy.accounting import epsilon_spent as epsilon_spent
from flamma.privacy.accounting import require_accountant as require_accountant
from flamma.privacy.mechanism import PrivateRounds as PrivateRounds
from flamma.privacy.table import PrivacyConfig as PrivacyConfig
from flamma.privacy.table import losses_refused as losses_refused
