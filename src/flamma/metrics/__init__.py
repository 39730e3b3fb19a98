"""Metrics: functions of arrays, and the table that says how each is named, aggregated and shown."""

from flamma.metrics.functions import UTILITY_ROUNDING as UTILITY_ROUNDING
from flamma.metrics.functions import best_10 as best_10
from flamma.metrics.functions import better_off as better_off
from flamma.metrics.functions import collaborative_fairness as collaborative_fairness
from flamma.metrics.functions import coverage as coverage
from flamma.metrics.functions import entropy as entropy
from flamma.metrics.functions import gini as gini
from flamma.metrics.functions import ir_ratio as ir_ratio
from flamma.metrics.functions import jain as jain
from flamma.metrics.functions import kl_uniform as kl_uniform
from flamma.metrics.functions import lowest as lowest
from flamma.metrics.functions import mean as mean
from flamma.metrics.functions import participation as participation
from flamma.metrics.functions import spread as spread
from flamma.metrics.functions import std as std
from flamma.metrics.functions import variance as variance
from flamma.metrics.functions import variance_weighted as variance_weighted
from flamma.metrics.functions import worst_10 as worst_10
from flamma.metrics.kinds import EqualWorkMetric as EqualWorkMetric
from flamma.metrics.kinds import Metric as Metric
from flamma.metrics.kinds import RoundMetric as RoundMetric
from flamma.metrics.kinds import RunMetric as RunMetric
from flamma.metrics.kinds import ScoreMetric as ScoreMetric
from flamma.metrics.table import METRICS as METRICS
from flamma.metrics.table import evaluate as evaluate
from flamma.metrics.table import shown_in as shown_in
