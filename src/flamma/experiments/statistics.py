"""Which strategies are ahead over many settings, and whether one can tell.

Seeds are paired: a seed decides the split and the first weights, and all strategies run on the
same ones. Settings are what varies independently, so tests are over settings: each has one value
for a strategy, the mean over seeds, and one difference of two strategies, the mean of the paired
differences. Within a setting a strategy wins or loses where the difference is clear
(:func:`best_of`); else it is a tie. Over settings there are a sign test, Wilcoxon's signed-rank
test with Holm's correction, a bootstrap interval of the mean difference (settings are drawn, then
seeds within each), and mean ranks with Friedman's test and Nemenyi's critical difference (J.
Demšar: Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.metrics import METRICS
from flamma.numerics import total, totals
from flamma.seeding import stream
from flamma.strategies import competes
from flamma.types import Floats

if TYPE_CHECKING:
    from flamma.experiments.comparison import Row


# Significance of the best strategy: the definition that all tables and pages share.
#
# All strategies run on the same seeds, and a seed decides the split and the first weights, so
# they are compared seed by seed. The strategy with the best mean leads. Another one is as good as
# the leader where the mean of the paired differences lies within its 95% confidence interval of 0
# (Student's t). With a single seed nothing can be tested.

CONFIDENCE = 0.95
_ROUNDING_DIFFERENCE = 1e-12
"""Differences up to this size are rounding."""


@dataclass(frozen=True)
class _PairedDifference:
    """The mean of paired differences, and half the width of its confidence interval."""

    mean: float
    half_width: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0, and the difference is more than rounding."""
        return abs(self.mean) > max(self.half_width, _ROUNDING_DIFFERENCE)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> _PairedDifference:
    """Return how much larger the first values are than the second, seed by seed.

    Examples
    --------
    >>> paired_difference([90.0, 91.0, 92.0], [80.0, 81.5, 81.5]).clear
    True
    >>> paired_difference([90.0], [80.0]).clear
    False
    """
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    count = differences.size
    mean = total(differences) / count
    if count < 2:
        return _PairedDifference(mean, float("inf"))
    from scipy.special import stdtrit

    quantile = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    error = math.sqrt(total(np.square(differences - mean)) / (count - 1) / count)
    return _PairedDifference(mean, quantile * error)


def explain_marks(best: str, tied: str) -> str:
    """Return what the marks of a table mean; the leader of several is marked as the others are.

    Examples
    --------
    >>> print(explain_marks("*", "*"))
    * best, or not significantly different from the best (paired over seeds, 95%).
    >>> print(explain_marks("Bold", "Italics"))
    Bold: significantly better than all others (paired over seeds, 95%). Italics: the best and all \
that are not significantly different from it.
    """
    how = f"(paired over seeds, {CONFIDENCE:.0%})"
    if best == tied:
        return f"{best} best, or not significantly different from the best {how}."
    return (
        f"{best}: significantly better than all others {how}. {tied}: the best and all that are "
        f"not significantly different from it."
    )


def best_of(values: dict[str, dict[int, float]], sign: int) -> tuple[str, ...]:
    """Return the leader, then those not clearly worse; empty if there are too few seeds.

    Parameters
    ----------
    values : dict of str to dict of int to float
        Of every strategy, the value on each seed. Those that share fewer than two seeds with the
        leader count as not different.
    sign : {1, -1}
        Whether larger or smaller values are better.
    """
    usable = {name: own for name, own in values.items() if len(own) > 1}
    if len(usable) < 2 or len(usable) < len(values):
        return ()
    means = {name: sign * total(list(own.values())) / len(own) for name, own in usable.items()}
    leader = max(means, key=means.__getitem__)
    tied = []
    for name, own in usable.items():
        seeds = sorted(own.keys() & usable[leader].keys())
        pairs = [own[s] for s in seeds], [usable[leader][s] for s in seeds]
        if name != leader and (not seeds or not paired_difference(*pairs).clear):
            tied.append(name)
    return (leader, *tied)


_FEWEST_SETTINGS = 5
"""Over fewer settings than this nothing can be told."""
_RESAMPLES = 2000
REFERENCE = "fedavg"
RANKED_METRICS = ("accuracy", "accuracy_variance")

DataPlace = tuple[str, str]
"""A dataset, or a setting, with its split."""
_SeedValues = Mapping[DataPlace, Mapping[int, float]]
"""The values of a strategy by setting and seed."""


@dataclass(frozen=True)
class AgainstReference:
    """A strategy against the reference over all settings, in the metric's own unit.

    ``difference`` is the mean over settings of the strategy's value less the reference's, and
    ``low`` and ``high`` are the ends of its bootstrap interval. ``better`` counts the settings in
    which it is better by any difference. ``holm_p`` is Wilcoxon's p-value after Holm's correction
    for as many strategies as there are.
    """

    strategy: str
    difference: float
    low: float
    high: float
    wins: int
    ties: int
    losses: int
    better: int
    sign_p: float
    wilcoxon_p: float
    holm_p: float


@dataclass(frozen=True)
class AcrossSettings:
    """One metric of all strategies over all settings; ``ranks`` has the best first.

    ``left_out`` are strategies without this metric in every setting. Without a reference among the
    strategies ``against`` is empty.
    """

    metric: str
    settings: tuple[DataPlace, ...]
    ranks: dict[str, float]
    friedman_p: float
    critical_difference: float
    reference: str
    against: tuple[AgainstReference, ...]
    left_out: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as ``table.json`` has it."""
        return asdict(self) | {"settings": [list(place) for place in self.settings]}

    def cliques(self) -> list[tuple[str, ...]]:
        """Return the largest groups whose mean ranks are within the critical difference."""
        names = list(self.ranks)
        found: list[tuple[int, int]] = []
        for first in range(len(names)):
            last = first
            while (
                last + 1 < len(names)
                and self.ranks[names[last + 1]] - self.ranks[names[first]]
                <= self.critical_difference
            ):
                last += 1
            if last > first and not (found and last <= found[-1][1]):
                found.append((first, last))
        return [tuple(names[first : last + 1]) for first, last in found]


def across_settings(
    rows: Sequence[Row], metric: str, reference: str = REFERENCE
) -> AcrossSettings | None:
    """Return the statistics of a metric over the settings of a table.

    None if there are too few settings or strategies. The ceiling does not compete.
    """
    sign = 1 if METRICS[metric].better == "higher" else -1
    places = tuple(dict.fromkeys((row.dataset, row.split) for row in rows))
    names = [name for name in dict.fromkeys(row.strategy for row in rows) if competes(name)]
    by_seed: dict[str, dict[DataPlace, dict[int, float]]] = {name: {} for name in names}
    for row in rows:
        if row.strategy in by_seed and metric in row.values:
            own = dict(zip(row.seeds, row.values[metric], strict=True))
            by_seed[row.strategy][row.dataset, row.split] = own
    whole = {name: own for name, own in by_seed.items() if len(own) == len(places)}
    if len(places) < _FEWEST_SETTINGS or len(whole) < 2:
        return None
    means = {
        name: np.array([total(list(own[p].values())) / len(own[p]) for p in places])
        for name, own in whole.items()
    }
    ranks = mean_ranks(means, sign)
    against: list[AgainstReference] = []
    if reference in whole:
        others = [name for name in ranks if name != reference]
        against = [_against(name, whole[name], whole[reference], sign) for name in others]
    # The p-values are corrected as by S. Holm (1979).
    corrected = holm([each.wilcoxon_p for each in against])
    against = [replace(each, holm_p=p) for each, p in zip(against, corrected, strict=True)]
    return AcrossSettings(
        metric,
        places,
        ranks,
        friedman(means),
        critical_difference(len(ranks), len(places)),
        reference,
        tuple(against),
        tuple(name for name in names if name not in whole),
    )


def relative_to(
    rows: Sequence[Row], reference: str = REFERENCE
) -> dict[str, dict[DataPlace, tuple[float, float]]]:
    """Return how each strategy's accuracy and variance stand to the reference's, by setting.

    The first number is the difference of the mean accuracies, the second the binary logarithm of
    the ratio of the mean variances, each plus 1 so that a variance of 0 has a ratio, too.
    """
    first, second = RANKED_METRICS
    known = [row for row in rows if first in row.mean and second in row.mean]
    base = {(row.dataset, row.split): row.mean for row in known if row.strategy == reference}
    found: dict[str, dict[DataPlace, tuple[float, float]]] = {}
    for row in known:
        place = (row.dataset, row.split)
        if competes(row.strategy) and place in base:
            ratio = (row.mean[second] + 1) / (base[place][second] + 1)
            gained = row.mean[first] - base[place][first]
            found.setdefault(row.strategy, {})[place] = (gained, math.log2(ratio))
    return found


def mean_ranks(values: Mapping[str, Floats], sign: int) -> dict[str, float]:
    """Return the mean rank over settings of each strategy, the best first; ties share a rank.

    Examples
    --------
    >>> mean_ranks({"a": np.array([9.0, 8.0]), "b": np.array([7.0, 8.0])}, 1)
    {'a': 1.25, 'b': 1.75}
    """
    from scipy.stats import rankdata

    table = np.round(np.stack(list(values.values())) / _ROUNDING_DIFFERENCE) * _ROUNDING_DIFFERENCE
    ranks = totals(rankdata(-sign * table, axis=0)) / table.shape[1]
    found = dict(zip(values, ranks.tolist(), strict=True))
    return dict(sorted(found.items(), key=lambda own: own[1]))


def friedman(values: Mapping[str, Floats]) -> float:
    """Return the p-value of Friedman's test that all strategies are alike; 1 for two of them."""
    from scipy.stats import friedmanchisquare

    table = list(values.values())
    if len(table) < 3 or not np.ptp(np.stack(table), axis=0).any():
        return 1.0
    return float(friedmanchisquare(*table).pvalue)


def critical_difference(strategies: int, settings: int) -> float:
    """Return how far mean ranks must be apart by Nemenyi's test, at 95% confidence.

    Examples
    --------
    >>> round(critical_difference(5, 30), 3)
    1.114
    """
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(CONFIDENCE, strategies, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(strategies * (strategies + 1) / (6 * settings))


def _against(name: str, own: _SeedValues, other: _SeedValues, sign: int) -> AgainstReference:
    paired = []
    for place, values in own.items():
        shared = sorted(values.keys() & other[place].keys())
        if shared:
            paired.append(([values[s] for s in shared], [other[place][s] for s in shared]))
    clear = [paired_difference(first, second) for first, second in paired]
    means = np.array([difference.mean for difference in clear])
    outcomes = [sign * math.copysign(1, d.mean) if d.clear else 0 for d in clear]
    differences = [np.subtract(first, second) for first, second in paired]
    low, high = bootstrap_interval(differences)
    return AgainstReference(
        name,
        total(means) / means.size,
        low,
        high,
        outcomes.count(1),
        outcomes.count(0),
        outcomes.count(-1),
        int(np.count_nonzero(sign * means > _ROUNDING_DIFFERENCE)),
        sign_test(means),
        signed_rank_test(means),
        1.0,
    )


def sign_test(differences: Floats) -> float:
    """Return the two-sided p-value of the sign test; differences of 0 are left out.

    Examples
    --------
    >>> sign_test(np.array([1.0, 2.0, 3.0, 1.0, 0.5, 0.0]))
    0.0625
    """
    from scipy.stats import binomtest

    known = differences[np.abs(differences) > _ROUNDING_DIFFERENCE]
    if not known.size:
        return 1.0
    return float(binomtest(int(np.count_nonzero(known > 0)), known.size).pvalue)


def signed_rank_test(differences: Floats) -> float:
    """Return the two-sided p-value of Wilcoxon's test; differences of 0 are left out."""
    from scipy.stats import wilcoxon

    known = differences[np.abs(differences) > _ROUNDING_DIFFERENCE]
    return 1.0 if not known.size else float(wilcoxon(known).pvalue)


def bootstrap_interval(differences: Sequence[Floats]) -> tuple[float, float]:
    """Return the 95% interval of the mean over settings of mean differences over seeds.

    Settings are drawn with replacement, and within each its seeds.
    """
    rng = stream(0, "bootstrap")
    chosen = rng.integers(len(differences), size=(_RESAMPLES, len(differences)))
    sums = np.zeros(_RESAMPLES)
    for column in chosen.T:
        for setting in np.unique(column).tolist():
            drawn = np.flatnonzero(column == setting)
            own = np.asarray(differences[setting], dtype=np.float64)
            seeds = rng.integers(own.size, size=(drawn.size, own.size))
            sums[drawn] += totals(own[seeds]) / own.size
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(sums / len(differences), [tail, 1 - tail])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's corrected p-values, in the same order.

    Examples
    --------
    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    found, least = [1.0] * len(order), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p_values[place]))
        found[place] = least
    return found
