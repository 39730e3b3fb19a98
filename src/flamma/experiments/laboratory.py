"""The laboratory of contribution measures: how they compare with exact Shapley values.

The exact values are those of the game in which a coalition of clients is worth the accuracy (or the
loss) of the model that it trains among itself by FedAvg. All coalitions are trained. Then every
client in turn deviates, and it is measured what that earns.
"""

from __future__ import annotations

import csv
import io
import json
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flamma.contributions import CONTRIBUTIONS, RoundUpdates, measure_round
from flamma.contributions.shapley import MOST_LOSS, exact_shapley
from flamma.errors import ConfigError, RunError
from flamma.experiments.config import Config, make_config, with_settings
from flamma.experiments.folder import CONFIG, RunFolder
from flamma.experiments.run import build_data, build_runner
from flamma.io import quoted, read_text, write_atomically
from flamma.numerics import norm, normal, total
from flamma.processes import exit_with_parent
from flamma.registry import Choice, parse_value
from flamma.seeding import stream
from flamma.strategies.base import Offer
from flamma.strategies.fedavg import FedAvg
from flamma.tasks import refuse_losses
from flamma.types import Floats, Ints, Params, Population, Profile, Report

if TYPE_CHECKING:
    from flamma.simulation.runner import ClientRunner


# What a client may send instead of its honest work, where contribution measures are studied.

_IDLE_NOISE = 1e-3
"""The length of a free-rider's noise, as a share of the length of the received weights."""


@dataclass(frozen=True, eq=False)
class _RoundKnowledge:
    """What a client knows that makes up its answer in a round, and its honest work.

    Attributes
    ----------
    seed, round, client : int
        Key the noise.
    received, last_received : ndarray
        The global model now, and a round ago; the same in the first round.
    honest : sequence of ndarray
        What every client would send by honest work.
    last_move : ndarray
        What this client added to the received model a round ago; in the first round its honest
        work of now.
    """

    seed: int
    round: int
    client: int
    received: Params
    last_received: Params
    honest: Sequence[Params]
    last_move: Floats

    def noise(self) -> Floats:
        """Return noise of an expected length of 1."""
        rng = stream(self.seed, "deviation-noise", self.round, self.client)
        size = self.received.size
        noise: Floats = normal(rng, size) / np.sqrt(size)
        return noise


def _free_rider(now: _RoundKnowledge) -> Floats:
    """Send the received model back with a little noise."""
    return _IDLE_NOISE * norm(now.received) * now.noise()


def _noise_sender(now: _RoundKnowledge) -> Floats:
    """Add noise to the received model, as long as the others' updates are on average."""
    others = [w for client, w in enumerate(now.honest) if client != now.client]
    lengths = [norm(w - now.received) for w in others]
    return sum(lengths) / max(1, len(lengths)) * now.noise()


def _repeater(now: _RoundKnowledge) -> Floats:
    """Work in the first round, and send that update again in all others."""
    return now.last_move


def _step_rider(now: _RoundKnowledge) -> Floats:
    """Take the last step of the global model once more, which every client knows for free."""
    step = now.received.astype(np.float64) - now.last_received
    return step if step.any() else _free_rider(now)


def _duplicate(now: _RoundKnowledge) -> Floats:
    """Send what the next client sends."""
    other = now.honest[(now.client + 1) % len(now.honest)]
    return other.astype(np.float64) - now.received


_UpdateDeviation = Callable[[_RoundKnowledge], Floats]
"""Returns what a client adds to the received model."""

UPDATE_DEVIATIONS: dict[str, _UpdateDeviation] = {
    "free-rider": _free_rider,
    "noise": _noise_sender,
    "repeater": _repeater,
    "step-rider": _step_rider,
    "duplicate": _duplicate,
}
"""All deviations by name."""


# FedAvg among some clients of a federation: exact worth of coalitions, and what measures pay.

_ChangedReports = Callable[["PlayedRound"], Sequence[Report]]


class PlayedRound(NamedTuple):
    """A round of training: its number, the global model before and after, and the reports."""

    number: int
    before: Params
    reports: Sequence[Report]
    after: Params


class _CoalitionValue(NamedTuple):
    """What a model is worth on the test set: accuracy in percent, and loss."""

    accuracy: float
    loss: float


@dataclass(frozen=True, eq=False)
class CoalitionBench:
    """The clients of one seed, and FedAvg among any of them, every one of them in every round.

    Random streams are keyed by round and client, so that a client does the same in every
    coalition but for the model it receives.
    """

    strategy: FedAvg
    runner: ClientRunner
    population: Population
    seed: int

    @classmethod
    def build(cls, config: Config, data_dir: Path | None = None) -> CoalitionBench:
        """Return the clients of a configuration, in this process alone."""
        data = build_data(config, data_dir)
        runner = build_runner(config, data, processes=1)
        population = Population(data.samples, None, runner.layout.trainable_size)
        return cls(FedAvg(config.strategy.plan), runner, population, config.seed)

    @property
    def samples(self) -> Ints:
        """How many training samples each client has."""
        return self.population.samples

    def value(self, members: Sequence[int]) -> _CoalitionValue:
        """Return what the model is worth that these clients train among themselves."""
        params = self.runner.initial_params
        if members:
            for played in self.rounds(members):
                params = played.after
        scores = self.runner.evaluate(params)
        return _CoalitionValue(scores.test_accuracy, scores.test_loss)

    def rounds(
        self, members: Sequence[int], change: _ChangedReports | None = None
    ) -> Iterator[PlayedRound]:
        """Train among these clients and yield every round.

        ``change`` returns the reports that reach the server instead of the honest ones.
        """
        strategy = self.strategy
        state = strategy.init(self.runner.initial_params, self.population)
        for number in range(1, strategy.plan.rounds + 1):
            terms = tuple(strategy.terms(client, number) for client in members)
            tasks = [
                strategy.respond(t, Profile(t.client, 1.0, int(self.samples[t.client])))
                for t in terms
            ]
            before = state.params
            played = PlayedRound(number, before, self.runner.train(before, tasks), before)
            reports = played.reports if change is None else change(played)
            state, record = strategy.aggregate(state, Offer(number, terms), reports)
            for client, reason in record.failed.items():
                raise RunError(f"client {client} failed in round {number}: {reason}.")
            yield PlayedRound(number, before, reports, state.params)

    def earnings(
        self,
        measures: Mapping[str, Choice],
        deviation: _UpdateDeviation | None = None,
        deviator: int = 0,
    ) -> tuple[dict[str, Floats], dict[str, float]]:
        """Return each client's contributions over all rounds, and each measure's seconds a round.

        All clients take part. One of them may deviate; the others are honest, and the server
        aggregates what it is sent.
        """
        everyone = range(self.population.clients)
        change = None if deviation is None else Deviator(deviation, deviator, self.seed)
        earned = {name: np.zeros(len(everyone)) for name in measures}
        last = {name: np.full(len(everyone), np.nan) for name in measures}
        seconds = dict.fromkeys(measures, 0.0)
        before: Params | None = None
        for played in self.rounds(everyone, change):
            step = None if before is None else played.before - before
            updates, before = replace(self._updates(played), last_step=step), played.before
            for name, choice in measures.items():
                begun = time.perf_counter()
                last[name] = measure_round(choice, replace(updates, previous=last[name]))
                seconds[name] += (time.perf_counter() - begun) / self.strategy.plan.rounds
                earned[name] += last[name]
        return earned, seconds

    def _updates(self, played: PlayedRound) -> RoundUpdates:
        samples = self.samples
        return RoundUpdates(
            clients=np.arange(samples.size),
            models=[r.params for r in played.reports if r.params is not None],
            before=played.before,
            after=played.after,
            trainable_size=self.population.trainable_size,
            weights=samples / samples.sum(),
            previous=np.full(samples.size, np.nan),
            round=played.number,
            validate=self.runner.validate,
        )


@dataclass
class Deviator:
    """Replaces what one client sends; remembers what it needs of the round before."""

    deviation: _UpdateDeviation
    client: int
    seed: int
    received: Params | None = None
    move: Floats | None = None

    def __call__(self, played: PlayedRound) -> Sequence[Report]:
        """Return the reports of the round, one of them made up."""
        received = played.before
        honest = [report.params for report in played.reports if report.params is not None]
        own = honest[self.client].astype(np.float64) - received
        now = _RoundKnowledge(
            seed=self.seed,
            round=played.number,
            client=self.client,
            received=received,
            last_received=received if self.received is None else self.received,
            honest=honest,
            last_move=own if self.move is None else self.move,
        )
        self.move, self.received = self.deviation(now), received
        sent = (received + self.move).astype(np.float32)
        return [
            replace(report, params=sent) if report.client == self.client else report
            for report in played.reports
        ]


# The results of a study of contribution measures, as a table, CSV and JSON.


@dataclass(frozen=True, eq=False)
class MeasureResult:
    """How one measure does.

    Attributes
    ----------
    spearman, kendall : tuple of float
        Rank correlations with the exact Shapley values, one for each seed; NaN where a measure
        tells no clients apart.
    earned : mapping
        What a client that deviates earns on average, as a share of what an honest client earns
        on average when all are honest.
    most_earned : mapping
        The same of the client and the seed for which deviating pays best.
    seconds : float
        Seconds for a round.
    needs_validation : bool
        Whether the server needs a validation set.
    contributions : ndarray
        The sum over all rounds of each client's contributions, one row for each seed.
    """

    spearman: tuple[float, ...]
    kendall: tuple[float, ...]
    earned: Mapping[str, float]
    most_earned: Mapping[str, float]
    seconds: float
    needs_validation: bool
    contributions: Floats

    def as_json(self) -> dict[str, Any]:
        """Return plain values; what is not a number is None."""
        return {
            "spearman": [_plain(value) for value in self.spearman],
            "kendall": [_plain(value) for value in self.kendall],
            "earned": {name: _plain(value) for name, value in self.earned.items()},
            "most_earned": {name: _plain(value) for name, value in self.most_earned.items()},
            "seconds_per_round": self.seconds,
            "needs_validation": self.needs_validation,
            "contributions": self.contributions.tolist(),
        }


@dataclass(frozen=True, eq=False)
class _MeasureStudy:
    """All measures compared with the exact Shapley values, which have one row for each seed."""

    config: str
    seeds: tuple[int, ...]
    utility: str
    exact: Floats
    measures: Mapping[str, MeasureResult]

    def as_json(self) -> dict[str, Any]:
        """Return the whole study as plain values."""
        return {
            "config": self.config,
            "seeds": list(self.seeds),
            "utility": self.utility,
            "exact_shapley": self.exact.tolist(),
            "measures": {name: result.as_json() for name, result in self.measures.items()},
        }

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return a header and one row for each measure."""
        deviations = list(next(iter(self.measures.values())).earned)
        header = ["measure", "spearman", "kendall", *deviations, "ms a round", "validation set"]
        rows = [
            [
                name,
                _mean_and_spread(result.spearman),
                _mean_and_spread(result.kendall),
                *(f"{result.earned[name]:.2f}" for name in deviations),
                f"{1000 * result.seconds:.1f}",
                "yes" if result.needs_validation else "no",
            ]
            for name, result in self.measures.items()
        ]
        return header, rows


def compare_measures(
    exact: Floats,
    honest: Floats,
    cheated: Mapping[str, Floats],
    seconds: float,
    needs_validation: bool,
) -> MeasureResult:
    """Return how one measure does.

    Parameters
    ----------
    exact : ndarray
        The exact Shapley values, seeds x clients.
    honest : ndarray
        Each client's contributions over all rounds when all are honest, seeds x clients.
    cheated : mapping
        For each deviation each client's own contributions when it alone deviates, likewise.
    seconds, needs_validation
        As in :class:`MeasureResult`.
    """
    from scipy.stats import kendalltau, spearmanr

    def correlations(function: Any) -> tuple[float, ...]:
        return tuple(
            float(function(true, told)[0]) if np.ptp(true) > 0 and np.ptp(told) > 0 else math.nan
            for true, told in zip(exact, honest, strict=True)
        )

    usual = np.array([total(row) / row.size for row in honest])[:, np.newaxis]
    shares = {
        name: np.divide(own, usual, out=np.full(own.shape, np.nan), where=usual > 0)
        for name, own in cheated.items()
    }
    return MeasureResult(
        spearman=correlations(spearmanr),
        kendall=correlations(kendalltau),
        earned={name: total(share) / share.size for name, share in shares.items()},
        most_earned={name: float(np.max(share)) for name, share in shares.items()},
        seconds=seconds,
        needs_validation=needs_validation,
        contributions=honest,
    )


def write_study(study: _MeasureStudy, folder: Path) -> None:
    """Write ``contributions.json`` and ``contributions.csv``."""
    text = json.dumps(study.as_json(), indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "contributions.json", text.encode())
    table = io.StringIO()
    rows = [_csv_row(name, result) for name, result in study.measures.items()]
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "contributions.csv", table.getvalue().encode())


def _csv_row(name: str, result: MeasureResult) -> dict[str, Any]:
    correlations = {"spearman": result.spearman, "kendall": result.kendall}
    return {
        "measure": name,
        "needs_validation": result.needs_validation,
        "seconds_per_round": result.seconds,
        **{f"{k}_mean": _plain(float(np.mean(v))) for k, v in correlations.items()},
        **{f"{k}_std": _plain(float(np.std(v))) for k, v in correlations.items()},
        **{f"earned_{k}": _plain(v) for k, v in result.earned.items()},
        **{f"most_earned_{k}": _plain(v) for k, v in result.most_earned.items()},
    }


def _mean_and_spread(values: tuple[float, ...]) -> str:
    known = np.array([value for value in values if math.isfinite(value)])
    if not known.size:
        return "-"
    spread = f" ± {known.std():.2f}" if known.size > 1 else ""
    return f"{known.mean():.2f}{spread}"


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


# The jobs of the laboratory of contribution measures, in one process or in several.


@dataclass(frozen=True)
class _LaboratoryJob:
    """A coalition to train or, where a deviation is named, a run of all clients to measure."""

    seed: int
    coalition: int = 0
    deviation: str = ""
    client: int = 0

    @property
    def key(self) -> str:
        """What the job is called among the finished ones."""
        what = f"{self.deviation} {self.client}" if self.deviation else f"{self.coalition}"
        return f"seed {self.seed}: {what}"


@dataclass(frozen=True)
class _LaboratoryTask:
    """What a worker process is told once."""

    config: str
    measures: Mapping[str, Choice]
    data_dir: Path | None


class _Worker:
    """Does jobs, with the bench of the last seed at hand."""

    def __init__(self, task: _LaboratoryTask) -> None:
        from flamma.io import parse_toml

        self.task = task
        self.config = make_config(parse_toml(task.config, CONFIG))
        self.bench: CoalitionBench | None = None

    def do(self, job: _LaboratoryJob) -> dict[str, Any]:
        if self.bench is None or self.bench.seed != job.seed:
            seeded = self.config.with_settings({"seed": job.seed})
            self.bench = CoalitionBench.build(seeded, self.task.data_dir)
        if not job.deviation:
            members = [i for i in range(self.config.data.clients) if job.coalition >> i & 1]
            return {"value": self.bench.value(members)._asdict()}
        deviation = UPDATE_DEVIATIONS.get(job.deviation)
        earned, seconds = self.bench.earnings(self.task.measures, deviation, job.client)
        return {
            "earned": {name: values.tolist() for name, values in earned.items()},
            "seconds": seconds,
        }


_worker: _Worker | None = None


def _begin(task: _LaboratoryTask) -> None:
    """Set up a worker process."""
    global _worker
    from flamma.simulation.executor import stay_on_one_thread

    stay_on_one_thread()
    exit_with_parent(os.getppid())
    _worker = _Worker(task)


def _do(job: _LaboratoryJob) -> tuple[_LaboratoryJob, dict[str, Any]]:
    assert _worker is not None
    return job, _worker.do(job)


def results_of(
    task: _LaboratoryTask, jobs: Sequence[_LaboratoryJob], workers: int
) -> Iterator[tuple[_LaboratoryJob, dict[str, Any]]]:
    """Yield the result of every job as it is done."""
    if workers == 1:
        alone = _Worker(task)
        for job in jobs:
            yield job, alone.do(job)
        return
    with _pool(task, workers) as pool, warnings.catch_warnings():
        # The first job forks all workers, beside threads such as those of BLAS, which they
        # never use; Python 3.12 warns of any thread.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        try:
            for future in as_completed([pool.submit(_do, job) for job in jobs]):
                yield future.result()
        except BrokenProcessPool:
            raise RunError(
                "a worker process was killed: the same command goes on where it was."
            ) from None


@contextmanager
def _pool(task: _LaboratoryTask, workers: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(task,))
    try:
        yield pool
    except BaseException:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        raise
    pool.shutdown()


FINISHED_JOBS = "finished.jsonl"
"""What each coalition is worth and what each deviation earned, one line each, as it is done."""

_MOST_LABORATORY_CLIENTS = 14
"""With n clients, 2^n coalitions are trained."""

LABORATORY_DEFAULTS: dict[str, Any] = {
    "rounds": 8,
    "per_round": 1,
    "model": {"name": "mlp", "hidden": [32]},
}
"""What a study has unless its configuration says otherwise: small enough for all coalitions."""

VARIANTS = (
    "cosine-rescaled reference=aggregate",
    "distance-earned reference=aggregate",
    "shapley absent=gone",
    "gradient-shapley only_new=false",
)
"""What is studied besides every measure with its default options."""

_HONEST_RUN = "none"
"""The deviation of a run in which all clients are honest."""

_OnJob = Callable[[int, int], None]
"""Called with how many jobs are done, and of how many."""


def study_contributions(
    config: Config,
    *,
    out: str | Path,
    measures: Sequence[str] = (),
    seeds: int = 3,
    processes: int | None = None,
    utility: str = "accuracy",
    on_job: _OnJob | None = None,
    data_dir: Path | None = None,
) -> _MeasureStudy:
    """Compare contribution measures with exact Shapley values, and tell what cheating earns.

    Started again with the same ``out``, it goes on with what is not done yet. Writes
    ``contributions.json`` and ``contributions.csv`` there.

    Parameters
    ----------
    config : Config
        Data, model, training and rounds. Its strategy is replaced by FedAvg with all clients.
    out : path
        The directory of the study.
    measures : sequence of str
        Names of measures, each with options behind it, such as ``cgsv memory=0.5``; by default
        all of them, and :data:`VARIANTS`.
    seeds : int
        How many seeds, from that of the configuration on.
    processes : int, optional
        How many coalitions are trained at the same time; as many as there are cores if not given.
    utility : {"accuracy", "loss"}
        What a coalition is worth, on the test set.
    on_job : callable, optional
        Called whenever a coalition or a run has been done.
    data_dir : Path, optional
        Where datasets are kept.
    """
    chosen = read_measures(measures or [*CONTRIBUTIONS, *VARIANTS])
    config = _study_config(config)
    if seeds < 1 or (processes is not None and processes < 1):
        raise ConfigError("at least 1 seed and 1 process are needed.")
    if utility not in ("accuracy", "loss"):
        raise ConfigError(f"utility must be accuracy or loss, not {quoted(utility)}.")
    folder = Path(out)
    guard = RunFolder(folder)
    guard.lock()
    try:
        _check_same(folder, config)
        jobs = _jobs(config, seeds)
        done = _finished(folder, chosen)
        todo = [job for job in jobs if job.key not in done]
        left = len(todo)
        task = _LaboratoryTask(config.as_toml(), chosen, data_dir)
        workers = min(processes or os.cpu_count() or 1, max(1, len(todo)))
        with (folder / FINISHED_JOBS).open("a", encoding="utf-8") as file:
            file.write("\n")  # ends a line that was cut off when the last one was killed
            for job, result in results_of(task, todo, workers):
                done[job.key] = result
                file.write(json.dumps({"job": job.key, **result}) + "\n")
                file.flush()
                left -= 1
                if on_job is not None:
                    on_job(len(jobs) - left, len(jobs))
        study = _study(config, chosen, seeds, utility, done)
        write_study(study, folder)
        return study
    finally:
        guard.close()


def read_measures(texts: Sequence[str]) -> dict[str, Choice]:
    """Return measures by what they are called here: a name, then options as KEY=VALUE.

    Examples
    --------
    >>> read_measures(["cgsv memory=0.5"])["cgsv memory=0.5"].options
    {'memory': 0.5}
    """
    chosen = {}
    for text in texts:
        name, *options = text.split() or [""]
        table: dict[str, Any] = {"name": name}
        for option in options:
            key, equals, value = option.partition("=")
            if not equals:
                raise ConfigError(f"a measure's options are KEY=VALUE, not {quoted(option)}.")
            table[key] = parse_value(value)
        chosen[" ".join([name, *options])] = CONTRIBUTIONS.choose(table, "measure")
    return chosen


def _study_config(config: Config) -> Config:
    clients = config.data.clients
    if not 2 <= clients <= _MOST_LABORATORY_CLIENTS:
        raise ConfigError(
            f"exact Shapley values need 2 to {_MOST_LABORATORY_CLIENTS} clients, not {clients}: "
            f"set data.clients."
        )
    if not config.data.validation_samples:
        raise ConfigError(
            "some measures score updates on the server's own data: set data.validation_samples."
        )
    refuse_losses(config.evaluation.metric, "contributions are compared by a score")
    fixed = {
        "strategy": "fedavg",
        "per_round": clients,
        "engine": "local",
        "faults": {},
        "behaviours": {},
        "costs": "constant",
    }
    return make_config(with_settings(config.as_tables(), fixed))


def _check_same(folder: Path, config: Config) -> None:
    text, file = config.as_toml(), folder / CONFIG
    if not file.exists():
        write_atomically(file, text.encode())
    elif read_text(file, regular=True) != text:
        raise RunError(f"{folder} holds a study of another configuration: name another --out.")


def _jobs(config: Config, seeds: int) -> list[_LaboratoryJob]:
    clients, first = config.data.clients, config.seed
    jobs = []
    for seed in range(first, first + seeds):
        own = [
            _LaboratoryJob(seed, deviation=_HONEST_RUN),
            *(
                _LaboratoryJob(seed, 0, name, i)
                for name in UPDATE_DEVIATIONS
                for i in range(clients)
            ),
            *(_LaboratoryJob(seed, coalition) for coalition in range(1 << clients)),
        ]
        # Shuffled, so that the pace so far tells how much time is left.
        jobs += [own[place] for place in stream(seed, "laboratory-jobs").permutation(len(own))]
    return jobs


def _finished(folder: Path, measures: Mapping[str, Choice]) -> dict[str, dict[str, Any]]:
    """Return the results that are there already; runs that lack a measure are done again."""
    file = folder / FINISHED_JOBS
    done: dict[str, dict[str, Any]] = {}
    for line in read_text(file, regular=True).splitlines() if file.exists() else []:
        try:
            result = json.loads(line)
            key = str(result.pop("job"))
        except (ValueError, AttributeError, KeyError, TypeError):
            continue  # cut off when its writer was killed
        if "value" in result or measures.keys() <= result.get("earned", {}).keys():
            done[key] = result
    return done


def _study(
    config: Config,
    measures: Mapping[str, Choice],
    seeds: int,
    utility: str,
    done: Mapping[str, Mapping[str, Any]],
) -> _MeasureStudy:
    clients = config.data.clients
    numbers = range(config.seed, config.seed + seeds)
    exact = []
    for seed in numbers:
        values = [done[_LaboratoryJob(seed, c).key]["value"] for c in range(1 << clients)]
        if utility == "accuracy":
            worth = [value["accuracy"] for value in values]
        else:  # the loss of a model that diverged is not finite
            worth = [-min(MOST_LOSS, np.nan_to_num(v["loss"], nan=MOST_LOSS)) for v in values]
        exact.append(exact_shapley(np.array(worth)))
    honest = [done[_LaboratoryJob(seed, deviation=_HONEST_RUN).key] for seed in numbers]
    cheated = {
        name: [
            [done[_LaboratoryJob(seed, 0, name, client).key]["earned"] for client in range(clients)]
            for seed in numbers
        ]
        for name in UPDATE_DEVIATIONS
    }
    results = {
        label: compare_measures(
            np.array(exact),
            np.array([run["earned"][label] for run in honest]),
            {
                name: np.array([[own[label][i] for i, own in enumerate(row)] for row in rows])
                for name, rows in cheated.items()
            },
            float(np.mean([run["seconds"][label] for run in honest])),
            bool(getattr(CONTRIBUTIONS[choice.name], "needs_validation", False)),
        )
        for label, choice in measures.items()
    }
    return _MeasureStudy(config.as_toml(), tuple(numbers), utility, np.array(exact), results)
