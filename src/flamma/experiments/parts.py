"""What a run can be made of: every registry, what its entries are, and their options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flamma.aggregators import AGGREGATORS
from flamma.clients.behaviours import BEHAVIOURS
from flamma.clients.costs import COSTS, SPEEDS
from flamma.contributions import CONTRIBUTIONS
from flamma.data.datasets import DATASETS
from flamma.data.splits import SPLITS
from flamma.errors import FlammaError
from flamma.experiments.callbacks import CALLBACKS
from flamma.experiments.engine import ENGINES
from flamma.experiments.trackers import TRACKERS
from flamma.extras import extra_of, install_command, is_installed
from flamma.metrics import METRICS
from flamma.models import MODELS
from flamma.registry import Choice, Option, Registry, describe_type, options_of, toml_value
from flamma.strategies import FAMILIES, STRATEGIES, in_family
from flamma.tasks import TASKS
from flamma.training.augmentations import AUGMENTATIONS
from flamma.training.config import TRAINERS
from flamma.training.optimisers import OPTIMISERS, SCHEDULES


@dataclass(frozen=True)
class Part:
    """One kind of thing that a run is made of.

    Attributes
    ----------
    name : str
        What several of them are called, such as ``"strategies"``.
    registry : Registry
        All of them by name.
    chosen_by : str
        The key of the configuration that names one, empty if none does.
    """

    name: str
    registry: Registry[Any]
    chosen_by: str = ""

    def groups(self) -> dict[str, list[str]]:
        """Return the names by what they are listed under: strategies by family, others by nothing.

        A family that has no members is left out.
        """
        if self.registry is not STRATEGIES:
            return {"": list(self.registry)}
        families = {family: in_family(family) for family in FAMILIES}
        return {family: names for family, names in families.items() if names}

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Yield every entry that can be loaded, with its name."""
        for name in self.registry:
            try:
                yield name, self.registry[name]
            except FlammaError:
                continue

    def lines(self) -> dict[str, str]:
        """Return one line on every entry; one that cannot be used here says why."""
        found = {}
        for name in self.registry:
            try:
                entry = self.registry[name]
                found[name] = _describe_entry(entry) + _missing_note(entry)
            except FlammaError as error:
                found[name] = str(error)
        return found


PARTS = (
    Part("strategies", STRATEGIES, "strategy.name"),
    Part("datasets", DATASETS, "data.dataset"),
    Part("splits", SPLITS, "data.split"),
    Part("models", MODELS, "model.name"),
    Part("costs", COSTS, "costs.kind"),
    Part("speeds", SPEEDS, "clock.speeds"),
    Part("engines", ENGINES, "engine.name"),
    Part("contribution measures", CONTRIBUTIONS, "strategy.contribution"),
    Part("aggregators", AGGREGATORS, "strategy.aggregator"),
    Part("trainers", TRAINERS, "training.trainer"),
    Part("optimisers", OPTIMISERS, "training.optimiser"),
    Part("schedules", SCHEDULES, "training.schedule"),
    Part("augmentations", AUGMENTATIONS, "training.augmentation"),
    Part("behaviours", BEHAVIOURS, "behaviours"),
    Part("tasks", TASKS),
    Part("metrics", METRICS),
    Part("callbacks", CALLBACKS),
    Part("trackers", TRACKERS),
)
"""All parts, in the order in which they are listed."""


def _describe_entry(entry: Any) -> str:
    """Return one line on an entry: what it says of itself, or the first line of its docstring."""
    for attribute in ("summary", "about", "label"):
        if told := getattr(entry, attribute, ""):
            return str(told)
    line = (entry.__doc__ or "").strip().partition("\n")[0]
    return str(line.removeprefix("Return ").replace("``", "").rstrip("."))


def _missing_note(entry: Any) -> str:
    """Return what to install before an entry can be used, in parentheses; empty if nothing."""
    wanted = getattr(entry, "needs", ())
    for module in wanted if isinstance(wanted, tuple) else ():  # what a strategy needs is no module
        if not is_installed(module):
            extra = extra_of(module)
            how = f"extra {extra}: {install_command(extra)}" if extra else f"package {module}"
            return f" (needs the {how})"
    return ""


def own_options(entry: Callable[..., Any]) -> Mapping[str, Option]:
    """Return the options of an entry; a dataset and a metric have none."""
    return options_of(entry) if callable(entry) else {}


def option_row(option: Option) -> tuple[str, str, str, str]:
    """Return the key, the type, the default and the help of an option, as text."""
    default = option.default
    if isinstance(default, Choice):
        default = default.as_value()
    shown = "none" if default is None else toml_value(default)
    return option.name, describe_type(option.annotation), shown, option.help
