"""Keeping the weights of the best round of a run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from flamma.errors import RunError
from flamma.experiments.callbacks.base import Callback, RunStart
from flamma.experiments.callbacks.watched_metric import Mode, WatchedMetric
from flamma.experiments.folder import RunFolder
from flamma.files import DamagedTensorsError, read_tensors, write_atomically
from flamma.records import RoundRecord
from flamma.types import Params

BEST_CHECKPOINT = "best.safetensors"
"""The file of a run directory that has the weights of its best round."""


@dataclass(frozen=True, eq=False)
class BestRound:
    """The best round of a run by a metric, and the weights after it as one flat vector."""

    round: int
    metric: str
    value: float
    params: Params


@dataclass
class BestCheckpoint(Callback):
    """Keep the weights of the best round in the run directory.

    :func:`best_round` reads them. Where clients have models of their own, the metric is of those
    and the weights are the global ones.

    Parameters
    ----------
    metric : str
        A metric of the evaluations, such as ``accuracy`` or ``worst_10``.
    mode : {"auto", "max", "min"}
        Which way is better; by default as the table of metrics says.
    """

    metric: str = "accuracy"
    mode: Mode = "auto"
    _best: float | None = field(default=None, init=False, repr=False)
    _start: RunStart | None = field(default=None, init=False, repr=False)

    name: ClassVar[str] = "best-checkpoint"

    def __post_init__(self) -> None:
        self._watched = WatchedMetric(self.metric, self.mode)

    def on_start(self, start: RunStart) -> None:
        """Go on from the best of the rounds that are done, if its weights were kept."""
        self._start, self._best = start, None
        kept = best_round(start.path, missing_ok=True)
        done = start.history[-1].round if start.history else 0
        # What was kept in a round that is done again is kept again then.
        if kept is not None and kept.metric == self.metric and kept.round <= done:
            self._best = kept.value

    def on_round(self, record: RoundRecord) -> None:
        """Keep the weights if the round is the best so far."""
        if not self._watched.improves(record, self._best):
            return
        assert self._start is not None
        if self._start.weights is None:
            raise RunError("there are no weights to keep where rounds happen in another process.")
        value = record.metric(self.metric)
        assert value is not None
        best = BestRound(record.round, self.metric, value, self._start.weights())
        _write(self._start.path, best)
        self._best = value


def best_round(path: Path, *, missing_ok: bool = False) -> BestRound | None:
    """Return the best round that :class:`BestCheckpoint` kept in a run directory.

    Parameters
    ----------
    path : Path
        The run directory.
    missing_ok : bool
        Whether to return None where there is none.

    Raises
    ------
    RunError
        If there is none, or it is damaged or of another run.
    """
    file = path / BEST_CHECKPOINT
    try:
        content = read_tensors(file)
    except DamagedTensorsError as error:
        if missing_ok:
            return None
        raise RunError(f"{file} is damaged or of another run: remove it.") from error
    except OSError as error:
        if missing_ok:
            return None
        raise RunError(
            f"{path} has no weights of its best round: run it with callbacks=[BestCheckpoint()]."
        ) from error
    try:
        return _parsed(content, RunFolder(path).run_id)
    except (ValueError, KeyError, TypeError) as error:
        if missing_ok:
            return None
        raise RunError(f"{file} is damaged or of another run: remove it.") from error


def _write(path: Path, best: BestRound) -> None:
    from safetensors.numpy import save

    about = {
        "round": best.round,
        "metric": best.metric,
        "value": best.value,
        "run": RunFolder(path).run_id,
        "params_sha256": hashlib.sha256(best.params.tobytes()).hexdigest(),
    }
    arrays = {"params": np.ascontiguousarray(best.params)}
    write_atomically(path / BEST_CHECKPOINT, save(arrays, metadata={"best": json.dumps(about)}))


def _parsed(content: bytes, run_id: str) -> BestRound:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        params: Params = load(content)["params"]
    except SafetensorError as error:
        raise ValueError("not safetensors") from error
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    about = json.loads(header["__metadata__"]["best"])
    digest = hashlib.sha256(params.tobytes()).hexdigest()
    if about["params_sha256"] != digest or about["run"] != run_id:
        raise ValueError("checksum")
    return BestRound(int(about["round"]), str(about["metric"]), float(about["value"]), params)
