"""Limits on the samples, updates and losses that a server accepts from external clients.

In a simulation these checks cannot fail. Sites, and the clients of a custom app, may send anything.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from flamma.errors import ConfigError
from flamma.numerics import norm
from flamma.registry import CheckedOptions, at_least
from flamma.types import MOST_SAMPLES, Floats, Ints, Params, Terms, Update


@dataclass(frozen=True)
class TrustLimits(CheckedOptions):
    """An operator's limits.

    Parameters
    ----------
    samples_ratio : float
        A client counts for at most this many times the median of all clients' samples; 0 for no
        limit.
    update_ratio : float
        An update longer than this many times the median length is refused; 0 for no limit.
    longest_update : float
        An update longer than this is always refused; 0 for no limit.
    samples : mapping of str to int
        The samples of clients by name: such a client counts for at most these, whatever the median
        is.

    Raises
    ------
    ConfigError
        If a limit cannot work.
    """

    samples_ratio: float = 10.0
    update_ratio: float = 1000.0
    longest_update: Annotated[float, at_least(0)] = 0.0
    samples: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("samples_ratio", "update_ratio"):
            ratio = getattr(self, name)
            if ratio != 0 and not ratio >= 1:
                raise ConfigError(f"{name} must be at least 1, or 0 for no limit, not {ratio:g}.")
        for client, count in self.samples.items():
            if type(count) is not int or not 0 < count <= MOST_SAMPLES:
                raise ConfigError(
                    f"samples.{client} must be a whole number from 1 to 2^40, not {count!r}."
                )

    def most_samples(self, names: Sequence[str], reported: Ints) -> Ints:
        """Return the upper bound of each client's samples, from the reported ones of all clients.

        The median is the lower one of two, so that one of two clients cannot raise it.

        Examples
        --------
        >>> limits = TrustLimits(samples_ratio=10, samples={"a": 50})
        >>> limits.most_samples("abc", np.array([2**40, 200, 10**9])).tolist()
        [50, 2000, 2000]
        """
        written = np.array([self.samples.get(name, 0) for name in names], dtype=np.int64)
        believed = np.where(written > 0, np.minimum(written, reported), reported)
        ratio = self.samples_ratio or math.inf
        most = min(float(MOST_SAMPLES), ratio * lower_median(believed))
        return np.where(written > 0, written, int(most))


def lower_median(values: Ints | Floats) -> float:
    """Return the median, the smaller of the two middle ones where there are two.

    Examples
    --------
    >>> lower_median(np.array([5, 1, 9, 7]))
    5.0
    """
    return float(np.sort(values, kind="stable")[(values.size - 1) // 2])


class Trust:
    """Screens the updates of a round before the strategy gets them.

    A refused update has the reason as its ``failure``. The lengths of the last 100 accepted updates
    are kept, which a resumed run starts without.

    Parameters
    ----------
    limits : TrustLimits
        The limits.
    most_samples : ndarray, optional
        The upper bound of each client's samples. Without it, a multiple of the median of a round.
    """

    def __init__(self, limits: TrustLimits, most_samples: Ints | None = None) -> None:
        self.limits = limits
        self.most_samples = most_samples
        self._lengths: deque[float] = deque(maxlen=100)

    def screened(
        self, reports: Sequence[Update], terms: Sequence[Terms], received: Callable[[int], Params]
    ) -> list[Update]:
        """Return the updates with those refused that break a limit.

        Parameters
        ----------
        reports : sequence of Update
            The updates that came back.
        terms : sequence of Terms
            The terms of the clients.
        received : callable
            Returns the model that a client received, from which its update is measured.
        """
        asked = {t.client for t in terms if t.report_loss != "no"}
        screened = []
        for report in reports:
            usable = report.params is None or math.isfinite(report.loss)
            if usable or (math.isnan(report.loss) and report.client not in asked):
                screened.append(report)
            else:
                screened.append(_refused(report, f"a loss of {report.loss:g}"))
        return self._not_too_long(self._counted(screened), received)

    def _counted(self, reports: list[Update]) -> list[Update]:
        """Return the reports, none of more samples than its client counts for."""
        samples = np.array([r.samples for r in reports if r.params is not None], dtype=np.int64)
        if not samples.size:
            return reports
        if self.most_samples is None:
            common = int(self.limits.most_samples([""] * samples.size, samples)[0])
            limits = [common] * len(reports)
        else:
            limits = [int(self.most_samples[r.client]) for r in reports]
        return [
            replace(r, samples=min(r.samples, limit))
            for r, limit in zip(reports, limits, strict=True)
        ]

    def _not_too_long(
        self, reports: list[Update], received: Callable[[int], Params]
    ) -> list[Update]:
        """Refuse finite updates that are so long that they would dominate the model."""
        lengths = [_length(report, received) for report in reports]
        finite = [length for length in lengths if math.isfinite(length)]
        known = np.array([*self._lengths, *finite])
        kept = []
        for report, length in zip(reports, lengths, strict=True):
            bound = math.nan
            if not math.isnan(length):
                bound = self._longest(known, norm(received(report.client)))
            if length <= bound:
                self._lengths.append(length)
            elif length > bound:
                why = f"an update of length {length:.3g}, where at most {bound:.3g} is accepted"
                report = _refused(report, why)
            kept.append(report)
        return kept

    def _longest(self, known: Floats, received: float) -> float:
        """Return the length from which on an update is refused.

        One as long as the model itself is never too long, or a few tiny updates would shut out the
        honest ones.
        """
        least, ratio = max(1.0, received), self.limits.update_ratio or math.inf
        if known.size < 2:  # there is nothing to compare with
            relative = ratio * least
        else:
            relative = max(least, ratio * (lower_median(known) or least))
        return min(relative, self.limits.longest_update or math.inf)


def _refused(report: Update, why: str) -> Update:
    """Return an update without weights, with the reason."""
    return replace(report, params=None, epochs=0, failure=f"refused: {why}")


def _length(report: Update, received: Callable[[int], Params]) -> float:
    """Return the length of an update, NaN where there is none that could be used."""
    params = report.params
    if params is None or not np.isfinite(params).all():
        return math.nan
    model = received(report.client)
    if params.shape != model.shape:
        return math.nan
    with np.errstate(over="ignore"):  # a difference of two finite numbers may be infinite
        return norm(params - model)
