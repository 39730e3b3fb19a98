"""What a user gives from Python as a model: as settings of a configuration, and what they omit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import ConfigError
from flamma.experiments.config import OWN

if TYPE_CHECKING:
    from flamma.models.weights import StartWeights


@dataclass(frozen=True, eq=False)
class GivenModel:
    """A model and weights to begin with, as far as a configuration cannot hold them.

    Attributes
    ----------
    settings : mapping
        What the configuration says of them.
    make : callable, optional
        The user's own ``(shape, classes) -> torch.nn.Module``.
    start : StartWeights, optional
        Weights that are in no file.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[..., Any] | None = None
    start: StartWeights | None = None


def given_model(model: Any = None, start: Any = None, freeze: Any = None) -> GivenModel:
    """Return what a user's model, weights to begin with and frozen parts come to.

    Parameters
    ----------
    model : torch.nn.Module, class, callable or str, optional
        See :func:`~flamma.models.own.model_factory`.
    start : path, mapping or Run, optional
        A file of weights, a state dict, or a run whose result is the start.
    freeze : str or sequence of str, optional
        Names of parameters, or patterns.

    Raises
    ------
    FlammaError
        If one of them cannot be used.
    """
    settings: dict[str, Any] = {}
    make, weights = None, None
    if isinstance(model, str):
        settings["model.name"] = model
    elif model is not None:
        from flamma.models.own import model_factory

        settings["model.name"], make = OWN, model_factory(model)
    if isinstance(start, str | PathLike):
        settings["model.start"] = str(Path(start).absolute())
    elif start is not None:
        settings["model.start"], weights = OWN, _weights(start)
    if freeze is not None:
        settings["model.freeze"] = _patterns(freeze)
    return GivenModel(settings, make, weights)


def _weights(start: Any) -> StartWeights:
    from flamma.experiments.run import Run
    from flamma.experiments.trained import trained_weights
    from flamma.models.weights import StartWeights

    if isinstance(start, Run):
        return StartWeights.of_state_dict(trained_weights(start), f"the model of {start.path}")
    if isinstance(start, Mapping):
        return StartWeights.of_state_dict(start, "the state dict")
    raise ConfigError(
        f"start must be a file, a state dict or a run, not a {type(start).__name__}: of a module "
        f"give its state_dict(), or the module itself as model."
    )


def _patterns(freeze: Any) -> list[str]:
    if isinstance(freeze, str):
        return [freeze]
    if isinstance(freeze, Sequence) and all(isinstance(name, str) for name in freeze):
        return list(freeze)
    raise ConfigError('freeze must be names of parameters, such as ["features.*"].')
