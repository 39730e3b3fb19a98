"""The laboratory of contribution measures: how they compare with exact Shapley values.

The exact values are those of the game in which a coalition of clients is worth the accuracy (or the
loss) of the model that it trains among itself by FedAvg. All coalitions are trained. Then every
client in turn deviates, and it is measured what that earns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flamma.contributions import CONTRIBUTIONS
from flamma.contributions.coalitions import MOST_LOSS, exact_shapley
from flamma.errors import ConfigError, RunError
from flamma.experiments.config import Config, make_config, with_settings
from flamma.experiments.folder import CONFIG, RunFolder
from flamma.experiments.laboratory_jobs import LaboratoryJob, LaboratoryTask, results_of
from flamma.experiments.laboratory_results import MeasureStudy, compare_measures, write_study
from flamma.experiments.update_deviations import UPDATE_DEVIATIONS
from flamma.files import read_text, write_atomically
from flamma.names import quoted
from flamma.options import parse_value
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
        task = LaboratoryTask(config.as_toml(), chosen, data_dir)
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
    elif read_text(file, regular=True) != text:
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
