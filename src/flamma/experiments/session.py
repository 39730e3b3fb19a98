"""A run from its first round to its last, in its directory, wherever the clients are."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import flamma
from flamma.errors import RunError
from flamma.experiments.checkpoint import Checkpoints
from flamma.experiments.config import Config
from flamma.experiments.folder import ABOUT, CHECKPOINT, CONFIG, POPULATION, RunFolder
from flamma.types import Floats, Ints, Params, Population, Scores

if TYPE_CHECKING:
    from flamma.data.federated import FederatedData
    from flamma.federation import Clients
    from flamma.strategies.base import State

OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, eq=False)
class Assignment:
    """What an engine has to carry out: a configuration, into a directory.

    ``data`` and ``model`` are the user's own, None where the configuration names them.
    """

    config: Config
    folder: RunFolder
    data: FederatedData | None = None
    model: Callable[..., Any] | None = None
    on_round: OnRound | None = None
    data_dir: Path | None = None


@dataclass(frozen=True, eq=False)
class World:
    """Where a run takes place: its clients, what the server knows of them, the first weights.

    ``costs`` are the true ones, NaN where nobody but the client knows. ``names`` are given where
    clients are more than numbers, ``class_counts`` where the server may know them.
    """

    clients: Clients
    samples: Ints
    held_out: Ints
    costs: Floats
    initial_params: Params
    trainable_size: int
    trainer: str
    names: tuple[str, ...] = ()
    class_counts: Ints | None = None


def carry_out(config: Config, folder: RunFolder, world: World, on_round: OnRound | None) -> None:
    """Run what is left of a run, recording every round; the directory is locked already."""
    from flamma.federation import Federation

    strategy = config.build_strategy()
    begin(config, folder, world)
    population = Population(world.samples, world.costs, world.trainable_size)
    checkpoints = Checkpoints(folder.path / CHECKPOINT)
    state: State = strategy.init(world.initial_params, population)
    state = checkpoints.load(state) or state
    folder.open_at(state.round)
    federation = Federation(
        strategy=strategy,
        clients=world.clients,
        population=world.samples.size,
        costs=world.costs,
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


def begin(config: Config, folder: RunFolder, world: World) -> None:
    """Write what a run begins with, and only now, so that what cannot run leaves nothing behind.

    The configuration comes last, for it makes the directory a run, unless it was put there first
    by whoever handed the run over.
    """
    anew = not folder.exists
    for name, text in (
        (POPULATION, _population_table(world)),
        (ABOUT, json.dumps(_about(world.trainer), indent=1)),
        (CONFIG, config.as_toml()),
    ):
        if anew or not (folder.path / name).exists():
            folder.write(name, text)


def known_population(folder: RunFolder) -> dict[str, Floats] | None:
    """Return samples, held-out samples and costs a begun run was begun with, None before that.

    Measured costs cannot be measured again, and a client may be away when a run goes on.
    """
    if not folder.exists:  # what else is there is the rest of one that never began
        return None
    rows = list(csv.DictReader(io.StringIO(folder.text(POPULATION))))
    try:
        columns = ("samples", "held_out", "cost")
        known = {name: np.array([float(row[name]) for row in rows]) for name in columns}
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder.path / POPULATION} is damaged: remove it to go on.") from error
    return known if rows else None


def _about(trainer: str) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "flamma": flamma.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": version("torch"),
        "trainer": trainer,
        "machine": f"{platform.system()} {platform.machine()}",
        "command": _without_token(sys.argv),
        "started": _now(),
    }


def _without_token(words: Sequence[str]) -> list[str]:
    """Return the command without what Flower lets a process show who it is by."""
    return [
        "..." if before == "--token" else word
        for before, word in zip(["", *words], words, strict=False)
    ]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _population_table(world: World) -> str:
    counts = world.class_counts
    classes = 0 if counts is None else counts.shape[1]
    header = ["client", "samples", "held_out", "cost", *(f"class_{k}" for k in range(classes))]
    columns: list[Sequence[object]] = [
        range(world.samples.size),
        world.samples.tolist(),
        world.held_out.tolist(),
        [repr(cost) for cost in world.costs.tolist()],
        *([] if counts is None else counts.T.tolist()),
    ]
    if world.names:
        header.append("name")
        columns.append(world.names)
    rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    return "\n".join([",".join(header), *rows]) + "\n"


def _client_rows(number: int, scores: Scores | None) -> list[tuple[object, ...]]:
    if scores is None:
        return []
    columns = (scores.accuracy.tolist(), scores.loss.tolist(), scores.samples.tolist())
    return [
        (number, client, f"{accuracy:.6g}", f"{loss:.6g}", held)
        for client, (accuracy, loss, held) in enumerate(zip(*columns, strict=True))
    ]
