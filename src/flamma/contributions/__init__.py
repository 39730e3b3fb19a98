"""Contribution measures: how much of the new global model is a client's, from 0 to 1.

A measure looks at one client's update, or at all updates of a round, and returns ω. Another package
adds one by an entry point of the group ``flamma.contributions``.
"""

from flamma.contributions.contract import ContributionMeasure as ContributionMeasure
from flamma.contributions.contract import RoundUpdates as RoundUpdates
from flamma.contributions.contract import Update as Update
from flamma.contributions.contract import round_measure as round_measure
from flamma.contributions.registry import CONTRIBUTIONS as CONTRIBUTIONS
from flamma.contributions.registry import measure_round as measure_round
from flamma.contributions.single import cosine as cosine
from flamma.contributions.single import distance as distance
