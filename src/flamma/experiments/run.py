"""One run, from a configuration to a directory; and a directory back to a run."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import flamma
from flamma.errors import ConfigError, RunError
from flamma.experiments.checkpoint import Checkpoints
from flamma.experiments.config import Config, make_config, read_config, with_settings
from flamma.experiments.folder import ABOUT, CHECKPOINT, CONFIG, POPULATION, RunFolder, free_folder
from flamma.experiments.summary import summarise_run
from flamma.types import Floats, Population, Scores

if TYPE_CHECKING:
    from flamma.data.federated import FederatedData
    from flamma.strategies.base import State

OnRound = Callable[[dict[str, Any]], None]
OWN = "own"
"""What a configuration calls data or a model that was given from Python."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory, finished or not."""

    path: Path
    config: Config
    history: list[dict[str, Any]]
    about: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run directory; what cannot be read of its rounds is left out.

        Raises
        ------
        RunError
            If there is no run.
        """
        folder = RunFolder(Path(path))
        if not folder.exists:
            raise RunError(f"{path} holds no run: there is no {CONFIG} in it.")
        config = make_config(read_config(folder.path / CONFIG))
        return cls(folder.path, config, folder.rounds(), folder.read_json(ABOUT))

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return len(self.history) >= self.config.rounds

    @property
    def params_sha256(self) -> str | None:
        """The SHA-256 of the final weights; None before the end."""
        return self.about.get("params_sha256") if self.finished else None

    def summary(self) -> dict[str, Any]:
        """Return final and last-ten-rounds metrics, totals and the worst certificate."""
        return summarise_run(self.history, self.config.data.clients)


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    out: str | Path | None = None,
    data: FederatedData | None = None,
    model: Callable[..., Any] | None = None,
    on_round: OnRound | None = None,
    data_dir: Path | None = None,
    **settings: Any,
) -> Run:
    """Run an experiment and return it.

    Parameters
    ----------
    config : Config, mapping, or path of a TOML file
        What to run; the rest is at its defaults.
    out : path, optional
        The run directory; a new one under ``runs/`` if not given.
    data : FederatedData, optional
        Your own data instead of a named dataset.
    model : callable, optional
        Your own ``(shape, classes) -> torch.nn.Module`` instead of a named model.
    on_round : callable, optional
        Called with every finished round's record.
    data_dir : Path, optional
        Where datasets are kept.
    **settings
        Single options over the configuration: ``rounds=5``, or with two underscores for a dot,
        ``strategy__mu=0.1``.

    Raises
    ------
    FlammaError
        If the configuration cannot work, or the directory holds another run.
    """
    if data is not None:
        settings |= {"data.dataset": OWN, "data.clients": data.clients}
    if model is not None:
        settings |= {"model.name": OWN}
    chosen = _configured(config, settings)
    folder = RunFolder(Path(out) if out is not None else default_folder(chosen))
    if folder.exists:
        raise RunError(
            f"{folder.path} already holds a run: flamma resume {folder.path}, "
            f"or name another --out."
        )
    folder.lock()
    try:
        return _execute(chosen, folder, data, model, on_round, data_dir)
    finally:
        folder.close()


def resume(
    path: str | Path,
    *,
    data: FederatedData | None = None,
    model: Callable[..., Any] | None = None,
    on_round: OnRound | None = None,
    data_dir: Path | None = None,
    processes: int | None = None,
) -> Run:
    """Go on with an interrupted run from its last checkpoint; a finished one is returned as is.

    A run of your own data or model needs them again.
    """
    before = Run.load(path)
    if before.finished and before.params_sha256:
        return before
    config = before.config
    for kind, given, name in (
        ("data", data, config.data.dataset),
        ("model", model, config.model.name),
    ):
        if name == OWN and given is None:
            raise RunError(f"{path} is a run of your own {kind}: resume it from Python, {kind}=...")
    if trainer := before.about.get("trainer"):  # the other one would round differently
        config = replace(config, training=replace(config.training, trainer=trainer))
    if processes is not None:
        config = replace(config, engine=replace(config.engine, processes=processes))
    folder = RunFolder(Path(path))
    folder.lock()
    try:
        return _execute(config, folder, data, model, on_round, data_dir)
    finally:
        folder.close()


def _execute(
    config: Config,
    folder: RunFolder,
    data: FederatedData | None,
    model: Callable[..., Any] | None,
    on_round: OnRound | None,
    data_dir: Path | None,
) -> Run:
    from flamma.data.federated import pooled
    from flamma.engines.respond import RationalClients
    from flamma.experiments.setup import build_data, build_engine, true_costs
    from flamma.federation import Federation

    strategy = config.build_strategy()
    data = build_data(config, data_dir) if data is None else data
    data = pooled(data) if strategy.pools_data else data
    with build_engine(config, data, model) as engine:
        known = _known_costs(folder) if folder.exists else None
        costs = true_costs(config, data, engine) if known is None else known
        if strategy.needs_validation and not data.validation_y.size:
            raise ConfigError(
                f"{strategy.name} judges updates on the server's own data: set "
                f"data.validation_samples, or give your own data a validation set."
            )
        if not folder.exists:  # only now, so that what cannot run leaves nothing behind
            folder.write(POPULATION, _population_table(data, costs))
            folder.write(ABOUT, json.dumps(_about(engine.trainer), indent=1))
            folder.write(CONFIG, config.as_toml())
        population = Population(data.samples, costs, engine.layout.trainable_size)
        checkpoints = Checkpoints(folder.path / CHECKPOINT)
        state: State = strategy.init(engine.initial_params, population)
        state = checkpoints.load(state) or state
        folder.open_at(state.round)
        federation = Federation(
            strategy=strategy,
            clients=RationalClients(strategy, engine, costs, data.samples),
            population=data.clients,
            costs=costs,
            seed=config.seed,
            faults=config.build_faults(),
            evaluate_every=config.evaluation.every,
        )
        for finished in federation.rounds(state):
            state = finished.state
            folder.append(finished.record, _client_rows(finished.record["round"], finished.scores))
            checkpoints.save(state, force=state.round == config.rounds)
            if on_round is not None:
                on_round(finished.record)
    digest = hashlib.sha256(state.params.tobytes()).hexdigest()
    about = folder.read_json(ABOUT) | {"finished": _now(), "params_sha256": digest}
    folder.write(ABOUT, json.dumps(about, indent=1))
    return Run.load(folder.path)


def _configured(
    config: Config | Mapping[str, Any] | str | Path | None, settings: Mapping[str, Any]
) -> Config:
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    if isinstance(config, Config):
        tables = config.as_tables()
    elif isinstance(config, Mapping):
        tables = dict(config)
    else:
        tables = {} if config is None else read_config(Path(config))
    return make_config(with_settings(tables, dotted))


def default_folder(config: Config) -> Path:
    """Return the directory of a run that none was named for."""
    name = f"{config.strategy.name}-{config.data.dataset}-{config.data.split}-seed{config.seed}"
    return free_folder(Path("runs"), name)


def _about(trainer: str) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "flamma": flamma.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": version("torch"),
        "trainer": trainer,
        "machine": f"{platform.system()} {platform.machine()}",
        "command": sys.argv,
        "started": _now(),
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _known_costs(folder: RunFolder) -> Floats | None:
    """Return the costs a begun run was begun with; measured ones cannot be measured again."""
    rows = list(csv.DictReader(io.StringIO(folder.text(POPULATION))))
    try:
        return np.array([float(row["cost"]) for row in rows]) if rows else None
    except (KeyError, ValueError) as error:
        raise RunError(f"{folder.path / POPULATION} is damaged: remove it to go on.") from error


def _population_table(data: FederatedData, costs: Floats) -> str:
    header = ["client", "samples", "held_out", "cost", *(f"class_{k}" for k in range(data.classes))]
    held, classes = np.diff(data.held_offsets).tolist(), data.class_counts().tolist()
    columns = zip(data.samples.tolist(), held, costs.tolist(), classes, strict=True)
    rows = [
        f"{client},{samples},{held_out},{cost!r},{','.join(map(str, counts))}"
        for client, (samples, held_out, cost, counts) in enumerate(columns)
    ]
    return "\n".join([",".join(header), *rows]) + "\n"


def _client_rows(number: int, scores: Scores | None) -> list[tuple[object, ...]]:
    if scores is None:
        return []
    columns = (scores.accuracy.tolist(), scores.loss.tolist(), scores.samples.tolist())
    return [
        (number, client, f"{accuracy:.6g}", f"{loss:.6g}", held)
        for client, (accuracy, loss, held) in enumerate(zip(*columns, strict=True))
    ]
