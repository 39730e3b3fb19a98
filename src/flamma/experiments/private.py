"""Differential privacy of a run: what it is refused with, and what a run starts with."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from flamma.aggregators import AGGREGATORS, weighted_mean
from flamma.errors import ConfigError, Key
from flamma.experiments.folder import ABOUT, RunFolder
from flamma.privacy import (
    PrivacyConfig,
    PrivateRounds,
    epsilon_spent,
    losses_refused,
    require_accountant,
)
from flamma.strategies.base import State, Strategy
from flamma.types import Population

if TYPE_CHECKING:
    from flamma.experiments.config import Config

_NOISE_BITS = 128
"""Bits of a secret seed."""

_UNRECORDED_ROUNDS = 2
"""Rounds whose models may have been sent out before an interruption, and were not recorded."""

REPEATED = "private_releases_repeated"
"""The key of ``run.json`` with the releases that interruptions have cost so far."""


def check_private(privacy: PrivacyConfig, strategy: Strategy[Any], clients: int) -> None:
    """Refuse what a strategy cannot work with, or what noise would not hide.

    Raises
    ------
    ConfigError
        In one sentence, with what to do instead.
    """
    if not privacy.is_on:
        return
    if privacy.delta * clients >= 1:
        raise ConfigError(
            Key("privacy.delta"),
            f" is {privacy.delta:g}, with which publishing one of {clients} clients would count "
            f"as private: set it below {1 / clients:g}.",
        )
    if strategy.wants_losses:
        raise ConfigError(losses_refused(strategy.name))
    if strategy.needs.server_reads == "plain":
        raise ConfigError(
            f"{strategy.name} cannot work with noisy updates: leave out the table [privacy], or "
            f"choose another strategy."
        )
    if privacy.noise_on == "mean":
        _check_mean_is_enough(strategy)


def _check_mean_is_enough(strategy: Strategy[Any]) -> None:
    remedy = ("set ", Key("privacy.noise_on"), ' to "updates"')
    if strategy.needs.server_reads != "mean":
        raise ConfigError(
            f"{strategy.name} compares clients' updates, and noise on the mean shows it nothing "
            f"but that: ",
            *remedy,
            ", or choose a strategy that needs only the mean.",
        )
    if AGGREGATORS[strategy.aggregator.name] is not weighted_mean:
        raise ConfigError(
            f"the aggregator {strategy.aggregator.name} compares clients' updates, and noise on "
            f"the mean shows it nothing but that: ",
            *remedy,
            ", or leave the aggregator at mean.",
        )


def check_private_model(config: Config, first: State, population: Population) -> None:
    """Refuse a private run without an accountant, or of a model that noise would break.

    Raises
    ------
    FlammaError
        In one sentence, with what to do instead.
    """
    if not config.privacy.is_on:
        return
    require_accountant()
    if population.trainable_size < first.params.size:
        raise ConfigError(
            "the model has weights that are not trained, such as the running variances of a batch "
            "norm, and noise would break them: choose a model without."
        )


def private_rounds(
    config: Config, folder: RunFolder, first: State, undone: int | None
) -> PrivateRounds | None:
    """Return what makes the rounds of a run private, None if they are not.

    Parameters
    ----------
    first : State
        The state before the first round, or before the warm-up.
    undone : int, optional
        How many recorded rounds are done once more; None for a run that has just begun.
    """
    privacy = config.privacy
    if not privacy.is_on:
        return None
    # Simulated clients have nothing to hide, and their runs have the same bits every time. Sites
    # have, and the seed of a run is known to all of them.
    secret = config.engine.clients_hold_data
    repeated = _repeated(folder, undone) if secret else 0
    return PrivateRounds(
        privacy,
        secrets.randbits(_NOISE_BITS) if secret else config.seed,
        partial(epsilon_spent, privacy.noise_multiplier, delta=privacy.delta),
        -first.round + repeated,
    )


def _repeated(folder: RunFolder, undone: int | None) -> int:
    """Return how many releases interruptions have added, and write it down."""
    before = folder.read_json(ABOUT).get(REPEATED, 0)
    if undone is None:
        return int(before)
    repeated = int(before) + undone + _UNRECORDED_ROUNDS
    folder.write_about(**{REPEATED: repeated})
    return repeated
