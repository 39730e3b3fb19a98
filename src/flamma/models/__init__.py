"""Models by name, and models as one flat vector.

Examples
--------
>>> from flamma.models import FlatModel, build_model
>>> model = FlatModel(build_model("lenet5", shape=(1, 28, 28), classes=10, seed=0))
>>> model.layout.size
61706
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flamma.errors import ConfigError
from flamma.registry import Choice, Registry, read_options
from flamma.seeding import stream

if TYPE_CHECKING:
    from torch import nn

    from flamma.models.flat import FlatModel as FlatModel

__all__ = ["MODELS", "FlatModel", "ModelFactory", "build_model"]

# The registry of models, and building them by name.
#
# Another package adds a model by an entry point of the group ``flamma.models`` that names a
# function ``(shape, classes, **options) -> torch.nn.Module``; its keyword parameters are its
# options.

ModelFactory = Callable[..., "nn.Module"]
"""``(shape, classes, **options) -> torch.nn.Module``, with the shape of one sample."""

MODELS: Registry[ModelFactory] = Registry(
    "model",
    "flamma.models",
    {
        "lenet5": "flamma.models.zoo:lenet5",
        "resnet18": "flamma.models.zoo:resnet18",
        "mlp": "flamma.models.zoo:mlp",
        "logistic": "flamma.models.zoo:logistic",
        "embedding": "flamma.models.zoo:embedding",
        "gru": "flamma.models.zoo:gru",
        "transformer": "flamma.models.zoo:transformer",
    },
)
"""All models by name."""

_MAX_WEIGHTS = 2**30
"""Upper bound of a model's weights; a copy of that size takes 4 GiB, and a run needs several."""


def build_model(
    model: str | Choice | ModelFactory,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    **options: Any,
) -> nn.Module:
    """Return a new model whose initial weights depend on the seed only.

    Parameters
    ----------
    model : str, Choice or callable
        A name of :data:`MODELS`, one with its options, or your own
        ``(shape, classes, **options) -> module``.
    shape : tuple of int
        The shape of one sample: (channels, height, width) or (features,).
    classes : int
        How many labels there are.
    seed : int
        The seed of the experiment. The same seed gives the same bits.
    **options
        Options of the model, such as ``width`` of ``resnet18``.

    Raises
    ------
    ConfigError
        If there is no such model or option (the nearest match is named), the model does not
        support such samples, or it would have more than 2^30 weights.

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
    (known: lenet5, resnet18, mlp, logistic, embedding, gru, transformer).
    """
    import torch
    from torch import nn

    from flamma.models.initial import same_initial_weights

    if isinstance(model, Choice):
        options = {**model.options, **options}
        model = model.name
    factory = MODELS[model] if isinstance(model, str) else model
    label = model if isinstance(model, str) else getattr(model, "__name__", "the given one")
    options = read_options(factory, options, f"{label}.")
    if classes < 1 or not shape or min(shape) < 1:
        raise ConfigError(
            f"a model needs samples and at least one class, "
            f"but the shape is {tuple(shape)} and there are {classes} classes."
        )
    # Layers draw their initial weights from torch's global generator: seed it from our stream,
    # and restore it afterwards.
    if isinstance(model, str):
        _check_size(label, lambda: factory(tuple(shape), classes, **options))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), same_initial_weights():
        torch.default_generator.manual_seed(int(stream(seed, "init").integers(2**63)))
        built = factory(tuple(shape), classes, **options)
    if not isinstance(built, nn.Module):
        raise ConfigError(
            f"the model {label!r} must be made as a torch.nn.Module, not a {type(built).__name__}."
        )
    return built


def check_model(
    model: Choice, shape: tuple[int, ...], classes: int, frozen: Sequence[str] = ()
) -> None:
    """Refuse a model that does not take such samples or is too large, without making it.

    ``frozen`` are patterns of parameters, each of which must fit one.
    """
    from flamma.models.weights import freeze

    def make() -> nn.Module:
        module = MODELS[model.name](shape, classes, **model.options)
        if hasattr(module, "named_parameters"):  # build_model refuses what is no module
            freeze(module, frozen)
        return module

    _check_size(model.name, make)


def _check_size(label: str, make: Callable[[], nn.Module]) -> None:
    """Refuse a model that is too large, found out on a device that allocates nothing."""
    import torch

    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            weights = sum(weight.numel() for weight in make().parameters())
    except (RuntimeError, TypeError, OverflowError) as error:
        if "overflow" not in str(error).lower():
            return  # a model of another package that cannot be made without memory
        weights = _MAX_WEIGHTS + 1
    if weights > _MAX_WEIGHTS:
        raise ConfigError(
            f"the model {label!r} would have more than {_MAX_WEIGHTS:,} weights: make it smaller "
            f"by its options."
        )


def __getattr__(name: str) -> type[FlatModel]:
    # torch takes seconds to import, and reading a configuration does not need it.
    if name == "FlatModel":
        model: type[FlatModel] = import_module("flamma.models.flat").FlatModel
        return model
    raise AttributeError(f"module 'flamma.models' has no attribute {name!r}")
