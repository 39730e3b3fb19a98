"""A run from its first round to its last, in its directory, wherever the clients are."""

from __future__ import annotations

import hashlib
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

import flamma
from flamma.errors import RunError
from flamma.experiments.checkpoint import Checkpoints
from flamma.experiments.config import Config, make_config, read_config
from flamma.experiments.engine import OnRound
from flamma.experiments.folder import (
    ABOUT,
    CONFIG,
    DATA_SHA256,
    POPULATION,
    RunFolder,
    run_id_of,
)
from flamma.experiments.ledger_file import ledger_writer
from flamma.experiments.manifest import MANIFEST, signed
from flamma.experiments.model_card import MODEL_CARD, ModelCard
from flamma.experiments.world import Keeper, World, population_table
from flamma.records import rows_checksum
from flamma.types import Scores

Held = TypeVar("Held")

MOST_CLIENT_ROWS = 10_000
"""Clients of one evaluation that ``clients.csv`` tells, about 30 bytes each."""


def carry_out(config: Config, folder: RunFolder, world: World, on_round: OnRound | None) -> None:
    """Run what is left of a run, recording every round; the directory is locked already."""
    from flamma.federation import Federation

    checkpoints = Checkpoints(folder.path)
    state = checkpoints.settle(config.strategy.init(world.initial_params, world.population))
    if folder.exists and not (folder.path / MANIFEST).exists():  # begun by version 0.1
        state = checkpoints.load(state, _last_round(folder)) or state
        begin(config, folder, world)
    else:
        begin(config, folder, world)
        state = checkpoints.load(state, _last_round(folder)) or state
    run_id = folder.run_id
    folder.open_at(state.round, ledger_writer(config.ledger, run_id, folder.text(POPULATION)))
    federation = Federation(
        strategy=config.strategy,
        clients=world.clients,
        truth=world.truth,
        seed=config.seed,
        faults=config.faults,
        evaluate_every=config.evaluation.every,
    )
    rounds = federation.rounds(state)
    with checkpoints:
        for finished in one_behind(rounds) if world.looks_ahead else rounds:
            record, scores = finished.settled()
            state = finished.state
            rows = _client_rows(record.round, scores)
            record = replace(record, scores_checksum=rows_checksum(rows), run=run_id)
            folder.append(record, rows)
            if state.round == config.rounds or checkpoints.is_due():
                checkpoints.start(state, partial(_sync, folder, world.keepers))
            _prune(world.keepers, checkpoints, state.round)
            if on_round is not None:
                on_round(record)
    _prune(world.keepers, checkpoints, state.round)
    digest = hashlib.sha256(state.params.tobytes()).hexdigest()
    folder.write_about(finished=_now(), params_sha256=digest)


def _sync(folder: RunFolder, keepers: Sequence[Keeper]) -> None:
    """Put on disk what a checkpoint depends on."""
    folder.sync()
    for keeper in keepers:
        keeper.sync()


def _prune(keepers: Sequence[Keeper], checkpoints: Checkpoints, finished: int) -> None:
    """Remove what clients kept in rounds that this run never goes back to.

    A run that had to begin before its oldest checkpoint goes by the round that it has come to.
    """
    if checkpoints.oldest is not None:
        for keeper in keepers:
            keeper.prune(min(checkpoints.oldest, finished))


def one_behind(items: Iterable[Held]) -> Iterator[Held]:
    """Yield every item once the next one is there: its scores come with the next answers."""
    held: list[Held] = []
    for item in items:
        yield from held
        held = [item]
    yield from held


def begin(config: Config, folder: RunFolder, world: World) -> None:
    """Write the first files of a run, as late as this, so that a refused run leaves none behind.

    The configuration comes last, for it makes the directory a run, unless it was put there first
    by whoever handed the run over.
    """
    anew = not folder.exists
    if not anew:
        _check_same(config, folder)
    own = config.as_toml() if anew else folder.text(CONFIG)
    about = _about(world.trainer) | dict(world.measured) | {"run": run_id_of(own)}
    if world.instance:
        about["instance"] = world.instance
    if world.data_sha256:
        about[DATA_SHA256] = world.data_sha256
    if world.card is not None:
        _describe(config, folder, world.card, anew)
    texts: tuple[tuple[str, Callable[[], str]], ...] = (
        (POPULATION, lambda: population_table(world)),
        (ABOUT, lambda: signed(about)),
        (CONFIG, lambda: own),
    )
    for name, text in texts:
        if anew or not (folder.path / name).exists():
            folder.write(name, text())
    folder.seal()


def _describe(config: Config, folder: RunFolder, card: ModelCard, anew: bool) -> None:
    """Write what the weights are called, or check that a run that goes on has the same model."""
    if anew or not (folder.path / MODEL_CARD).exists():
        card.write(folder.path, config)
    else:
        card.check(folder.path)


def _check_same(config: Config, folder: RunFolder) -> None:
    """Refuse to go on with a run of another configuration; how it is computed may differ."""
    before = make_config(read_config(folder.path / CONFIG))
    how = {"engine.processes": 1, "training.trainer": "auto", "engine.name": "local"}
    if before.with_settings(how) != config.with_settings(how):
        raise RunError(f"{folder.path} holds a run of another configuration: name another --out.")


def _last_round(folder: RunFolder) -> int:
    """Return the last round that is recorded, 0 before the first."""
    records = folder.rounds()
    return records[-1].round if records else 0


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


def _client_rows(number: int, scores: Scores | None) -> list[str]:
    """Return the lines of ``clients.csv`` of an evaluation; of very many clients, even ones."""
    if scores is None:
        return []
    clients = np.arange(scores.accuracy.size) if scores.clients is None else scores.clients
    if clients.size > MOST_CLIENT_ROWS:
        kept = np.linspace(0, clients.size - 1, MOST_CLIENT_ROWS).astype(np.int64)
    else:
        kept = np.arange(clients.size)
    columns = (clients, scores.accuracy, scores.loss, scores.samples)
    return [
        f"{number},{client},{accuracy:.6g},{loss:.6g},{held}"
        for client, accuracy, loss, held in zip(*(c[kept].tolist() for c in columns), strict=True)
    ]
