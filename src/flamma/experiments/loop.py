"""Where a run takes place: its clients, what is known of them, and the first weights."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

import flamma
from flamma.clients.behaviours import assign
from flamma.clients.costs import SPEED_COLUMN, CostedClients, true_costs
from flamma.clients.time import VirtualClock
from flamma.clients.truth import TrueClients
from flamma.errors import ConfigError, DivergedError, EmptyRunError, Key, RunError
from flamma.experiments.callbacks import RunStart, StopRun, record_callbacks
from flamma.experiments.checkpoint import Checkpoints
from flamma.experiments.config import OWN, Config, make_config, read_config
from flamma.experiments.engine import RunParts
from flamma.experiments.folder import (
    ABOUT,
    CONFIG,
    FINITE,
    MODEL_CARD,
    POPULATION,
    STOPPED,
    RunFolder,
    run_id_of,
)
from flamma.experiments.ledger import ledger_writer
from flamma.experiments.population import CLIENTS_AT_ONCE, csv_cell, read_columns, whole
from flamma.experiments.private import check_private_model, private_rounds
from flamma.experiments.trained import ModelCard
from flamma.records import RoundRecord
from flamma.seeding import stream
from flamma.strategies.base import NOT_FINITE
from flamma.types import Floats, Ints, Layout, Params, Population, Scores

if TYPE_CHECKING:
    from flamma.federation import Clients


class _Keeper(Protocol):
    """What clients keep from one round to another, wherever that is."""

    def sync(self) -> None:
        """Make it survive a power failure, before a checkpoint depends on it."""

    def prune(self, earliest: int) -> None:
        """Remove what is not read by a run that goes on from this round or a later one."""


@dataclass(frozen=True, eq=False)
class RunClients:
    """The clients of a run, the model they start from, and what is recorded of them.

    Attributes
    ----------
    clients : Clients
        What the round loop talks to.
    population : Population
        Who the clients are, as the server is told; costs are NaN where only the client knows.
    truth : TrueClients
        What the clients are and do, which may differ from what the population tells, for the
        record and the certificate alone.
    initial_params : ndarray
        The weights before the first round.
    trainer : str
        What the clients train with.
    about : mapping
        What else ``run.json`` has of them: the task and the metric where they are not plain
        accuracy, the checksum of the data, and what tells this run from others of the same
        configuration.
    class_counts : ndarray, optional
        How many samples of each class each client has, where the server may know that.
    looks_ahead : bool
        Whether the scores of a round come with the answers of the next one.
    client_stores : tuple of _Keeper
        What clients keep from one round to another.
    card : ModelCard, optional
        What the weights are called, and what samples and classes are like.
    clock : VirtualClock, optional
        What clients' work takes in virtual time, where the run has such a clock.
    """

    clients: Clients
    population: Population
    truth: TrueClients
    initial_params: Params
    trainer: str
    about: Mapping[str, str] = field(default_factory=dict)
    class_counts: Ints | None = None
    looks_ahead: bool = False
    client_stores: tuple[_Keeper, ...] = ()
    card: ModelCard | None = None
    clock: VirtualClock | None = None


def make_population(
    config: Config,
    folder: RunFolder,
    layout: Layout,
    samples: Callable[[], tuple[Ints, Ints]],
    own_costs: Callable[[], Floats] | None = None,
    seconds_per_epoch: Callable[[], Floats] | None = None,
    names: tuple[str, ...] = (),
    clock_seconds: Floats | None = None,
) -> Population:
    """Return who the clients are: as the run first recorded them, else as they are now.

    Measured costs cannot be measured again, and a client may be away when a run goes on.

    Parameters
    ----------
    config, folder
        Of the run.
    layout : Layout
        What the weights are made of.
    samples : callable
        Returns the training and the held-out samples of each client.
    own_costs : callable, optional
        Returns the costs that clients have by themselves: NaN for one that does not tell it,
        infinite for one that has none and gets it from the configuration.
    seconds_per_epoch : callable, optional
        Times an epoch of each client.
    names : tuple of str
        What clients are called, where they are more than numbers.
    clock_seconds : ndarray, optional
        The virtual seconds of an epoch of each client, where there is a virtual clock.
    """
    known = read_population(folder)
    if known is not None:
        if len(known[2]) != config.data.clients:
            raise RunError(f"{POPULATION} has another number of clients than config.toml.")
        train, held, costs = known
        return Population(train, costs, layout.trainable_size, held, names, layout.trainable_sizes)
    train, held = samples()
    told = np.full(train.size, np.inf) if own_costs is None else own_costs()
    if np.isinf(told).any():
        clients = CostedClients(train.size, config.seed, seconds_per_epoch, clock_seconds)
        drawn = true_costs(config.costs, clients)
        told = np.where(np.isinf(told), drawn, told)
    return Population(train, told, layout.trainable_size, held, names, layout.trainable_sizes)


def true_clients(config: Config, population: Population) -> TrueClients:
    """Return who the clients really are, and which of them are not honest, as configured."""
    behaviours = assign(config.behaviours, population.clients, config.seed)
    return TrueClients(population, behaviours, config.strategy.respond, config.seed)


def check_validation(config: Config, samples: int) -> None:
    """Refuse a strategy that needs a validation set where the server has none."""
    who = config.strategy.component_that_needs("validation")
    if who and not samples:
        how = ["set ", Key("data.validation_samples"), ", or give the server a validation set"]
        if config.data.dataset == OWN and config.engine.clients_hold_data:
            how = ["name a validation set in the server's host.toml, [validation] npz = ..."]
        raise ConfigError(f"{who} scores updates on the server's own data: ", *how, ".")


def evaluated_clients(config: Config) -> Ints | None:
    """Return the clients that evaluate models, in order, where the configuration asks for a sample.

    They are drawn once: with the same clients in every evaluation, curves and strategies of one
    seed differ by their models alone, and a resumed run goes on with the same ones.
    """
    clients = config.data.clients
    count = config.evaluation.sample_of(clients)
    if count is None:
        return None
    rng = stream(config.seed, "evaluated-clients")
    return np.sort(rng.choice(clients, size=count, replace=False))


def read_population(folder: RunFolder) -> tuple[Ints, Ints, Floats] | None:
    """Return samples, held-out samples and costs a run was begun with, None before that."""
    if not folder.exists:  # other files there are left over from a run that never began
        return None
    text = folder.text(POPULATION)
    if not text.partition("\n")[2].strip():
        return None
    try:
        columns = read_columns(text)
        train, held = (whole(columns[name]) for name in ("samples", "held_out"))
        return train, held, columns["cost"]
    except (KeyError, ValueError) as error:
        raise RunError(f"{folder.path / POPULATION} is damaged: remove it to go on.") from error


def _population_table(known: RunClients) -> str:
    """Return ``population.csv``: one line per client, with its true cost."""
    population, counts = known.truth.population, known.class_counts
    clients, names = population.clients, population.names
    held = np.zeros(clients, dtype=np.int64) if population.held_out is None else population.held_out
    costs = np.full(clients, np.nan) if population.costs is None else population.costs
    classes = [] if counts is None else [f"class_{k}" for k in range(counts.shape[1])]
    speeds = None if known.clock is None else known.clock.speeds
    header = ["client", "samples", "held_out", "cost", *([SPEED_COLUMN] if known.clock else [])]
    header += [*classes, *(["name"] if names else [])]
    parts = [",".join(header) + "\n"]
    # In parts, so that the objects that Python makes of a million clients are never all there.
    for first in range(0, clients, CLIENTS_AT_ONCE):
        own = slice(first, min(first + CLIENTS_AT_ONCE, clients))
        columns: list[Sequence[object]] = [
            range(own.start, own.stop),
            population.samples[own].tolist(),
            held[own].tolist(),
            [repr(cost) for cost in costs[own].tolist()],
            *([] if speeds is None else [[repr(speed) for speed in speeds[own].tolist()]]),
            *([] if counts is None else counts[own].T.tolist()),
            *([[csv_cell(name) for name in names[own]]] if names else []),
        ]
        parts += [",".join(map(str, row)) + "\n" for row in zip(*columns, strict=True)]
        parts = ["".join(parts)]
    return "".join(parts)


# A run from its first round to its last, in its directory, wherever the clients are.

Held = TypeVar("Held")

_MAX_CLIENT_ROWS = 10_000
"""Clients of one evaluation that ``clients.csv`` tells, about 30 bytes each."""


def record_rounds(parts: RunParts, run_clients: RunClients) -> None:
    """Run what is left of a run, recording every round; the directory is locked already.

    A callback may end it early; what a callback's error costs is no round that was finished.
    """
    from flamma.federation import Federation

    config, folder, callbacks = parts.config, parts.folder, parts.callbacks
    checkpoints = Checkpoints(folder.path)
    first = config.strategy.init(run_clients.initial_params, run_clients.population)
    check_private_model(config, first, run_clients.population)
    goes_on = (folder.path / ABOUT).exists()
    state = checkpoints.settle(first)
    write_header(parts, run_clients)
    state = checkpoints.load(state, _last_round(folder), folder.is_whole) or state
    run_id = folder.run_id
    about = folder.read_json(ABOUT)
    if STOPPED in about:  # it goes on now
        ended = (STOPPED, FINITE, "finished", "params_sha256")
        folder.write_json(ABOUT, {k: v for k, v in about.items() if k not in ended})
    undone = _last_round(folder) - state.round if goes_on else None
    privacy = private_rounds(config, folder, first, undone)
    elapsed = 0.0  # virtual seconds until now, 0 without a clock
    for record in folder.rounds():
        if record.round <= state.round:
            elapsed = record.cost.virtual_seconds or 0.0
    folder.open_at(state.round, ledger_writer(config.ledger, run_id, folder.text(POPULATION)))
    federation = Federation(
        strategy=config.strategy,
        clients=run_clients.clients,
        truth=run_clients.truth,
        seed=config.seed,
        faults=config.faults,
        evaluate_every=config.evaluation.every,
        privacy=privacy,
        clock=run_clients.clock,
    )
    rounds = federation.rounds(state, elapsed)
    stopped: dict[str, Any] = {}
    synced = partial(_sync, folder, run_clients.client_stores)
    with checkpoints:
        try:
            start = RunStart(config, folder.path, tuple(folder.rounds()), lambda: state.served)
            callbacks.start(start)
            for finished in with_lag_one(rounds) if run_clients.looks_ahead else rounds:
                record, scores = finished.evaluated()
                state = finished.state
                rows = _client_rows(record.round, scores)
                record = replace(record, run=run_id)
                folder.append(record, rows)
                save = partial(checkpoints.start, state, synced, folder.extents())
                if state.round == config.rounds or checkpoints.is_due():
                    save()
                _prune(run_clients.client_stores, checkpoints, state.round)
                try:
                    callbacks.round(record)
                except Exception:  # however that ends the run, the round is not done again
                    save()
                    raise
        except StopRun as stop:
            if state.round < 1:
                raise
            if state.round < config.rounds:
                reason = str(stop).rstrip(".")
                told = {"round": state.round, "reason": reason, "by": callbacks.stopped_by}
                stopped[STOPPED] = told
    _prune(run_clients.client_stores, checkpoints, state.round)
    digest = hashlib.sha256(state.served.tobytes()).hexdigest()
    finite = {} if np.isfinite(state.served).all() else {FINITE: False}
    folder.write_about(finished=_now(), params_sha256=digest, **stopped, **finite)


def _sync(folder: RunFolder, stores: Sequence[_Keeper]) -> None:
    """Put on disk what a checkpoint depends on."""
    folder.sync()
    for store in stores:
        store.sync()


def _prune(stores: Sequence[_Keeper], checkpoints: Checkpoints, finished: int) -> None:
    """Remove what clients kept in rounds that this run never goes back to.

    A run that had to begin before its oldest checkpoint goes by the round that it has come to.
    """
    if checkpoints.oldest is not None:
        for store in stores:
            store.prune(min(checkpoints.oldest, finished))


def with_lag_one(items: Iterable[Held]) -> Iterator[Held]:
    """Yield every item once the next one is there: its scores come with the next answers."""
    held: list[Held] = []
    for item in items:
        yield from held
        held = [item]
    yield from held


def write_header(parts: RunParts, run_clients: RunClients) -> None:
    """Write the first files of a run, as late as this, so that a refused run leaves none behind.

    The configuration comes last, for it makes the directory a run, unless it was put there first
    by whoever handed the run over.
    """
    config, folder = parts.config, parts.folder
    anew = not folder.exists
    if not anew:
        _check_same(config, folder)
    record_callbacks(folder.path, parts.callbacks)
    own = config.as_toml() if anew else folder.text(CONFIG)
    told = {key: value for key, value in run_clients.about.items() if value}
    about = _about(run_clients.trainer) | {"run": run_id_of(own)} | told
    if run_clients.card is not None:
        if anew or not (folder.path / MODEL_CARD).exists():
            run_clients.card.write(folder, config)
        else:
            run_clients.card.check(folder.path)
    texts: tuple[tuple[str, Callable[[], str]], ...] = (
        (POPULATION, lambda: _population_table(run_clients)),
        (ABOUT, lambda: json.dumps(about, indent=1, allow_nan=False) + "\n"),
        (CONFIG, lambda: own),
    )
    for name, text in texts:
        if anew or not (folder.path / name).exists():
            folder.write(name, text())
    folder.seal()


def _check_same(config: Config, folder: RunFolder) -> None:
    """Refuse to go on with a run of another configuration; how it is computed may differ."""
    before = make_config(read_config(folder.path / CONFIG, regular=True))
    how = {"engine.processes": 1, "training.trainer": "auto", "engine.name": "local"}
    if before.with_settings(how) != config.with_settings(how):
        raise RunError(
            f"{folder.path} holds a run of another configuration: choose another directory."
        )


def _last_round(folder: RunFolder) -> int:
    """Return the last round that is recorded, 0 before the first."""
    records = folder.rounds()
    return records[-1].round if records else 0


def _about(trainer: str) -> dict[str, str | list[str]]:
    from importlib.metadata import version

    words = sys.argv
    return {
        "flamma": flamma.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": version("torch"),
        "trainer": trainer,
        "machine": f"{platform.system()} {platform.machine()}",
        "command": [  # without the token that Flower gives a process
            "..." if before == "--token" else word
            for before, word in zip(["", *words], words, strict=False)
        ],
        "started": _now(),
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _client_rows(number: int, scores: Scores | None) -> list[str]:
    """Return the lines of ``clients.csv`` of an evaluation; of very many clients, even ones."""
    if scores is None:
        return []
    clients = np.arange(scores.accuracy.size) if scores.clients is None else scores.clients
    if clients.size > _MAX_CLIENT_ROWS:
        kept = np.linspace(0, clients.size - 1, _MAX_CLIENT_ROWS).astype(np.int64)
    else:
        kept = np.arange(clients.size)
    columns = (clients, scores.accuracy, scores.loss, scores.samples)
    return [
        f"{number},{client},{accuracy:.6g},{loss:.6g},{held}"
        for client, accuracy, loss, held in zip(*(c[kept].tolist() for c in columns), strict=True)
    ]


# Runs in which nobody trained, or that diverged: they must not be taken for any other run.

_SHORTEST_STANDSTILL = 3
"""Rounds without a contribution at the end of a run from which on it stands still."""

_DIVERGED_SHARE = 0.75
"""A run has diverged if more than this share of its answers were refused as not finite."""

_END_OF_RUN = 0.25
"""The share of the rounds that also count alone: a run may diverge late."""

_SMALL_CONTRIBUTION = 0.1
"""Where no client contributes as much, training changes models so much that none is alike."""


def check_trained(
    history: Sequence[RoundRecord],
    where: str = "",
    learning_rate: float | None = None,
    finite: bool = True,
) -> None:
    """Refuse to call a run done that diverged, or in which nobody trained.

    Parameters
    ----------
    history : sequence of RoundRecord
        The rounds of the run.
    where : str
        Where it is recorded, for the message.
    learning_rate : float, optional
        That of the clients, for the message.
    finite : bool
        Whether its final weights are finite.

    Raises
    ------
    DivergedError
        If the final weights are not finite, or most answers were refused since theirs were not.
    EmptyRunError
        If no update was used in any round, or if in the second half of the run, three rounds at
        least, all clients abstained since their contributions are 0, which nothing can change any
        more. It says why.
    """
    recorded = f" The rounds are recorded in {where}." if where else ""
    if diverged := why_diverged(history, learning_rate, finite):
        raise DivergedError(f"the run diverged: {diverged}.{recorded}")
    used = [place for place, record in enumerate(history) if record.used]
    empty = history[used[-1] + 1 :] if used else history
    if not empty:
        return
    if used and (
        len(empty) < max(_SHORTEST_STANDSTILL, len(history) / 2)
        or any(record.outcome.failed for record in empty)
        or not _is_worthless(empty)
    ):
        return  # it does not stand still
    what = f"the model is untrained: no client's update was used in {len(history)} rounds"
    if len(empty) < len(history):
        last = history[-len(empty) - 1].round
        what = f"the run stood still: no client's update was used after round {last}"
    raise EmptyRunError(f"{what}; {why_empty(empty)}.{recorded}")


def why_diverged(
    history: Sequence[RoundRecord], learning_rate: float | None = None, finite: bool = True
) -> str:
    """Return in what a run has diverged, and what the likely cause is; empty if it has not."""
    rate = "the learning rate" if learning_rate is None else f"the learning rate {learning_rate:g}"
    either = f"{rate} or a step of the server"
    if not finite:  # the server made them so, since it refuses answers that are not finite
        return (
            f"its final weights are not finite; most likely {either} is too large: try a smaller "
            f"one"
        )
    at_once = NOT_FINITE in history[0].outcome.failed.values() if history else False
    end = history[-max(_SHORTEST_STANDSTILL, round(_END_OF_RUN * len(history))) :]
    for part in (history, end):
        refused = sum(
            reason == NOT_FINITE for record in part for reason in record.outcome.failed.values()
        )
        answers = refused + sum(record.used for record in part)
        if refused > _DIVERGED_SHARE * answers:
            when = f" of the last {len(part)} rounds" if len(part) < len(history) else ""
            return (
                f"{refused} of {answers} answers{when} were refused as not finite; most likely "
                f"{rate if at_once else either} is too large: try a smaller one"
            )
    return ""


def _is_worthless(history: Sequence[RoundRecord]) -> bool:
    """Whether contributions are known, and all of them are 0."""
    told = [value for record in history for value in record.offer.contributions or ()]
    return bool(told) and not any(told)


def why_empty(history: Sequence[RoundRecord]) -> str:
    """Return why the rounds of a run are empty: who abstained, and the most frequent failure."""
    reasons = Counter(reason for record in history for reason in record.outcome.failed.values())
    abstained = sum(len(record.outcome.abstained) for record in history)
    parts = []
    if reasons:
        most, count = reasons.most_common(1)[0]
        parts.append(f'{reasons.total()} answers failed, {count} of them with "{most}"')
    if abstained:
        parts.append(f"{abstained} times a client abstained, {_why_abstained(history)}")
    return " and ".join(parts) or "nobody was there to be selected"


def _why_abstained(history: Sequence[RoundRecord]) -> str:
    if _is_worthless(history):
        return "as every contribution was 0: try a smaller learning rate or momentum"
    if most := _small_contribution(history):
        return (
            f"as no contribution was above {most:.2g}, of 1 at most: try a smaller learning rate "
            f"or momentum"
        )
    return "as training did not pay at these decay factors: lower the costs or change the strategy"


def _small_contribution(history: Sequence[RoundRecord]) -> float:
    """Return the largest contribution if it is small, and a full one would pay; else 0."""
    most = max(
        (value for record in history for value in record.offer.contributions or ()), default=1.0
    )
    games = [record.game for record in history if record.game is not None]
    pays = any(game.costs and min(game.costs) * game.epoch_bounds[0] <= 1.0 for game in games)
    return most if pays and most < _SMALL_CONTRIBUTION else 0.0


# A run that a callback ended before its last round, as ``run.json`` tells it.


@dataclass(frozen=True)
class StoppedEarly:
    """After which round a run was stopped, why, and by which callback."""

    round: int
    reason: str
    by: str

    def __str__(self) -> str:
        return f"stopped after round {self.round} by {self.by}: {self.reason}"


def read_stopped(about: Mapping[str, Any]) -> StoppedEarly | None:
    """Return what ``run.json`` tells of an early stop, None if there was none.

    Examples
    --------
    >>> print(read_stopped({"stopped": {"round": 7, "reason": "enough", "by": "early-stopping"}}))
    stopped after round 7 by early-stopping: enough
    """
    told = about.get(STOPPED)
    if not isinstance(told, dict) or type(told.get("round")) is not int or told["round"] < 1:
        return None
    return StoppedEarly(told["round"], str(told.get("reason", "")), str(told.get("by", "")))
