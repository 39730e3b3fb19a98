"""A model of the user's own, whatever it was given as: a module, a class, or a function."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from flamma.errors import ConfigError
from flamma.models.registry import MODELS, ModelFactory

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flamma.models.weights import StartWeights

GIVEN_BY_NAME = ("shape", "classes")
"""The parameters of a class or a function that are told by their name."""


def model_factory(model: Any) -> ModelFactory:
    """Return ``(shape, classes) -> torch.nn.Module`` of whatever a user calls a model.

    Parameters
    ----------
    model : torch.nn.Module, class, callable or str
        A module is copied, and its weights are the ones to begin with. A class or a function is
        called with the shape of one sample and the number of classes if it takes two arguments,
        with those of ``shape`` and ``classes`` that it names, or with nothing. A text is the name
        of a registered model.

    Raises
    ------
    ConfigError
        If it is none of these, or takes other arguments.

    Examples
    --------
    >>> from torch import nn
    >>> class Net(nn.Linear):
    ...     def __init__(self, classes):
    ...         super().__init__(4, classes)
    >>> model_factory(Net)((4,), 3)
    Net(in_features=4, out_features=3, bias=True)
    >>> model_factory(nn.Bilinear)
    Traceback (most recent call last):
    ...
    flamma.errors.ConfigError: the model Bilinear cannot be made: it takes in1_features,
    in2_features, out_features; give a function of shape and classes, such as lambda shape,
    classes: Bilinear(...).
    """
    from torch import nn

    if isinstance(model, str):
        return MODELS[model]
    if isinstance(model, nn.Module):
        given: nn.Module = model
        return lambda shape, classes: copy.deepcopy(given)
    if not callable(model) or getattr(model, "__module__", "") == "builtins":
        given_kind = model.__name__ if callable(model) else f"a {type(model).__name__}"
        raise ConfigError(
            f"model must be a torch.nn.Module, a class, a function of shape and classes, or a "
            f"name, not {given_kind}."
        )
    return _called(model)


def given_weights(model: Any) -> StartWeights | None:
    """Return the weights of a module that was given with them, None of what only makes one.

    A module that cannot be trained has none either: it is refused, with the reason, later.
    """
    from torch import nn
    from torch.nn.parameter import is_lazy

    from flamma.models.weights import StartWeights, state_tensors

    if not isinstance(model, nn.Module):
        return None
    if any(is_lazy(part) or not part.is_floating_point() for part in model.parameters()):
        return None
    return StartWeights.of_state_dict(state_tensors(model), "the given module")


def _called(make: Callable[..., Any]) -> ModelFactory:
    """Return what calls a class or a function with as much as it takes."""
    try:
        parameters = list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):  # written in C: its parameters are not known
        return make
    open_ended = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    named = [
        p.name for p in parameters if p.name in GIVEN_BY_NAME and p.kind is not p.POSITIONAL_ONLY
    ]
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if named and set(needed) <= set(named):
        return lambda shape, classes: make(
            **{name: (shape, classes)[GIVEN_BY_NAME.index(name)] for name in named}
        )
    if _takes_both(parameters, needed) or (open_ended and not needed):
        return lambda shape, classes: make(shape, classes)
    if not needed:
        return lambda shape, classes: make()
    name = getattr(make, "__name__", type(make).__name__)
    raise ConfigError(
        f"the model {name} cannot be made: it takes {', '.join(needed)}; give a function of shape "
        f"and classes, such as lambda shape, classes: {name}(...)."
    )


def _takes_both(parameters: list[inspect.Parameter], needed: list[str]) -> bool:
    """Return whether just two arguments are needed that can be the shape and the classes."""
    by_name_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    elsewhere = [
        name
        for name, place in zip(needed, GIVEN_BY_NAME, strict=False)
        if name in by_name_only or (name in GIVEN_BY_NAME and name != place)
    ]
    return len(needed) == 2 and not elsewhere


def takes_whole_numbers(module: nn.Module, sample: Tensor) -> bool:
    """Return whether a module takes whole numbers, as one that begins with an embedding does.

    Most layers refuse them: they multiply by real numbers.
    """
    import torch

    try:
        with torch.inference_mode():
            module(sample)
    except Exception:  # whatever a module may raise
        return False
    return True


def as_taken(module: nn.Module, samples: Tensor) -> Tensor:
    """Return samples as a module takes them: whole numbers as they are if it can, else float32."""
    if samples.is_floating_point() or takes_whole_numbers(module, samples[:1]):
        return samples
    return samples.float()


def check_outputs(
    module: nn.Module, samples: NDArray[Any], classes: int, task: str = "classification"
) -> None:
    """Refuse a model of the user's own that does not return what its task needs.

    A copy of it is tried on a few samples.

    Raises
    ------
    ConfigError
        If it raises, or its output has another shape.
    """
    import torch

    count = len(samples)
    if not count:
        return
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        trial = copy.deepcopy(module).eval()
        try:
            output = trial(as_taken(trial, torch.tensor(samples)))
        except Exception as error:
            reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
            raise ConfigError(
                f"the model cannot take {count} samples of shape {samples.shape[1:]}: {reason}."
            ) from error
    wanted = wanted_outputs(task, samples, classes)
    shape = tuple(getattr(output, "shape", ()))
    if shape not in wanted:
        is_tensor = isinstance(output, torch.Tensor)
        found = f"one of shape {shape}" if is_tensor else f"a {type(output).__name__}"
        raise ConfigError(
            f"for {count} samples the model must return a tensor of shape "
            f"{' or '.join(map(str, wanted))}, but it returns {found}: "
            f"{_ADVICE.get(task, 'look at its last layer')}."
        )


_ADVICE = {
    "classification": "its last layer needs one logit for each class, without a softmax",
    "regression": "its last layer needs one number for each sample",
}


def wanted_outputs(task: str, samples: NDArray[Any], classes: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that a model's output may have for some samples."""
    count = len(samples)
    if task == "regression":
        return (count,), (count, 1)
    if task == "next-token":
        return ((count, *samples.shape[1:], classes),)
    return ((count, classes),)
