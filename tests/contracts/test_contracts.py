"""Every registered strategy and part keeps its contract; being listed is being tested."""

from __future__ import annotations

import pytest

from flamma.aggregators import AGGREGATORS
from flamma.clients.behaviours import BEHAVIOURS
from flamma.clients.costs import COSTS
from flamma.contributions import CONTRIBUTIONS
from flamma.data.splits import SPLITS
from flamma.metrics import METRICS
from flamma.strategies import STRATEGIES
from flamma.testing import (
    AggregatorContract,
    BehaviourContract,
    ContributionContract,
    CostContract,
    MetricContract,
    RewardContract,
    SplitContract,
    StrategyContract,
)


def each_of(names):
    """Run a contract suite once for every name."""

    @pytest.fixture(params=list(names), autouse=True)
    def entry(self, request):
        self.name = request.param

    return entry


class TestStrategies(StrategyContract):
    entry = each_of(name for name in STRATEGIES if not STRATEGIES[name].needs.pooled_data)


class TestBehaviours(BehaviourContract):
    entry = each_of(BEHAVIOURS)


class TestSplits(SplitContract):
    entry = each_of(SPLITS)


class TestCosts(CostContract):
    entry = each_of(name for name in COSTS if name != "csv")  # which has no costs without a file


class TestContributions(ContributionContract):
    entry = each_of(["distance"])  # the paper's, under which doing nothing pays


class TestRewards(RewardContract):
    entry = each_of(name for name in CONTRIBUTIONS if name != "distance")


class TestRewardsOfNewUpdates(RewardContract):
    """These also pay little for the update of the round before."""

    entry = each_of(["cosine-rescaled", "distance-earned", "cgsv", "gradient-shapley"])
    cheats = ("idle", "noise", "repeat")


class TestAggregators(AggregatorContract):
    entry = each_of(AGGREGATORS)


class TestMetrics(MetricContract):
    entry = each_of(METRICS)
