"""The ServerApp: the project's own round loop over Flower's messages, into a run directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flamma.clients.costs import draw_costs
from flamma.data.federated import FederatedData
from flamma.engines.flower.clients import GridClients
from flamma.engines.flower.handover import no_data, server_part
from flamma.engines.flower.roster import Roster
from flamma.engines.flower.wire import Order
from flamma.errors import ConfigError, RunError
from flamma.experiments.config import Config, make_config, read_config
from flamma.experiments.folder import ABOUT, CONFIG, RunFolder
from flamma.experiments.session import OnRound, World, carry_out, known_population
from flamma.types import Floats, Ints

GATHER = 300.0
"""Seconds that all clients have to come before the first round."""

REJOIN = 60.0
"""Seconds they have when a run goes on; then it goes on without those who are away."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Begin the run of the directory that ``run-dir`` names, or go on with it.

    ``sites`` are the clients' names, with commas between; without it they are numbers.
    """
    where = str(context.run_config.get("run-dir", ""))
    if not where:
        raise RunError("the ServerApp needs a run directory: --run-config 'run-dir=\"/path\"'.")
    folder = RunFolder(Path(where))
    config = make_config(read_config(folder.path / CONFIG))
    sites = [name.strip() for name in str(context.run_config.get("sites", "")).split(",")]
    serve(grid, config, folder, names=[name for name in sites if name])


def serve(
    grid: Grid,
    config: Config,
    folder: RunFolder,
    names: Sequence[str] = (),
    data: FederatedData | None = None,
    on_round: OnRound | None = None,
) -> None:
    """Run what is left of a run, with the clients behind the grid.

    Parameters
    ----------
    grid : Grid
        Flower's way to the nodes.
    config : Config
        What to run.
    folder : RunFolder
        Where.
    names : sequence of str
        The clients' names in a deployment; none in a simulation.
    data : FederatedData, optional
        What the server has its test and validation sets of; by default as configured.
    on_round : callable, optional
        Called with every finished round's record.

    Raises
    ------
    FlammaError
        If the run cannot be begun or continued.
    """
    folder.lock()
    try:
        if trainer := folder.read_json(ABOUT).get("trainer"):
            config = _with_trainer(config, trainer)
        _serve(grid, config, folder, tuple(names), data, on_round)
    finally:
        folder.close()


def _serve(
    grid: Grid,
    config: Config,
    folder: RunFolder,
    names: tuple[str, ...],
    data: FederatedData | None,
    on_round: OnRound | None,
) -> None:
    from flamma.experiments.setup import build_engine

    strategy = config.build_strategy()
    clients = config.data.clients
    if names and len(names) != clients:
        raise ConfigError(f"there are {len(names)} sites, but data.clients is {clients}.")
    asks = not names or getattr(strategy, "server_costs", "") == "given"
    order = Order(config.as_toml(), wants_cost=asks)
    everybody = names or tuple(str(k) for k in range(clients))
    roster = Roster(grid, everybody, order, config.engine.wait)
    known = known_population(folder)
    roster.gather(range(clients), GATHER if known is None else REJOIN)
    if known is None or not roster.profiles:
        roster.check_all()
    held = _server_data(config, roster, data)
    if strategy.needs_validation and not held.validation_y.size:
        raise ConfigError(
            f"{strategy.name} judges updates on the server's own data: set "
            f"data.validation_samples, or give the server a validation set."
        )
    lanes = all(profile.lanes for profile in roster.profiles.values())
    if config.training.trainer == "auto" and not lanes:
        config = _with_trainer(config, "torch")
    local = replace(config, engine=replace(config.engine, processes=1))
    with build_engine(local, server_part(held)) as engine:
        samples, held_out, costs = _population(config, roster, known)
        order = replace(
            order, config=config.as_toml(), trainer=engine.trainer, classes=held.classes
        )
        world = World(
            clients=GridClients(
                roster, order, engine, samples, held_out, costs, config.engine.wait
            ),
            samples=samples,
            held_out=held_out,
            costs=costs,
            initial_params=engine.initial_params,
            trainable_size=engine.layout.trainable_size,
            trainer=engine.trainer,
            names=names,
            class_counts=None if names or data is None else data.class_counts(),
        )
        carry_out(config, folder, world, on_round)
    if roster.refused:
        about = folder.read_json(ABOUT) | {"refused": roster.refused}
        folder.write(ABOUT, json.dumps(about, indent=1))


def _with_trainer(config: Config, trainer: str) -> Config:
    return make_config(
        config.as_tables() | {"training": {**config.as_tables()["training"], "trainer": trainer}}
    )


def _server_data(config: Config, roster: Roster, data: FederatedData | None) -> FederatedData:
    """Return what the server judges with; the clients' samples must be of the same kind."""
    shapes = {profile.shape for profile in roster.profiles.values()}
    classes = max(profile.classes for profile in roster.profiles.values())
    if data is None and config.data.dataset != "own":
        from flamma.experiments.data import build_data

        data = build_data(config)
    if data is None:
        data = no_data(sorted(shapes)[0], classes)
    if shapes != {data.shape} or classes > data.classes:
        found = ", ".join(str(shape) for shape in sorted(shapes))
        raise RunError(
            f"the run is of samples of the shape {data.shape} in {data.classes} classes, but the "
            f"clients have {found} in up to {classes}."
        )
    return data


def _population(
    config: Config, roster: Roster, known: dict[str, Floats] | None
) -> tuple[Ints, Ints, Floats]:
    """Return samples, held-out samples and costs: as first recorded, else as the clients say."""
    if known is not None:
        if len(known["cost"]) != len(roster.names):
            raise RunError("population.csv has another number of clients than config.toml.")
        return (
            known["samples"].astype(np.int64),
            known["held_out"].astype(np.int64),
            known["cost"],
        )
    said = [roster.profiles[client] for client in range(len(roster.names))]
    costs = np.array([profile.cost for profile in said])
    theirs = np.array([profile.own_cost for profile in said])
    if not theirs.all():
        table = config.costs
        drawn = draw_costs(
            table.kind,
            len(said),
            config.seed,
            value=table.value,
            spread=table.spread,
            path=table.file or None,
        )
        costs = np.where(theirs, costs, drawn)
    samples = np.array([profile.samples for profile in said], dtype=np.int64)
    return samples, np.array([profile.held_out for profile in said], dtype=np.int64), costs
