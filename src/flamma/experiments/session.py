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
from flamma.experiments.callbacks.base import Callback, RunStart, StopRun
from flamma.experiments.callbacks.dispatch import Callbacks
from flamma.experiments.callbacks.recorded import record_callbacks
from flamma.experiments.checkpoint import Checkpoints
from flamma.experiments.config import Config, make_config, read_config
from flamma.experiments.folder import (
    ABOUT,
    CONFIG,
    DATA_SHA256,
    FINITE,
    POPULATION,
    STOPPED,
    RunFolder,
    run_id_of,
)
from flamma.experiments.ledger_file import ledger_writer
from flamma.experiments.manifest import MANIFEST, signed
from flamma.experiments.model_card import MODEL_CARD, ModelCard
from flamma.experiments.private import check_private_model, private_rounds
from flamma.experiments.world import Keeper, World, population_table
from flamma.records import RoundRecord, rows_checksum
from flamma.types import Scores

Held = TypeVar("Held")

MOST_CLIENT_ROWS = 10_000
"""Clients of one evaluation that ``clients.csv`` tells, about 30 bytes each."""


def carry_out(config: Config, folder: RunFolder, world: World, callbacks: Callbacks) -> None:
    """Run what is left of a run, recording every round; the directory is locked already.

    A callback may end it early; what a callback's error costs is no round that was finished.
    """
    from flamma.federation import Federation

    checkpoints = Checkpoints(folder.path)
    first = config.strategy.init(world.initial_params, world.population)
    check_private_model(config, first, world.population)
    goes_on = (folder.path / ABOUT).exists()
    state = checkpoints.settle(first)
    if folder.exists and not (folder.path / MANIFEST).exists():  # begun by version 0.1
        state = checkpoints.load(state, _last_round(folder)) or state
        begin(config, folder, world, callbacks)
    else:
        begin(config, folder, world, callbacks)
        state = checkpoints.load(state, _last_round(folder)) or state
    run_id = folder.run_id
    _take_back_stop(folder)
    undone = _last_round(folder) - state.round if goes_on else None
    privacy = private_rounds(config, folder, first, undone)
    folder.open_at(state.round, ledger_writer(config.ledger, run_id, folder.text(POPULATION)))
    federation = Federation(
        strategy=config.strategy,
        clients=world.clients,
        truth=world.truth,
        seed=config.seed,
        faults=config.faults,
        evaluate_every=config.evaluation.every,
        privacy=privacy,
        clock=world.clock,
    )
    rounds = federation.rounds(state, _virtual_time(folder))
    stopped: dict[str, Any] = {}
    synced = partial(_sync, folder, world.keepers)
    with checkpoints:
        try:
            start = RunStart(config, folder.path, tuple(folder.rounds()), lambda: state.served)
            callbacks.start(start)
            for finished in one_behind(rounds) if world.looks_ahead else rounds:
                record, scores = finished.settled()
                state = finished.state
                rows = _client_rows(record.round, scores)
                record = replace(record, scores_checksum=rows_checksum(rows), run=run_id)
                folder.append(record, rows)
                if state.round == config.rounds or checkpoints.is_due():
                    checkpoints.start(state, synced)
                _prune(world.keepers, checkpoints, state.round)
                _tell(callbacks, record, partial(checkpoints.start, state, synced))
        except StopRun as stop:
            stopped = _stopped(stop, state.round, config.rounds, callbacks.stopped_by)
    _prune(world.keepers, checkpoints, state.round)
    digest = hashlib.sha256(state.served.tobytes()).hexdigest()
    told = {} if np.isfinite(state.served).all() else {FINITE: False}
    folder.write_about(finished=_now(), params_sha256=digest, **stopped, **told)


def _tell(callbacks: Callbacks, record: RoundRecord, save: Callable[[], None]) -> None:
    """Tell of a round; if that ends the run, in whatever way, the round is not done again."""
    try:
        callbacks.round(record)
    except Exception:
        save()
        raise


def _take_back_stop(folder: RunFolder) -> None:
    """Take back that a run has ended, if it had ended early, since it goes on now."""
    about = folder.read_json(ABOUT)
    if STOPPED in about:
        ended = (STOPPED, FINITE, "finished", "params_sha256")
        folder.write(ABOUT, signed({k: v for k, v in about.items() if k not in ended}))


def _stopped(stop: StopRun, last: int, planned: int, by: str) -> dict[str, Any]:
    """Return what is written down of a run that ended early: nothing if it came to its end."""
    if last < 1:
        raise stop
    told = {"round": last, "reason": str(stop).rstrip("."), "by": by}
    return {STOPPED: told} if last < planned else {}


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


def begin(
    config: Config, folder: RunFolder, world: World, callbacks: Iterable[Callback] = ()
) -> None:
    """Write the first files of a run, as late as this, so that a refused run leaves none behind.

    The configuration comes last, for it makes the directory a run, unless it was put there first
    by whoever handed the run over.
    """
    anew = not folder.exists
    if not anew:
        _check_same(config, folder)
    record_callbacks(folder.path, callbacks)
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
    before = make_config(read_config(folder.path / CONFIG, regular=True))
    how = {"engine.processes": 1, "training.trainer": "auto", "engine.name": "local"}
    if before.with_settings(how) != config.with_settings(how):
        raise RunError(f"{folder.path} holds a run of another configuration: name another --out.")


def _last_round(folder: RunFolder) -> int:
    """Return the last round that is recorded, 0 before the first."""
    records = folder.rounds()
    return records[-1].round if records else 0


def _virtual_time(folder: RunFolder) -> float:
    """Return the virtual time at the end of the last round that is recorded, 0 without a clock."""
    records = folder.rounds()
    return (records[-1].virtual_seconds or 0.0) if records else 0.0


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
