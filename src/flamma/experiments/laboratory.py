"""The laboratory of contribution measures: how they compare with exact Shapley values.

The exact values are those of the game in which a coalition of clients is worth the accuracy (or the
loss) of the model that it trains among itself by FedAvg. All coalitions are trained. Then every
client in turn deviates, and it is measured what that earns.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flamma.contributions import CONTRIBUTIONS
from flamma.contributions.coalitions import MOST_LOSS, exact_shapley
from flamma.errors import ConfigError, RunError
from flamma.experiments.coalition_bench import CoalitionBench
from flamma.experiments.config import Config, make_config, with_settings
from flamma.experiments.folder import CONFIG, RunFolder
from flamma.experiments.laboratory_results import MeasureStudy, compare_measures, write_study
from flamma.experiments.update_deviations import UPDATE_DEVIATIONS
from flamma.files import read_text, write_atomically
from flamma.names import quoted
from flamma.options import parse_value
from flamma.processes import exit_with_parent
from flamma.registry import Choice
from flamma.seeding import stream
from flamma.tasks import refuse_losses

FINISHED_JOBS = "finished.jsonl"
"""What each coalition is worth and what each deviation earned, one line each, as it is done."""

MOST_LABORATORY_CLIENTS = 14
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

HONEST_RUN = "none"
"""The deviation of a run in which all clients are honest."""

OnJob = Callable[[int, int], None]
"""Called with how many jobs are done, and of how many."""


@dataclass(frozen=True)
class LaboratoryJob:
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


def study_contributions(
    config: Config,
    *,
    out: str | Path,
    measures: Sequence[str] = (),
    seeds: int = 3,
    processes: int | None = None,
    utility: str = "accuracy",
    on_job: OnJob | None = None,
    data_dir: Path | None = None,
) -> MeasureStudy:
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
        task = _Task(config.as_toml(), chosen, data_dir)
        workers = min(processes or os.cpu_count() or 1, max(1, len(todo)))
        with (folder / FINISHED_JOBS).open("a", encoding="utf-8") as file:
            file.write("\n")  # ends a line that was cut off when the last one was killed
            for job, result in _results(task, todo, workers):
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
    if not 2 <= clients <= MOST_LABORATORY_CLIENTS:
        raise ConfigError(
            f"exact Shapley values need 2 to {MOST_LABORATORY_CLIENTS} clients, not {clients}: "
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
    elif read_text(file) != text:
        raise RunError(f"{folder} holds a study of another configuration: name another --out.")


def _jobs(config: Config, seeds: int) -> list[LaboratoryJob]:
    clients, first = config.data.clients, config.seed
    jobs = []
    for seed in range(first, first + seeds):
        own = [
            LaboratoryJob(seed, deviation=HONEST_RUN),
            *(
                LaboratoryJob(seed, 0, name, i)
                for name in UPDATE_DEVIATIONS
                for i in range(clients)
            ),
            *(LaboratoryJob(seed, coalition) for coalition in range(1 << clients)),
        ]
        # Shuffled, so that the pace so far tells how much time is left.
        jobs += [own[place] for place in stream(seed, "laboratory-jobs").permutation(len(own))]
    return jobs


def _finished(folder: Path, measures: Mapping[str, Choice]) -> dict[str, dict[str, Any]]:
    """Return the results that are there already; runs that lack a measure are done again."""
    file = folder / FINISHED_JOBS
    done: dict[str, dict[str, Any]] = {}
    for line in read_text(file).splitlines() if file.exists() else []:
        try:
            result = json.loads(line)
            key = str(result.pop("job"))
        except (ValueError, AttributeError, KeyError, TypeError):
            continue  # cut off when its writer was killed
        if "value" in result or measures.keys() <= result.get("earned", {}).keys():
            done[key] = result
    return done


@dataclass(frozen=True)
class _Task:
    """What a worker process is told once."""

    config: str
    measures: Mapping[str, Choice]
    data_dir: Path | None


class _Worker:
    """Does jobs, with the bench of the last seed at hand."""

    def __init__(self, task: _Task) -> None:
        from flamma.toml import parse_toml

        self.task = task
        self.config = make_config(parse_toml(task.config, CONFIG))
        self.bench: CoalitionBench | None = None

    def do(self, job: LaboratoryJob) -> dict[str, Any]:
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


def _begin(task: _Task) -> None:
    """Set up a worker process."""
    global _worker
    from flamma.engines.executor import stay_on_one_thread

    stay_on_one_thread()
    exit_with_parent(os.getppid())
    _worker = _Worker(task)


def _do(job: LaboratoryJob) -> tuple[LaboratoryJob, dict[str, Any]]:
    assert _worker is not None
    return job, _worker.do(job)


def _results(
    task: _Task, jobs: Sequence[LaboratoryJob], workers: int
) -> Iterator[tuple[LaboratoryJob, dict[str, Any]]]:
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
def _pool(task: _Task, workers: int) -> Iterator[ProcessPoolExecutor]:
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


def _study(
    config: Config,
    measures: Mapping[str, Choice],
    seeds: int,
    utility: str,
    done: Mapping[str, Mapping[str, Any]],
) -> MeasureStudy:
    clients = config.data.clients
    numbers = range(config.seed, config.seed + seeds)
    exact = []
    for seed in numbers:
        values = [done[LaboratoryJob(seed, c).key]["value"] for c in range(1 << clients)]
        if utility == "accuracy":
            worth = [value["accuracy"] for value in values]
        else:  # the loss of a model that diverged is not finite
            worth = [-min(MOST_LOSS, np.nan_to_num(v["loss"], nan=MOST_LOSS)) for v in values]
        exact.append(exact_shapley(np.array(worth)))
    honest = [done[LaboratoryJob(seed, deviation=HONEST_RUN).key] for seed in numbers]
    cheated = {
        name: [
            [done[LaboratoryJob(seed, 0, name, client).key]["earned"] for client in range(clients)]
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
    return MeasureStudy(config.as_toml(), tuple(numbers), utility, np.array(exact), results)
