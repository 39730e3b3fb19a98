"""What a configuration is refused with: impossible values, and tables that do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flamma.clients.behaviours import assign
from flamma.errors import ConfigError
from flamma.experiments.private import check_private
from flamma.experiments.tables import OWN
from flamma.extras import require
from flamma.names import quoted, unknown
from flamma.privacy import require_accountant
from flamma.tasks import metric_names
from flamma.training.table import TrainingConfig

if TYPE_CHECKING:
    from flamma.experiments.config import Config


def check_config(config: Config) -> None:
    """Refuse a configuration that cannot be run.

    Raises
    ------
    ConfigError
        In one sentence, with what to do instead.
    """
    _check_numbers(config)
    config.training.check()
    _check_weights(config)
    _check_measures(config)
    _check_behaviours(config)
    check_private(config.privacy, config.strategy, config.data.clients)
    _check_augmentation(config)
    _check_strategy(config)
    _check_clock(config)


def check_installed(config: Config) -> None:
    """Refuse to carry out a configuration whose optional packages are missing.

    Without them a configuration can still be read, such as that of a finished run.
    """
    require(f"the engine {config.engine.name}", *config.engine.needs)
    if config.privacy.is_on:
        require_accountant()


def _check_numbers(config: Config) -> None:
    positive = {
        "rounds": config.rounds,
        "per_round": config.per_round,
        "data.clients": config.data.clients,
        "training.batch_size": config.training.batch_size,
        "training.epochs": config.training.epochs,
    }
    for name, value in positive.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}.")
    if config.seed < 0:
        raise ConfigError(f"seed must be at least 0, not {config.seed}.")
    if config.per_round > config.data.clients:
        raise ConfigError(
            f"per_round is {config.per_round}, but there are only {config.data.clients} clients: "
            f"lower per_round or raise data.clients."
        )


def _check_weights(config: Config) -> None:
    if config.weights.start and config.weights.freeze and config.engine.clients_hold_data:
        raise ConfigError(
            "frozen weights of a file do not travel to sites: leave out model.start or "
            "model.freeze."
        )


def _check_measures(config: Config) -> None:
    """Refuse a loss or a metric that there is not; the task's are known with the data."""
    if config.training.loss not in ("", OWN):
        raise ConfigError(
            f"training.loss is left out or {OWN}, not {quoted(config.training.loss)}: give a "
            f"function to flamma.run(loss=...)."
        )
    known = [OWN, *metric_names()]
    if config.evaluation.metric and config.evaluation.metric not in known:
        raise ConfigError(unknown("metric", config.evaluation.metric, known))


def _check_behaviours(config: Config) -> None:
    """Refuse behaviours that cannot be assigned, or that the engine's clients do not take."""
    if config.behaviours and not config.engine.gives_behaviours:
        raise ConfigError(
            f"clients of the engine {config.engine.name} do not take their behaviour from the "
            f"table [behaviours]: put behaviour = {{name = ...}} into the site.toml of a site."
        )
    assign(config.behaviours, config.data.clients, config.seed)


def _check_augmentation(config: Config) -> None:
    if config.training.has_own_augmentation and not config.engine.controls_clients:
        raise ConfigError(
            "an augmentation of your own must have a name where clients are other processes: "
            "give it an entry point, or use the local engine."
        )


def _check_strategy(config: Config) -> None:
    """Refuse a strategy with an optimiser or an engine that it cannot work with."""
    strategy, optimiser = config.strategy, config.training.optimiser
    if optimiser != TrainingConfig.optimiser and strategy.needs_sgd:
        raise ConfigError(
            f"{strategy.name} takes clients' updates for sums of gradients, which those "
            f"of {optimiser.name} are not: use training.optimiser sgd."
        )
    if strategy.pools_data and not config.engine.controls_clients:
        raise ConfigError(
            f"{strategy.name} trains on all clients' data in one place: use the local engine."
        )


def _check_clock(config: Config) -> None:
    """Refuse virtual time where clients' time is their own."""
    if config.engine.controls_clients:
        return
    if config.strategy.asynchronous:
        raise ConfigError(
            f"{config.strategy.name} is asynchronous, in virtual time, which the engine "
            f"{config.engine.name} has not: use the local engine, or another strategy."
        )
    if config.clock.is_on:
        raise ConfigError(
            f"the engine {config.engine.name} has no virtual clock: leave out the table "
            f"[clock], or use the local engine."
        )
