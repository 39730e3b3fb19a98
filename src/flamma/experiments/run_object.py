"""A run directory as an object: what it holds, what it came to, and its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import RunError
from flamma.experiments.config import Config, make_config, read_config, with_settings
from flamma.experiments.folder import ABOUT, CLIENTS, CONFIG, FINITE, RunFolder
from flamma.experiments.manifest import Manifest
from flamma.experiments.presented import PresentedResult, sparkline
from flamma.experiments.scores import ScoreTable, read_score_table
from flamma.experiments.scratch import ScratchFolder
from flamma.experiments.standstill import why_diverged
from flamma.experiments.stopped import StoppedEarly, read_stopped
from flamma.experiments.summary import Summary, summarise_run
from flamma.metrics import METRICS, ComparedMetric, shown_in, usable
from flamma.names import quoted
from flamma.records import RoundRecord
from flamma.strategies import label_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

DEPLOYMENT = "deployment.json"
"""The server of a deployed run and Flower's id of it; version 0.1 names the server only there."""


@dataclass(frozen=True, eq=False, repr=False)
class Run(PresentedResult):
    """A run directory, finished or not.

    ``known_scores`` are the clients' scores, where they have been read already, and
    ``known_model`` makes the user's own model, where it was given. A run that was given no
    directory is in ``scratch``, which is removed with the last that refers to it.
    """

    path: Path
    config: Config
    history: list[RoundRecord]
    about: dict[str, Any]
    problems: tuple[str, ...] = ()
    known_scores: ScoreTable | None = None
    known_model: Callable[..., Any] | None = None
    scratch: ScratchFolder | None = None

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run directory; damaged records are left out and named in ``problems``.

        Its strategy need not be registered; resuming it, or a client's own model, needs that.

        Raises
        ------
        RunError
            If there is no run, or its configuration is not the one it was begun with.
        """
        if not isinstance(path, str | PathLike):
            raise RunError(f"a run is loaded by the path of its directory, not {quoted(path)}.")
        folder = RunFolder(Path(path))
        if not folder.exists:
            raise RunError(f"{path} holds no run: there is no {CONFIG} in it.")
        config = make_config(_tables(folder), needs_strategy=False)
        manifest = Manifest.read(folder.path)
        if manifest is not None:
            manifest.check(folder.path)
        history, problems = folder.rounds(), folder.read_rounds()[1]
        about = folder.read_json(ABOUT)
        if not about and history:
            problems.append(f"{ABOUT} is missing or damaged")
        run = cls(folder.path, config, history, about, tuple(problems))
        if run.finished and not run.has_last_round:
            lost = "rounds.jsonl ends before the last round"
            return replace(run, problems=(*run.problems, lost))
        return run

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, even if the record of one is damaged, or it was stopped."""
        return self.has_last_round or "params_sha256" in self.about

    @property
    def has_last_round(self) -> bool:
        """Whether the last round is recorded: that after which it was stopped, if it was."""
        last = self.config.rounds if self.stopped is None else self.stopped.round
        return bool(self.history) and self.history[-1].round >= last

    @property
    def stopped(self) -> StoppedEarly | None:
        """After which round a callback ended the run, and why; None if none did."""
        return read_stopped(self.about)

    @property
    def params_sha256(self) -> str | None:
        """The SHA-256 of the final weights; None before the end."""
        return self.about.get("params_sha256") if self.finished else None

    @property
    def diverged(self) -> str:
        """In what the run has diverged, and the likely cause; empty if it has not."""
        finite = self.about.get(FINITE) is not False
        return why_diverged(self.history, self.config.training.learning_rate, finite)

    @cached_property
    def scores(self) -> ScoreTable:
        """The accuracies of single clients; those that cannot be read are left out."""
        if self.known_scores is not None:
            return self.known_scores
        text = RunFolder(self.path).text(CLIENTS)
        return read_score_table(text, self.history, [], self.config.data.clients)

    def summary(self) -> Summary:
        """Return every metric of the run, those of its last round, and its totals."""
        found = summarise_run(self.history, self.config.data.clients, self.config.clock.targets)
        return replace(found, diverged=self.diverged)

    def model(
        self,
        *,
        model: Any = None,
        client: int | None = None,
        round: int | None = None,  # noqa: A002
    ) -> nn.Module:
        """Return the trained module, in evaluation mode.

        Parameters
        ----------
        model : torch.nn.Module, class, callable or str, optional
            The model of the run, where it is your own and this object is not what
            :func:`flamma.run` returned.
        client : int, optional
            Whose own model it is, of strategies that give clients their own.
        round : int, optional
            After which round, if its checkpoint is kept; the last one by default.

        Raises
        ------
        FlammaError
            If there is no such model.
        """
        from flamma.experiments.trained import trained_module

        return trained_module(self, model, client, round)

    def save(
        self,
        path: str | Path,
        *,
        model: Any = None,
        client: int | None = None,
        round: int | None = None,  # noqa: A002
    ) -> Path:
        """Write the trained weights by name (.safetensors, .npz), or the model (.onnx).

        The parameters are those of :meth:`model`; weights need no ``model``.
        """
        from flamma.experiments.trained import save_trained

        return save_trained(self, path, model, client, round)

    def predict(self, x: Any, *, model: Any = None, client: int | None = None) -> NDArray[Any]:
        """Return what the trained model says of each sample.

        These are the labels as they were given with the data, or numbers for a regression. The
        parameters are those of :meth:`model`.
        """
        from flamma.experiments.trained import predictions

        return predictions(self, x, model, client)

    def predict_proba(
        self, x: Any, *, model: Any = None, client: int | None = None
    ) -> NDArray[Any]:
        """Return the probability of each class for each sample."""
        from flamma.experiments.trained import predictions

        return predictions(self, x, model, client, shares=True)

    def _headline(self) -> str:
        data, rounds = self.config.data, len(self.history)
        where = "not kept" if self.scratch is not None else str(self.path)
        return (
            f"{label_of(self.config.strategy.name)} on {data.dataset} ({data.split.name}), "
            f"{data.clients} clients, {rounds} of {self.config.rounds} rounds, "
            f"{'DIVERGED, ' * bool(self.diverged)}{where}"
        )

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        summary = self.summary()
        digits = 4 if summary.less_is_better else 2
        header = ["metric", "last round", summary.averaged_title, "over the rounds"]
        lines = []
        for name, metric in shown_in("table", summary.score_kind).items():
            values = [] if isinstance(metric, ComparedMetric) else self.of_rounds(name)
            known = [value for value in values if value is not None]
            if known:
                mean = summary[name]
                unit = f" ({metric.unit})" if metric.unit else ""
                told = "" if mean is None else f"{mean:.{digits}f}"
                last = f"{known[-1]:.{digits}f}"
                lines.append([f"{metric.label}{unit}", last, told, sparkline(values)])
        return [("", header, lines)]

    def of_rounds(self, name: str) -> list[float | None]:
        """Return a metric of every finished round, None where it has none."""
        return [METRICS[name].of_round(name, record) for record in self.history]

    def _records(self) -> list[dict[str, Any]]:
        return self.rows()

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per round: what was done in it, and every metric that it has."""
        columns = {
            name: self.of_rounds(name)
            for name, metric in usable().items()
            if not isinstance(metric, ComparedMetric)
        }
        told = {n: values for n, values in columns.items() if any(v is not None for v in values)}
        return [
            {
                "round": record.round,
                "decay_factor": record.decay_factor,
                "selected": len(record.selected),
                "epochs": sum(record.local_epochs),
                **{name: values[place] for name, values in told.items()},
            }
            for place, record in enumerate(self.history)
        ]


def _tables(folder: RunFolder) -> dict[str, Any]:
    """Return the configuration of a run; one that version 0.1 deployed names no such engine."""
    tables = read_config(folder.path / CONFIG, regular=True)
    if server := folder.read_json(DEPLOYMENT).get("server"):
        return with_settings(tables, {"engine.name": "deployment", "engine.server": server})
    return tables
