"""Contract suites for strategies, splits and the other parts that packages can add; needs pytest.

Derive a test class from the suite and name the entry; pytest collects the suite's tests with it:

    from flamma.testing import StrategyContract

    class TestMine(StrategyContract):
        name = "my-strategy"
"""

from flamma.testing.parts import (
    AggregatorContract,
    BehaviourContract,
    ContributionContract,
    CostContract,
    MetricContract,
    RewardContract,
    SplitContract,
)
from flamma.testing.strategies import StrategyContract

__all__ = [
    "AggregatorContract",
    "BehaviourContract",
    "ContributionContract",
    "CostContract",
    "MetricContract",
    "RewardContract",
    "SplitContract",
    "StrategyContract",
]
