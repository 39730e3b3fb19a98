"""Search for options on data that no result uses: a part of the clients' training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import ConfigError
from flamma.experiments.asked import (
    asked_settings,
    check_arguments,
    in_python_terms,
    plain_value,
    setting_of,
)
from flamma.experiments.config import Config
from flamma.experiments.own import ConfigSource, configured, tables_of
from flamma.experiments.progress_bar import ProgressBar, wants_bar
from flamma.experiments.run import own_parts
from flamma.experiments.scratch import place_for
from flamma.experiments.search import Objective, OnTrial, Tuned, points_of, score_text, tune_config
from flamma.names import quoted

if TYPE_CHECKING:
    from flamma.tasks.own import OwnLoss, OwnMetric
    from flamma.training.augmentations import Augment

TUNING_SEED = 1000
"""The seed of a search, so that results on seeds 0, 1, 2, ... are not those that it saw."""


def tune(
    config: ConfigSource = None,
    *,
    trials: int = 30,
    grid: Mapping[str, Sequence[Any]] | None = None,
    objective: Objective = "fair",
    data: Any = None,
    target: str | None = None,
    group: Any = None,
    task: str | None = None,
    model: Any = None,
    start: Any = None,
    freeze: str | Sequence[str] | None = None,
    loss: OwnLoss | None = None,
    metric: OwnMetric | str | None = None,
    augment: Augment | str | Mapping[str, Any] | Sequence[Any] | None = None,
    strategy: str | Mapping[str, Any] | None = None,
    dataset: str | None = None,
    split: str | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    per_round: int | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    device: str | None = None,
    processes: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    on_trial: OnTrial | None = None,
    data_dir: Path | None = None,
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
    data, target, group, task, model, start, freeze, loss, metric, augment
        Your own data and model, as of :func:`flamma.run`.
    strategy, dataset, split, clients, rounds, per_round, seed
        Settings of all trials, as of :func:`flamma.run`.
    epochs, batch_size, learning_rate, momentum, device, processes
        Further ones.
    out : path, optional
        Where trials are kept and ``best.toml`` is written; a temporary directory if not given, as
        of :func:`flamma.run`.
    progress : bool, optional
        Whether a progress bar is shown; by default in terminals and notebooks.
    on_trial : callable, optional
        Called after every trial.
    data_dir : Path, optional
        Where datasets are kept.
    **settings
        Any other option of a configuration, with two underscores for the dot.

    Raises
    ------
    MissingExtraError
        If optuna is not installed.
    """
    asked = dict(locals())
    with in_python_terms():
        check_arguments(asked)
        own, named = own_parts(model, start, freeze, loss, metric, augment)
        tables = (
            config if isinstance(config, Config) else {"seed": TUNING_SEED, **tables_of(config)}
        )
        chosen, own = configured(tables, named | asked_settings(asked), data, group, own)
        points = None if grid is None else _points(grid)
        path, scratch = place_for(out, "search")
        with ProgressBar(wants_bar(progress), points_of(points, trials), "trials") as bar:

            def told(number: int, options: dict[str, Any], score: float | None) -> None:
                bar.update(number + 1, "" if score is None else f"score {score_text(score)}")
                if on_trial is not None:
                    on_trial(number, options, score)

            found = tune_config(chosen, path, own, trials, points, objective, told, data_dir)
    return replace(found, scratch=scratch)


def _points(grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
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
        points[setting_of(name)] = [plain_value(value) for value in values]
    return points
