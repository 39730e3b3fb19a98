"""Which models there are: one line each, and those that other packages bring."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from flamma.errors import ConfigError
from flamma.models.lenet import lenet5
from flamma.models.logistic import logistic
from flamma.models.mlp import mlp
from flamma.models.resnet import resnet18
from flamma.names import unknown
from flamma.registry import Registry
from flamma.seeding import stream

ModelFactory = Callable[..., nn.Module]
"""``(shape, classes, **options) -> module``, with the shape of one sample."""

MODELS: Registry[ModelFactory] = Registry(
    "model",
    "flamma.models",
    {"lenet5": lenet5, "resnet18": resnet18, "mlp": mlp, "logistic": logistic},
)
"""All models by name."""


def build_model(
    model: str | ModelFactory, shape: tuple[int, ...], classes: int, seed: int, **options: Any
) -> nn.Module:
    """Return a new model whose first weights depend on the seed only.

    Parameters
    ----------
    model : str or callable
        A name of :data:`MODELS`, or your own ``(shape, classes, **options) -> module``.
    shape : tuple of int
        The shape of one sample: (channels, height, width) or (features,).
    classes : int
        How many labels there are.
    seed : int
        The seed of the experiment. The same seed gives the same bits.
    **options
        What the model's factory takes besides, such as ``width`` of a ``resnet18``.

    Raises
    ------
    ConfigError
        If there is no such model or option (the nearest match is named), or if the model cannot
        work on such samples.

    Examples
    --------
    >>> build_model("logistic", shape=(4,), classes=3, seed=0)
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=4, out_features=3, bias=True)
    )
    >>> build_model("lenet", shape=(1, 28, 28), classes=10, seed=0)
    Traceback (most recent call last):
    ...
    flamma.errors.ConfigError: unknown model 'lenet': did you mean lenet5?
    (known: lenet5, resnet18, mlp, logistic).
    """
    factory = MODELS[model] if isinstance(model, str) else model
    label = model if isinstance(model, str) else getattr(model, "__name__", "the given one")
    _check_options(label, factory, options)
    if classes < 1 or not shape or min(shape) < 1:
        raise ConfigError(
            f"a model needs samples and at least one class, "
            f"but the shape is {tuple(shape)} and there are {classes} classes."
        )
    # Layers draw their first weights from torch's global generator: lend it our stream, then
    # give it back as it was.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(int(stream(seed, "init").integers(2**63)))
        built = factory(tuple(shape), classes, **options)
    if not isinstance(built, nn.Module):
        raise ConfigError(
            f"the model {label!r} must be made as a torch.nn.Module, not a {type(built).__name__}."
        )
    return built


def _check_options(label: str, factory: ModelFactory, options: dict[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    # The first two are the shape and the classes, which are not options.
    names = [parameter.name for parameter in parameters][2:]
    for option in options:
        if option not in names:
            raise ConfigError(unknown(f"option of the model {label}", option, names))
