"""The Gaussian mechanism between what clients send and what a strategy sees.

McMahan et al., "Learning differentially private recurrent language models", ICLR 2018, add noise to
the mean of clipped updates. Here that happens before the strategy: it is given noisy updates in
place of the true ones, and no losses. Whatever it computes of them, announces or remembers
(contributions, decay factors, who is selected, momentum, rows) is therefore post-processing, which
costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flamma.numerics import norm, normal, total, weighted_sum
from flamma.privacy.table import PrivacyConfig
from flamma.records import RoundPrivacy
from flamma.seeding import stream
from flamma.types import Floats, Params, Report


@dataclass(frozen=True)
class PrivateRounds:
    """What releases the answers of a round, and says what all releases so far have cost.

    Parameters
    ----------
    config : PrivacyConfig
        How; with a ``clip``.
    seed : int
        The seed of the noise. Who knows it can take the noise off, so where it matters it is not
        the seed of the run, but drawn anew and kept nowhere.
    epsilon : callable
        Returns the epsilon of so many releases.
    releases_before : int
        Releases besides one for each numbered round: that of a warm-up, and those of rounds that
        were done once more with other noise after an interruption.
    """

    config: PrivacyConfig
    seed: int
    epsilon: Callable[[int], float]
    releases_before: int = 0

    def release(
        self, received: Params, number: int, reports: tuple[Report, ...]
    ) -> tuple[Report, ...]:
        """Return the reports of a round with noisy models in place of the true ones, and no losses.

        With noise on the mean every client's model is the same, the received one plus the noisy
        mean update: there is nothing else that a strategy could learn.
        """
        reports = tuple(replace(report, loss=math.nan) for report in reports)
        usable = [report for report in reports if report.params is not None]
        if not usable:
            return reports
        if self.config.noise_on == "mean":
            models = [self._moved(received, self._noisy_mean(received, number, usable))]
            models *= len(usable)
        else:
            models = [
                self._moved(received, self._noisy_update(received, number, report))
                for report in usable
            ]
        released = {own.client: model for own, model in zip(usable, models, strict=True)}
        return tuple(
            report if report.params is None else replace(report, params=released[report.client])
            for report in reports
        )

    def spent(self, number: int) -> RoundPrivacy:
        """Return what has been spent up to and including a round."""
        releases = number + self.releases_before
        return RoundPrivacy(self.epsilon(releases), self.config.delta, releases)

    def _noisy_mean(self, received: Params, number: int, usable: Sequence[Report]) -> Floats:
        """Return the mean of the clipped updates plus noise for the client that counts most.

        The shares depend on who answered, not on what: setting an update to zero moves the mean by
        its share times the clip at most, and changes neither the shares nor the noise.
        """
        counted = np.array([min(own.samples, self.config.samples_cap) for own in usable], float)
        shares = counted / total(counted)
        mean = weighted_sum([self._clipped(received, own) for own in usable], shares)
        return mean + self._noise(float(shares.max()), received.size, number)

    def _noisy_update(self, received: Params, number: int, report: Report) -> Floats:
        noise = self._noise(1.0, received.size, number, report.client)
        return self._clipped(received, report) + noise

    def _clipped(self, received: Params, report: Report) -> Floats:
        """Return a client's update u min(1, clip / ‖u‖)."""
        assert report.params is not None
        update: Floats = report.params.astype(np.float64) - received
        length, longest = norm(update), self.config.longest
        return update if length <= longest else longest / length * update

    def _noise(self, share: float, size: int, number: int, client: int = 0) -> Floats:
        """Return noise for a sensitivity of ``share`` times the clip."""
        scale = self.config.noise_multiplier * self.config.longest * share
        return scale * normal(stream(self.seed, "privacy", number, client), size)

    @staticmethod
    def _moved(received: Params, update: Floats) -> Params:
        return (received + update).astype(np.float32)
