"""The tracker for Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from flamma.experiments.callbacks.tracker import Tracker, tracked_id


@dataclass
class WeightsAndBiases(Tracker):
    """Write a run of Weights & Biases, offline unless ``WANDB_MODE`` says otherwise.

    ``wandb sync`` uploads what was written offline.

    Parameters
    ----------
    folder : str
        Where its folder ``wandb`` is; by default in the run directory.
    project : str
        The name of the project.
    """

    folder: str = ""
    project: str = "flamma"
    _run: Any = field(default=None, init=False, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("wandb",)

    def open(self, run: Path, config: Mapping[str, str]) -> int:
        """Begin a run of theirs; one that goes on has the same id, and all its rounds again."""
        import wandb

        place = Path(self.folder or run)
        place.mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=self.project,
            name=run.name,
            id=tracked_id(run),
            dir=str(place),
            mode=mode,
            config=dict(config),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        return 0

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the numbers of a round, with the round as their step."""
        self._run.log(dict(numbers), step=step)

    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Write the numbers of the whole run as its summary, and finish it."""
        if finished:
            self._run.summary.update({f"summary.{name}": x for name, x in summary.items()})
        self._run.finish(exit_code=0 if finished else 1)
