"""The ServerApp: our round loop over Flower's messages, recorded in a run directory."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flamma.clients.trust import Trust, TrustLimits
from flamma.clients.truth import TrueClients, told
from flamma.data.federated import FederatedData
from flamma.engines.flower.clients import GridClients, Inspector
from flamma.engines.flower.delivery import deliver
from flamma.engines.flower.handover import server_part
from flamma.engines.flower.introductions import reported_costs, reported_samples, server_data
from flamma.engines.flower.late import LATE_SITES, at_most_recorded, check_fits, with_placeholders
from flamma.engines.flower.messages import Order
from flamma.engines.flower.quorum import Quorum
from flamma.engines.flower.roster import Roster
from flamma.engines.flower.simulation import FlowerSimulation
from flamma.engines.flower.site_agreement import Agreement, read_agreement
from flamma.engines.flower.told_events import RunEvents, telling_failure
from flamma.errors import ConfigError, FlammaError, RunError
from flamma.experiments.callbacks import Callbacks, recorded_callbacks
from flamma.experiments.config import Config
from flamma.experiments.engine import GIVEN_UP, NetworkEngine, RunParts
from flamma.experiments.folder import ABOUT, RunFolder
from flamma.experiments.loop import (
    RunClients,
    check_validation,
    evaluated_clients,
    make_population,
    read_population,
    record_rounds,
    true_clients,
)
from flamma.experiments.run import Run
from flamma.experiments.trained import ModelCard, start_of
from flamma.experiments.user_objects import NO_OBJECTS
from flamma.simulation.runner import ClientRunner

_GATHER_SECONDS = 300.0
"""Seconds that a run waits for all clients before its first round."""

_REJOIN_SECONDS = 60.0
"""Seconds that a resumed run waits for clients before it goes on without the missing ones."""

_BEGIN_SECONDS = 20.0
"""Seconds that a run waits for the rest of the sites once its quorum is there, before it begins."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Begin or resume the run of the directory that ``run-dir`` names.

    ``sites`` are the clients' names, separated by commas; without it they are numbers. ``agreed``
    is a file with what their data must have in common.
    """
    where = str(context.run_config.get("run-dir", ""))
    if not where:
        raise RunError("the ServerApp needs a run directory: --run-config 'run-dir=\"/path\"'.")
    folder = RunFolder(Path(where))
    config = Run.load(folder.path).config  # its server may have moved
    sites = [name.strip() for name in str(context.run_config.get("sites", "")).split(",")]
    agreed = read_agreement(str(context.run_config.get("agreed", "")))
    try:
        with telling_failure(where):
            serve(grid, config, folder, names=[name for name in sites if name], agreed=agreed)
    except FlammaError as error:  # whoever follows the run sees by this that it was no accident
        raise RunError(f"{GIVEN_UP}{error}") from error


def serve(
    grid: Grid,
    config: Config,
    folder: RunFolder,
    names: Sequence[str] = (),
    data: FederatedData | None = None,
    callbacks: Callbacks | None = None,
    agreed: Agreement | None = None,
) -> None:
    """Carry out what is left of a run, with the clients behind the grid.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    config : Config
        What to run, on any engine whose clients are behind a network.
    folder : RunFolder
        Where to record it.
    names : sequence of str
        The clients' names in a deployment; none in a simulation.
    data : FederatedData, optional
        Where the server's test and validation sets come from; by default as configured.
    callbacks : Callbacks, optional
        What hears of the run; by default what its directory names.
    agreed : Agreement, optional
        What the sites' classes and columns must be; by default what the first site tells.

    Raises
    ------
    FlammaError
        If the run cannot be begun or continued.
    """
    engine = config.engine
    if not isinstance(engine, NetworkEngine):
        raise ConfigError(
            f"the engine {engine.name} has no clients behind a network: set engine.name to flower."
        )
    if names and len(names) != config.data.clients:
        raise ConfigError(
            f"there are {len(names)} sites, but data.clients is {config.data.clients}."
        )
    if names and config.behaviours:
        raise ConfigError(
            "sites do not take their behaviour from the table [behaviours]: put behaviour = "
            "{name = ...} into the site.toml of a site."
        )
    folder.lock()
    try:
        if trainer := folder.read_json(ABOUT).get("trainer"):
            config = config.with_settings({"training.trainer": trainer})
        if callbacks is None:
            callbacks = Callbacks([*recorded_callbacks(folder.path), RunEvents()])
        with callbacks.until_end(lambda: Run.load(folder.path)):
            server = _Server(grid, folder, tuple(names), engine.wait, agreed)
            server.run(config, data, callbacks)
    finally:
        folder.close()


@dataclass(frozen=True, eq=False)
class _Server:
    """A run whose directory is locked, and what does not change while it lasts."""

    grid: Grid
    folder: RunFolder
    names: tuple[str, ...]
    wait: float
    agreed: Agreement | None = None

    def run(self, config: Config, data: FederatedData | None, callbacks: Callbacks) -> None:
        from flamma.experiments.run import about_measures, build_runner, class_counts

        quorum = self._gathered(config)
        roster, profiles = quorum.roster, quorum.roster.profiles
        held = server_data(config, list(profiles.values()), data, roster.agreed.labels)
        check_validation(config, len(held.validation_y))
        roster.check = partial(check_fits, data=held)
        # Late is who was not there when the run began, which may be now.
        missing = set(roster.missing())
        if read_population(self.folder) is not None:
            missing = set(str(self.folder.read_json(ABOUT).get(LATE_SITES, "")).split(","))
        late = frozenset(k for k, name in enumerate(self.names) if name in missing)
        if config.training.trainer == "auto" and not all(p.lanes for p in profiles.values()):
            config = config.with_settings({"training.trainer": "torch"})
        start = start_of(config, self.folder)
        with build_runner(config, server_part(held), processes=1, start=start) as runner:
            everybody = with_placeholders(profiles, roster.names, _limits(config).samples)
            population = make_population(
                config,
                self.folder,
                runner.layout,
                samples=lambda: reported_samples(everybody),
                own_costs=lambda: reported_costs(everybody),
                names=self.names,
            )
            # A client is alone on its machine, so there is nothing to stack.
            trainer = "torch" if runner.trainer == "stacked" else runner.trainer
            instance = str(self.folder.read_json(ABOUT).get("instance") or secrets.token_hex(16))
            order = Order(
                _for_clients(config),
                trainer=trainer,
                classes=held.classes,
                run=instance,
                earliest=-1,
                trainable_size=runner.layout.trainable_size,
            )
            # What sites told may be a lie or not; in a simulation it is the truth, which the
            # strategy is not to see.
            truth = None if self.names else true_clients(config, population)
            trust, capped = None, dict[str, int]()
            if truth is None:
                limits, said = _limits(config), population.samples
                most = at_most_recorded(limits.most_samples(population.names, said), said, late)
                # Those who said that they have more samples than that count for fewer.
                capped = {population.names[k]: int(said[k]) for k in np.flatnonzero(said > most)}
                population = replace(population, samples=np.minimum(said, most))
                trust = Trust(limits, most)
            else:
                population = told(population, truth.behaviours, config.strategy.best_report)
            clients = GridClients(
                roster,
                order,
                runner,
                population,
                self.wait,
                evaluated_clients(config),
                own_costs=None if truth is None else truth.population.costs,
                inspect=None if self.names else _inspector(config, held),
                trust=trust,
                quorum=quorum,
                late=late,
            )
            about = dict(about_measures(runner.measures))
            if late:
                about[LATE_SITES] = ",".join(self.names[client] for client in sorted(late))
            about["instance"] = instance
            run_clients = RunClients(
                clients=clients,
                population=population,
                truth=TrueClients(population) if truth is None else truth,
                initial_params=runner.initial_params,
                trainer=trainer,
                about=about,
                class_counts=None if self.names or data is None else class_counts(data),
                looks_ahead=True,
                client_stores=(clients,),
                card=ModelCard.of(held, runner.naming, start),
            )
            quorum.on_wait_end = lambda: self._record_waits(quorum)
            record_rounds(RunParts(config, self.folder, NO_OBJECTS, callbacks), run_clients)
            self._record_waits(quorum)
            if self.names:
                missed = deliver(roster, order, Run.load(self.folder.path), self.wait)
                self.folder.write_about(model_not_delivered=missed)
        if roster.refused:
            self.folder.write_about(refused=roster.refused)
        if capped:
            self.folder.write_about(capped=capped)

    def _gathered(self, config: Config) -> Quorum:
        """Return the quorum once the clients are there: without one, all of them at first."""
        clients, engine = config.data.clients, config.engine
        assert isinstance(engine, NetworkEngine)
        asks = not self.names or getattr(config.strategy, "server_costs", "") == "given"
        query = Order(_for_clients(config), wants_cost=asks)
        names = self.names or tuple(str(k) for k in range(clients))
        resumed = read_population(self.folder) is not None
        agreed = self.agreed
        if agreed is None and resumed and (card := ModelCard.read(self.folder.path)):
            agreed = Agreement(tuple(str(label) for label in card.labels))
        roster = Roster(self.grid, names, query, self.wait, agreed)
        needed = engine.quorum(clients)
        quorum = Quorum(roster, needed, engine.quorum_seconds(), self.folder.path)
        if needed:
            quorum.gather(_BEGIN_SECONDS)
            return quorum
        roster.gather(range(clients), _REJOIN_SECONDS if resumed else _GATHER_SECONDS)
        if not resumed or not roster.profiles:
            roster.check_all()
        return quorum

    def _record_waits(self, quorum: Quorum) -> None:
        if quorum.waits and (self.folder.path / ABOUT).exists():
            self.folder.write_about(waits=quorum.waits)


def _inspector(config: Config, data: FederatedData) -> Inspector:
    """Return who visits simulated clients; nobody can visit those of a deployment."""
    from flamma.experiments.run import build_runner

    @cache
    def runner() -> ClientRunner:
        return build_runner(config, data, processes=1)

    return lambda params, tasks: runner().train(params, tasks)


def _limits(config: Config) -> TrustLimits:
    assert isinstance(config.engine, NetworkEngine)
    return config.engine.trust_limits()


def _for_clients(config: Config) -> str:
    """Return the configuration that clients are sent.

    They need the engine's time limit, but not where the server keeps the files of a deployment.
    """
    engine = FlowerSimulation(time_limit=config.engine.time_limit)
    return replace(config, engine=engine).as_toml()
