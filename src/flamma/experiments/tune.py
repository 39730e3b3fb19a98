"""Search for options on data that no result uses: a part of the clients' training data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flamma.errors import ConfigError, DivergedError, EmptyRunError, RunError, naming_settings
from flamma.experiments.config import OWN, Config, make_config, with_settings
from flamma.experiments.folder import RunFolder
from flamma.experiments.progress_bar import ProgressBar, wants_bar
from flamma.experiments.result import PresentedResult, ScratchFolder, output_directory
from flamma.experiments.run import Run, run_config
from flamma.experiments.settings import key_of, keyword_of
from flamma.experiments.user_objects import (
    NO_OBJECTS,
    Asked,
    ConfigSource,
    UserObjects,
    plain_value,
    tables_of,
)
from flamma.extras import require
from flamma.io import JsonTable, quoted, write_atomically
from flamma.records import RoundRecord
from flamma.types import ScoreKind

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial


# A search for options, trial by trial, in a directory.

SPACE: Mapping[str, tuple[float, float, bool]] = {
    "training.learning_rate": (0.005, 0.5, True),
    "strategy.decay_start": (0.1, 1.0, False),
    "costs.value": (0.03, 0.3, True),
}
"""What is searched by default, from where to where, and whether on a logarithmic scale."""

_MOST_POINTS_CHECKED = 1000
"""Points of a grid whose configurations are checked before the first trial, 3 ms each."""

_Goal = Literal["fair", "mean", "accuracy"]
"""``accuracy`` is what ``mean`` was called when nothing else was scored."""
_OnTrial = Callable[[int, JsonTable, float | None], None]
"""Called with a finished trial's number, its options and its score; None if it was given up."""


@dataclass(frozen=True, repr=False)
class Tuned(PresentedResult):
    """The best of a search, and all that was tried.

    ``scored_by`` says what the score is; more of it is better. ``path`` is its directory, which
    ``scratch`` keeps if it is to be nowhere else.
    """

    config: Config
    options: JsonTable
    score: float
    trials: list[JsonTable]
    scored_by: str = ""
    path: Path | None = field(default=None, compare=False)
    scratch: ScratchFolder | None = field(default=None, compare=False)

    @property
    def history(self) -> list[JsonTable]:
        """All trials, in order."""
        return self.trials

    def _headline(self) -> str:
        best = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return f"best of {len(self.trials)} trials with score {score_text(self.score)}: {best}"

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        ranked = sorted(self.trials, key=lambda t: -math.inf if t["score"] is None else t["score"])
        lines = [
            [
                *(
                    f"{v:.4g}" if isinstance(v, float) else str(v)
                    for v in trial["options"].values()
                ),
                "given up"
                if trial["given_up"] or trial["score"] is None
                else score_text(trial["score"]),
            ]
            for trial in reversed(ranked)
        ]
        return [("", [*self.options, "score"], lines)]

    def _records(self) -> list[JsonTable]:
        return [
            {"trial": t["number"], **t["options"], "score": t["score"], "given_up": t["given_up"]}
            for t in self.trials
        ]


def tune_config(
    config: Config,
    folder: Path,
    own: UserObjects = NO_OBJECTS,
    trials: int = 30,
    grid: Mapping[str, Sequence[Any]] | None = None,
    objective: _Goal = "fair",
    on_trial: _OnTrial | None = None,
    data_dir: Path | None = None,
) -> Tuned:
    """Search for the options of a configuration in a directory, or go on with that."""
    require("tuning", "optuna")
    optuna: Any = import_module("optuna")
    from flamma.data.federated import without_held_out
    from flamma.experiments.run import build_data, build_measures, check_runnable

    if trials < 1:
        raise ConfigError(f"trials must be at least 1, not {trials}.")
    tables = config.as_tables()
    check_runnable(
        (make_config(with_settings(tables, point)) for point in _points(grid, config)),
        own,
        data_dir,
    )
    guard = RunFolder(folder)
    guard.lock()
    try:
        given = own.federation(config)
        whole = build_data(config, data_dir) if given is None else given
        view = without_held_out(whole, config.data.held_out, config.seed)
        identity = "" if given is None else given.sha256
        kind = build_measures(config, view.task, metric=own.metric).score_kind
        study = _study(optuna, folder, config, grid, objective, identity)
        parts = replace(own, data=view, known={})

        def attempt(trial: Trial) -> float:
            options = _suggested(trial, grid, config)
            chosen = make_config(with_settings(config.as_tables(), options))

            def follow(record: RoundRecord) -> None:
                score = _score([record], objective)
                if score is not None:
                    trial.report(score, record.round)
                    if trial.should_prune():
                        raise optuna.TrialPruned

            path = folder / "trials" / f"{trial.number:04d}"
            held_back = {"data.dataset": OWN, "data.clients": view.clients}
            try:
                done = run_config(chosen.with_settings(held_back), path, parts, on_round=follow)
            except DivergedError:
                return -math.inf
            except EmptyRunError:  # a trial like any other, with the score of an untrained model
                done = Run.load(path)
            return _score(done.history[-10:], objective) or -math.inf

        def told(study: Study, trial: FrozenTrial) -> None:
            if on_trial is not None:
                given_up = trial.state.name == "PRUNED"
                on_trial(trial.number, _options(trial, grid), None if given_up else trial.value)

        finished = [t for t in study.trials if t.state.is_finished()]
        wanted = _points_of(grid, trials)
        if wanted > len(finished):
            study.optimize(attempt, n_trials=wanted - len(finished), callbacks=[told])
        return replace(_tuned(study, config, grid, folder), scored_by=_told(objective, kind))
    finally:
        guard.close()


def _tuned(study: Study, config: Config, grid: Any, folder: Path) -> Tuned:
    trials: list[JsonTable] = [
        {
            "number": trial.number,
            "options": _options(trial, grid),
            "score": trial.value if trial.value != -math.inf else None,
            "given_up": trial.state.name == "PRUNED",
        }
        for trial in study.trials
        if trial.state.is_finished()
    ]
    scored = [t for t in trials if t["score"] is not None and not t["given_up"]]
    if not scored:
        raise RunError(f"no trial in {folder} came to an end: try a smaller step size.")
    best = max(scored, key=lambda t: float(t["score"]))
    found = make_config(with_settings(config.as_tables(), best["options"]))
    write_atomically(folder / "best.toml", found.as_toml().encode())
    write_atomically(folder / "trials.json", (json.dumps(trials, indent=1) + "\n").encode())
    return Tuned(found, best["options"], float(best["score"]), trials, path=folder)


def score_text(score: float) -> str:
    """Return a score as people read it: percentages to two digits, small losses to four.

    Examples
    --------
    >>> score_text(85.917), score_text(-0.03427)
    ('85.92', '-0.0343')
    """
    return f"{score:.2f}" if abs(score) >= 1 else f"{score:.4f}"


def _told(objective: _Goal, kind: ScoreKind) -> str:
    """Return what a score of a search is."""
    unit = f", {kind.unit}" if kind.unit else ""
    if objective != "fair":
        return f"{'negative ' * kind.lower_is_better}mean {kind.name}{unit}"
    if kind.lower_is_better:
        return f"negative sum of mean {kind.name} and its standard deviation over clients"
    return f"mean {kind.name} less its standard deviation over clients{unit}"


def _points_of(grid: Mapping[str, Sequence[Any]] | None, trials: int) -> int:
    """Return how many trials there are: all points of a grid, or as many as asked for."""
    return math.prod(len(v) for v in grid.values()) if grid else trials


def _study(
    optuna: Any, folder: Path, config: Config, grid: Any, objective: _Goal, data_sha256: str
) -> Study:
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "study.jsonl")))
    if grid:
        choices = {name: list(range(len(values))) for name, values in grid.items()}
        sampler: Any = optuna.samplers.GridSampler(choices, seed=config.seed)
        pruner: Any = optuna.pruners.NopPruner()  # all points are wanted
    else:
        sampler = optuna.samplers.TPESampler(seed=config.seed)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=config.rounds // 3)
    study: Study = optuna.create_study(
        storage=storage,
        sampler=sampler,
        pruner=pruner,
        study_name="flamma",
        direction="maximize",
        load_if_exists=True,
    )
    data = [data_sha256] if data_sha256 else []
    known_as = "accuracy" if objective == "mean" else objective  # so that older searches go on
    asked = json.dumps([config.as_toml(), known_as, dict(grid or {}), *data])
    before = study.user_attrs.get("asked")
    if before is None:
        study.set_user_attr("asked", asked)
    elif before != asked:
        raise RunError(
            f"{folder} holds another search, or one of other data: choose another directory."
        )
    for trial in study.trials:
        if not trial.state.is_finished():  # a search that was killed left it behind
            with suppress(Exception):
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def _suggested(trial: Trial, grid: Any, config: Config) -> JsonTable:
    if grid:
        places = {name: range(len(values)) for name, values in grid.items()}
        return {
            name: grid[name][trial.suggest_categorical(name, list(places[name]))] for name in grid
        }
    return {
        name: trial.suggest_float(name, SPACE[name][0], SPACE[name][1], log=SPACE[name][2])
        for name in _names(grid, config)
    }


def _options(trial: FrozenTrial, grid: Any) -> JsonTable:
    if grid:
        return {name: grid[name][place] for name, place in trial.params.items()}
    return dict(trial.params)


def _names(grid: Any, config: Config) -> list[str]:
    """Return the settings to search: those of the default space that the strategy uses."""
    if grid:
        return list(grid)
    tables = config.as_tables()
    if "decay_start" not in tables["strategy"]:
        return ["training.learning_rate"]
    return list(SPACE)


def _points(grid: Mapping[str, Sequence[Any]] | None, config: Config) -> Iterator[JsonTable]:
    """Yield options that are tried: all points of a grid, up to the most that are checked."""
    if not grid:
        yield {name: SPACE[name][0] for name in _names(grid, config)}
        return
    for name, values in grid.items():
        if not values:
            raise ConfigError(f"the grid has no values for {name}.")
    for point in islice(product(*grid.values()), _MOST_POINTS_CHECKED):
        yield dict(zip(grid, point, strict=True))


def _score(records: Sequence[RoundRecord], objective: _Goal) -> float | None:
    """Return the mean score of the evaluated rounds; None if none was, or if it diverged.

    More is better: of a metric of which less is, it is the negative.
    """
    scores = []
    for record in records:
        level = record.metric("accuracy")
        if record.evaluation is not None and level is not None:
            spread = math.sqrt(record.metric("accuracy_variance") or 0)
            sign = -1 if record.evaluation.score_kind.lower_is_better else 1
            scores.append(sign * level - (spread if objective == "fair" else 0))
    return sum(scores) / len(scores) if scores else None


_TUNING_SEED = 1000
"""The seed of a search, so that results on seeds 0, 1, 2, ... are not those that it saw."""


def tune(
    config: ConfigSource = None,
    *,
    trials: int = 30,
    grid: Mapping[str, Sequence[Any]] | None = None,
    objective: _Goal = "fair",
    data: Any = None,
    model: Any = None,
    strategy: str | Mapping[str, Any] | None = None,
    dataset: str | None = None,
    rounds: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Tuned:
    """Search for the options of a run that do best on held-back training data.

    Every client's training data are cut once more; what is cut off takes the place of its held-out
    data, which are not looked at. Trials that fall behind the median of the others are given up
    early. Started again with the same ``out``, the search goes on.

    Parameters
    ----------
    config : Config, mapping, or path of a TOML file
        The run to find options for. Its seed is 1000 if nothing else is asked for, so that no
        result is reported of it.
    trials : int
        How many; of a grid, all its points.
    grid : mapping of name to values, optional
        Options and the values each may have, instead of the default search of step size, decay
        start and cost scale: ``{"learning_rate": [0.01, 0.1]}``.
    objective : {"fair", "mean"}
        What is made large, over the last ten rounds: the clients' mean accuracy less their
        standard deviation, or the mean alone. Another ``evaluation.metric`` stands in the place of
        accuracy; one of which less is better counts negatively.
    data, model : any, optional
        Your own data and model, as of :func:`flamma.run`.
    strategy, dataset, rounds : optional
        Settings of all trials, as of :func:`flamma.run`.
    out : path, optional
        Where trials are kept and ``best.toml`` is written; a temporary directory if not given, as
        of :func:`flamma.run`.
    progress : bool, optional
        Whether a progress bar is shown; by default in terminals and notebooks.
    **settings
        Any other setting of all trials, as of :func:`flamma.run`. ``on_trial`` is called after
        every trial, with its number, its options and its score, and ``data_dir`` is where datasets
        are kept.

    Raises
    ------
    MissingExtraError
        If optuna is not installed.
    """
    given = dict(locals())
    with naming_settings(keyword_of):
        asked = Asked.of(given, "on_trial", "data_dir")
        chosen, objects = asked.configured(
            config if isinstance(config, Config) else {"seed": _TUNING_SEED, **tables_of(config)}
        )
        points = None if grid is None else _percentage_points(grid)
        on_trial, data_dir = asked.further.values()
        path, scratch = output_directory(out, "search")
        with ProgressBar(wants_bar(progress), _points_of(points, trials), "trials") as bar:

            def told(number: int, options: JsonTable, score: float | None) -> None:
                bar.update(number + 1, "" if score is None else f"score {score_text(score)}")
                if on_trial is not None:
                    on_trial(number, options, score)

            found = tune_config(chosen, path, objects, trials, points, objective, told, data_dir)
    return replace(found, scratch=scratch)


def _percentage_points(grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return a grid by dotted settings.

    Raises
    ------
    ConfigError
        If an option has no list of values.
    """
    points = {}
    for name, values in grid.items():
        if not isinstance(name, str) or not hasattr(values, "__len__") or isinstance(values, str):
            raise ConfigError(
                f"grid= must have a list of values for each option, not {quoted(values)} for "
                f"{quoted(name)}."
            )
        points[key_of(name)] = [plain_value(value) for value in values]
    return points
