"""Aggregators: what the server makes of the vectors it has accepted, under any strategy.

An aggregator takes vectors and their weights and returns what Σ w_k v_k comes to. The mean returns
exactly that; a robust one returns Σ w_k times a centre that a few liars cannot move far. One that
works on updates rather than on models asks for a :class:`Reference`. Vectors of weight 0 do not
count. Another package adds one by an entry point of the group ``flamma.aggregators``.
"""

from __future__ import annotations

from flamma.aggregators.centres import geometric_median as geometric_median
from flamma.aggregators.centres import krum as krum
from flamma.aggregators.centres import multi_krum as multi_krum
from flamma.aggregators.contract import SERVER_UPDATE as SERVER_UPDATE
from flamma.aggregators.contract import Aggregator as Aggregator
from flamma.aggregators.contract import Reference as Reference
from flamma.aggregators.contract import Vectors as Vectors
from flamma.aggregators.contract import asks as asks
from flamma.aggregators.contract import check_options, takes_reference
from flamma.aggregators.coordinates import coordinate_median as coordinate_median
from flamma.aggregators.coordinates import trimmed_mean as trimmed_mean
from flamma.aggregators.updates import fltrust as fltrust
from flamma.aggregators.updates import norm_clipping as norm_clipping
from flamma.errors import StrategyError
from flamma.numerics import weighted_sum
from flamma.registry import Choice, Registry
from flamma.types import Floats


def weighted_mean(vectors: Vectors, weights: Floats) -> Floats:
    """Return the weighted sum, which is the mean where the weights add up to 1."""
    return weighted_sum(vectors, weights)


AGGREGATORS: Registry[Aggregator] = Registry(
    "aggregator",
    "flamma.aggregators",
    {
        "mean": weighted_mean,
        "median": coordinate_median,
        "trimmed-mean": trimmed_mean,
        "geometric-median": geometric_median,
        "krum": krum,
        "multi-krum": multi_krum,
        "norm-clipping": norm_clipping,
        "fltrust": fltrust,
    },
)
"""All aggregators by name."""


def aggregated(
    choice: Choice, vectors: Vectors, weights: Floats, reference: Reference | None = None
) -> Floats:
    """Return what the chosen aggregator makes of vectors, with the reference if it asks for it.

    Raises
    ------
    StrategyError
        If it asks for a reference and there is none.
    """
    given: tuple[Reference, ...] = ()
    if takes_reference(AGGREGATORS[choice.name]):
        given = (_needed(choice, reference),)
    found: Floats = AGGREGATORS.bind(choice)(vectors, weights, *given)
    return found


def check_aggregator(choice: Choice, answers: int) -> None:
    """Refuse options that cannot work, or not with so many answers a round.

    Raises
    ------
    ConfigError
        If there is no such aggregator.
    StrategyError
        If an option is out of its range.
    """
    check_options(AGGREGATORS[choice.name], answers, choice.options)


def _needed(choice: Choice, reference: Reference | None) -> Reference:
    if reference is None:
        raise StrategyError(
            f"the aggregator {choice.name} needs to know the model that clients received: in a "
            f"strategy of your own, call self.average(reports, weights, answers.reference)."
        )
    return reference
