"""Contract suites for strategies, splits and the other parts that packages can add; needs pytest.

Derive a test class from the suite and name the entry; pytest collects the suite's tests with it:

    from flamma.testing import StrategyContract

    class TestMine(StrategyContract):
        name = "my-strategy"
"""

from flamma.testing.parts import AggregatorContract as AggregatorContract
from flamma.testing.parts import BehaviourContract as BehaviourContract
from flamma.testing.parts import ContributionContract as ContributionContract
from flamma.testing.parts import CostContract as CostContract
from flamma.testing.parts import MetricContract as MetricContract
from flamma.testing.parts import RewardContract as RewardContract
from flamma.testing.parts import SplitContract as SplitContract
from flamma.testing.strategies import StrategyContract as StrategyContract
