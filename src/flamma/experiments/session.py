"""A run from its first round to its last, in its directory, wherever the clients are."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

import flamma
from flamma.experiments.checkpoint import Checkpoints
from flamma.experiments.config import Config
from flamma.experiments.engine import OnRound
from flamma.experiments.folder import ABOUT, CHECKPOINT, CONFIG, POPULATION, RunFolder
from flamma.experiments.world import World, population_table
from flamma.types import Scores

Held = TypeVar("Held")


def carry_out(config: Config, folder: RunFolder, world: World, on_round: OnRound | None) -> None:
    """Run what is left of a run, recording every round; the directory is locked already."""
    from flamma.federation import Federation

    state = config.strategy.init(
        world.initial_params, world.population
    )  # refuses what does not fit
    begin(config, folder, world)
    checkpoints = Checkpoints(folder.path / CHECKPOINT)
    state = checkpoints.load(state) or state
    folder.open_at(state.round)
    federation = Federation(
        strategy=config.strategy,
        clients=world.clients,
        population=world.population.clients,
        costs=world.costs,
        seed=config.seed,
        faults=config.faults,
        evaluate_every=config.evaluation.every,
    )
    rounds = federation.rounds(state)
    for finished in one_behind(rounds) if world.looks_ahead else rounds:
        record, scores = finished.settled()
        state = finished.state
        folder.append(record, _client_rows(record.round, scores))
        checkpoints.save(state, force=state.round == config.rounds)
        if on_round is not None:
            on_round(record)
    digest = hashlib.sha256(state.params.tobytes()).hexdigest()
    about = folder.read_json(ABOUT) | {"finished": _now(), "params_sha256": digest}
    folder.write(ABOUT, json.dumps(about, indent=1))


def one_behind(items: Iterable[Held]) -> Iterator[Held]:
    """Yield every item once the next one is there: its scores come with the next answers."""
    held: list[Held] = []
    for item in items:
        yield from held
        held = [item]
    yield from held


def begin(config: Config, folder: RunFolder, world: World) -> None:
    """Write what a run begins with, and only now, so that what cannot run leaves nothing behind.

    The configuration comes last, for it makes the directory a run, unless it was put there first
    by whoever handed the run over.
    """
    anew = not folder.exists
    for name, text in (
        (POPULATION, population_table(world)),
        (ABOUT, json.dumps(_about(world.trainer), indent=1)),
        (CONFIG, config.as_toml()),
    ):
        if anew or not (folder.path / name).exists():
            folder.write(name, text)


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
    """Return the command without the token that Flower gives a process."""
    return [
        "..." if before == "--token" else word
        for before, word in zip(["", *words], words, strict=False)
    ]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _client_rows(number: int, scores: Scores | None) -> list[tuple[object, ...]]:
    if scores is None:
        return []
    columns = (scores.accuracy.tolist(), scores.loss.tolist(), scores.samples.tolist())
    return [
        (number, client, f"{accuracy:.6g}", f"{loss:.6g}", held)
        for client, (accuracy, loss, held) in enumerate(zip(*columns, strict=True))
    ]
