"""Old names of version 0.2: until 0.4 they work, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

RENAMED = {
    "flamma.data.federated.federated_from_arrays": "flamma.data.from_arrays",
    "flamma.data.own.federated_from": "flamma.data.from_data",
    "flamma.experiments.auditing.audit_files.read_audit": "flamma.experiments.findings.read_audit",
    "flamma.experiments.callbacks.Tracker": "flamma.experiments.trackers.Tracker",
    "flamma.experiments.callbacks.tensorboard_tracker": "flamma.experiments.trackers",
    "flamma.federated_from_arrays": "flamma.data.from_arrays",
    "flamma.game.budget.affordable": "flamma.game.pricing.affordable",
    "flamma.game.contracts": "flamma.game.mechanisms",
    "flamma.game.deterrence.free_riding": "flamma.game.costs.free_riding",
    "flamma.game.deterrence.smallest_inspection_rate": "flamma.game.costs.smallest_inspection_rate",
    "flamma.game.participation": "flamma.game.mechanisms",
    "flamma.strategies.base.Answers": "flamma.strategies.base.Round",
    "flamma.strategies.base.data_shares": "flamma.strategies.base.data_weights",
    "flamma.strategies.flights.Asynchronous": "flamma.strategies.asynchronous.Asynchronous",
    "flamma.strategies.mifa": "flamma.strategies.memory",
    "flamma.testing.contributions.played_round": "flamma.testing.parts.played_round",
    "flamma.training.schedules.CosineSchedule": "flamma.training.optimisers.CosineSchedule",
    "flamma.types.Download": "flamma.types.Broadcast",
    "flamma.types.LocalTask": "flamma.types.LocalWork",
    "flamma.types.Report": "flamma.types.Update",
}
"""Old names that version 0.2 had at its top level or that its guides use, and their new names.

A module stands for all of its names.
"""


def renamed(module: str, stacklevel: int = 2) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module that had some of the old names."""
    return partial(_look_up, module, stacklevel)


def _look_up(module: str, stacklevel: int, name: str) -> Any:
    old = f"{module}.{name}"
    if name == "__path__" and old.removesuffix(name) in _PACKAGES:
        return []  # Python imports a module within another one only if that has a path
    new = RENAMED.get(old) or (f"{RENAMED[module]}.{name}" if module in RENAMED else "")
    if not new or name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home, _, attribute = new.rpartition(".")
    found = getattr(import_module(home), attribute)
    message = f"{old} is now {new}; the old name goes with version 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel)
    return found


def _parents(name: str) -> Iterator[str]:
    while (name := name.rpartition(".")[0]) != "flamma":
        yield f"{name}."


_PACKAGES = {parent for old in RENAMED for parent in _parents(old)}


def _is_module(new: str) -> bool:
    """Whether a new name is that of a module, and not of something in one."""
    try:
        return bool(new) and find_spec(new) is not None
    except ModuleNotFoundError:  # what it is in is no package
        return False


class _OldModules(MetaPathFinder, Loader):
    """Finds modules that are gone and had an old name; Python asks it after all other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        gone = f"{fullname}." in _PACKAGES or _is_module(RENAMED.get(fullname, ""))
        return ModuleSpec(fullname, self) if gone else None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = renamed(module.__name__)  # type: ignore[method-assign]


sys.meta_path.append(_OldModules())
