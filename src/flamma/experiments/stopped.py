"""A run that a callback ended before its last round, as ``run.json`` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flamma.experiments.folder import STOPPED


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
