"""Central differential privacy: clients' updates are clipped, and noise hides each one of them.

The neighbouring relation is zero-out (Ponomareva et al., "How to DP-fy ML", JAIR 77, 2023): two
runs are neighbours if in one of them every update of a single client is the zero vector. The client
still counts in the mean, since participants and their numbers of samples are public.
:class:`PrivateRounds` releases noisy updates to the strategy, which sees nothing else, and
:func:`epsilon_spent` computes the total cost of the releases.

Examples
--------
>>> from flamma.privacy import PrivacyConfig
>>> config = PrivacyConfig(clip=0.5, noise_multiplier=2.0)
>>> config.is_on, config.longest
(True, 0.5)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from types import ModuleType
from typing import Annotated, Literal

import numpy as np

from flamma.errors import ConfigError, Key
from flamma.extras import require
from flamma.numerics import norm, normal, total, weighted_sum
from flamma.records import RoundPrivacy
from flamma.registry import Between, CheckedOptions, above, at_least
from flamma.seeding import stream
from flamma.types import Floats, Params, Update

__all__ = [
    "PrivacyConfig",
    "PrivateRounds",
    "epsilon_spent",
    "losses_refused",
    "require_accountant",
]

# The table ``[privacy]`` of a configuration.


@dataclass(frozen=True)
class PrivacyConfig(CheckedOptions, within="privacy."):
    """The clipping of updates, and the noise added to them.

    Parameters
    ----------
    clip : float, optional
        The longest update that counts in full, in the Euclidean norm over all weights: longer ones
        are cut to this length. Without it there is no differential privacy.
    noise_multiplier : float
        The standard deviation of the noise, in units of how far the release moves at most if one
        client's update is set to zero.
    delta : float
        The probability with which epsilon need not hold; below one over the number of clients.
    noise_on : {"mean", "updates"}
        Noise is added once, to the mean update of a round, which is all that the strategy then
        sees; or to each client's update, for strategies that compare clients. That costs √K times
        the noise in a mean of K.
    samples_cap : int
        A client counts in the mean by its number of samples, but by no more than this. With 1 all
        clients count alike.
    """

    clip: Annotated[float | None, above(0)] = None
    noise_multiplier: Annotated[float, above(0)] = 1.0
    delta: Annotated[float, Between(0, 1, without="both")] = 1e-5
    noise_on: Literal["mean", "updates"] = "mean"
    samples_cap: Annotated[int, at_least(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is None and any(getattr(self, f.name) != f.default for f in fields(self)):
            raise ConfigError(
                Key("privacy.clip"),
                " is missing, without which nothing bounds what a client can change: set it to "
                "the length of a usual update.",
            )

    @property
    def is_on(self) -> bool:
        """Whether there is differential privacy at all."""
        return self.clip is not None

    @property
    def longest(self) -> float:
        """The longest update that counts in full, without end if there is no privacy."""
        return math.inf if self.clip is None else self.clip


def losses_refused(strategy: str) -> str:
    """Return the sentence that refuses a strategy that asks for losses."""
    return (
        f"{strategy} asks clients for their losses, which no noise hides: leave out the table "
        f"[privacy], or choose another strategy."
    )


# The Gaussian mechanism between what clients send and what a strategy sees.
#
# McMahan et al., "Learning differentially private recurrent language models", ICLR 2018, add
# noise to the mean of clipped updates. Here that happens before the strategy: it is given noisy
# updates in place of the true ones, and no losses. Whatever it computes of them, announces or
# remembers (contributions, decay factors, who is selected, momentum, rows) is therefore
# post-processing, which costs no privacy.


@dataclass(frozen=True)
class PrivateRounds:
    """Releases the updates of a round with noise, and accounts for all releases so far.

    Parameters
    ----------
    config : PrivacyConfig
        The mechanism, with a ``clip``.
    seed : int
        The seed of the noise. It reveals the noise, so where that matters it is not the seed of
        the run, but sampled separately and not stored.
    epsilon : callable
        Returns the epsilon of a number of releases.
    releases_before : int
        Releases besides one per numbered round: that of a warm-up, and those of rounds that were
        repeated with other noise after an interruption.
    """

    config: PrivacyConfig
    seed: int
    epsilon: Callable[[int], float]
    releases_before: int = 0

    def release(
        self, received: Params, number: int, reports: tuple[Update, ...]
    ) -> tuple[Update, ...]:
        """Return the reports of a round with noisy models in place of the true ones, and no losses.

        With noise on the mean every client's model is the same, the received one plus the noisy
        mean update: there is nothing else that a strategy could learn.
        """
        reports = tuple(replace(report, loss=math.nan) for report in reports)
        usable = [report for report in reports if report.params is not None]
        if not usable:
            return reports
        if self.config.noise_on == "mean":
            noisy = [self._noisy_mean(received, number, usable)] * len(usable)
        else:
            noisy = [
                self._clipped(received, report)
                + self._noise(1.0, received.size, number, report.client)
                for report in usable
            ]
        released = {
            report.client: (received + update).astype(np.float32)
            for report, update in zip(usable, noisy, strict=True)
        }
        return tuple(
            report if report.params is None else replace(report, params=released[report.client])
            for report in reports
        )

    def spent(self, number: int) -> RoundPrivacy:
        """Return the privacy spent up to and including a round."""
        releases = number + self.releases_before
        return RoundPrivacy(self.epsilon(releases), self.config.delta, releases)

    def _noisy_mean(self, received: Params, number: int, usable: Sequence[Update]) -> Floats:
        """Return the mean of the clipped updates plus noise for the client that counts most.

        The shares depend on who answered, not on what: setting an update to zero moves the mean by
        its share times the clip at most, and changes neither the shares nor the noise.
        """
        counted = np.array([min(own.samples, self.config.samples_cap) for own in usable], float)
        shares = counted / total(counted)
        mean = weighted_sum([self._clipped(received, own) for own in usable], shares)
        return mean + self._noise(float(shares.max()), received.size, number)

    def _clipped(self, received: Params, report: Update) -> Floats:
        """Return a client's update u min(1, clip / ‖u‖)."""
        assert report.params is not None
        update: Floats = report.params.astype(np.float64) - received
        length, longest = norm(update), self.config.longest
        return update if length <= longest else longest / length * update

    def _noise(self, share: float, size: int, number: int, client: int = 0) -> Floats:
        """Return noise for a sensitivity of ``share`` times the clip."""
        scale = self.config.noise_multiplier * self.config.longest * share
        return scale * normal(stream(self.seed, "privacy", number, client), size)


# The cost of releases, by the accountant of Opacus.
#
# Rényi differential privacy composes the Gaussian mechanism over rounds (Mironov, "Rényi
# differential privacy", CSF 2017). No amplification by sampling is counted: a round has a fixed
# number of clients rather than independent probabilities, games choose them by what they
# sent before, and the record tells who was selected. Every release counts in full, as if the
# client had been in all.

_ORDERS = [1 + 2.0 ** (k / 4) for k in range(-48, 81)]
"""The orders among which the best is sought: wide enough for any noise in use."""


def require_accountant() -> ModuleType:
    """Return Opacus' functions of Rényi differential privacy."""
    require("differential privacy", "opacus")
    return import_module("opacus.accountants.analysis.rdp")


def epsilon_spent(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return the epsilon of several releases by the Gaussian mechanism, at a delta; at least 0.

    ``noise_multiplier`` is in units of the sensitivity, which doubles if neighbours replace a
    client's updates by others rather than by zero: halve it for that relation.
    """
    if releases == 0:
        return 0.0
    rdp = require_accountant()
    spent = rdp.compute_rdp(
        q=1.0, noise_multiplier=noise_multiplier, steps=releases, orders=_ORDERS
    )
    with warnings.catch_warnings():
        # At the outermost order the bound holds, it could only be tighter.
        warnings.filterwarnings("ignore", message="Optimal order")
        epsilon, _ = rdp.get_privacy_spent(orders=_ORDERS, rdp=spent, delta=delta)
    return max(0.0, float(epsilon))  # the conversion falls below 0 where delta alone suffices
