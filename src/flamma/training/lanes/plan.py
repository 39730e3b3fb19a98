"""Translates a torch model into the list of integers that the kernels read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from torch import nn

from flamma.types import Ints

CONV, MAX_POOL, AVG_POOL, RELU, TANH, LINEAR = range(1, 7)
"""The kinds of operation, as the kernels number them."""

WORDS_PER_OPERATION = 8
"""An operation is its kind and its arguments, padded with zeros."""

Operation = list[int]


class _UnsupportedError(Exception):
    """The kernels do not support a module; the message says which."""


def plan_of(model: nn.Module, shape: Sequence[int]) -> tuple[Ints | None, str]:
    """Return the plan of a model for the kernels, or None and why they do not support it.

    The plan is (channels, height, width, classes, operations) and then eight numbers for every
    operation. Its parameters are in the order of :class:`~flamma.models.flat.FlatModel`.

    Parameters
    ----------
    model : torch.nn.Module
        Only its structure is used.
    shape : sequence of int
        The shape of one sample.

    Examples
    --------
    >>> plan, reason = plan_of(nn.Sequential(nn.Linear(4, 2)), (4,))
    >>> plan.tolist(), reason
    ([4, 1, 1, 2, 1, 6, 2, 0, 0, 0, 0, 0, 0], '')
    >>> plan_of(nn.Sequential(nn.Linear(4, 2), nn.Dropout()), (4,))
    (None, 'Dropout is not supported')
    """
    try:
        return _plan(model, tuple(shape)), ""
    except _UnsupportedError as reason:
        return None, str(reason)


def _plan(model: nn.Module, shape: tuple[int, ...]) -> Ints:
    if type(model) is not nn.Sequential:
        raise _UnsupportedError(f"only Sequential is supported, not {type(model).__name__}")
    operations: list[Operation] = []
    # Images keep their shape until they are flattened; anything else is a list of features.
    now = first = shape
    for module in _modules(model):
        _check_module(module)
        if isinstance(module, nn.Flatten):
            if (module.start_dim, module.end_dim) != (1, -1):
                raise _UnsupportedError("Flatten of some dimensions only is not supported")
            now = (math.prod(now),)
            first = first if operations else now
            continue
        operation, now = _operation(module, now)
        operations.append(operation)
    if LINEAR not in (kinds := [operation[0] for operation in operations]) and CONV not in kinds:
        raise _UnsupportedError("there is nothing to train")
    _check_sharing(model)
    operations = _fused(operations)
    if len(now) != 1:
        raise _UnsupportedError(f"the output must be one number per class, not {now}")
    if len(first) not in (1, 3):
        raise _UnsupportedError(f"samples of shape {shape} must be flattened first")
    header = [*first, 1, 1][:3]
    words = np.zeros((len(operations), WORDS_PER_OPERATION), dtype=np.int64)
    for row, operation in zip(words, operations, strict=True):
        row[: len(operation)] = operation
    return np.concatenate(([*header, now[0], len(operations)], words.ravel())).astype(np.int64)


def _modules(model: nn.Sequential) -> Iterator[nn.Module]:
    for module in model:
        if type(module) is nn.Sequential:
            _check_module(module)
            yield from _modules(module)
        elif type(module) is not nn.Identity:
            yield module


def _check_module(module: nn.Module) -> None:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    if any(hooks) or module._backward_pre_hooks:
        raise _UnsupportedError("hooks are not supported")
    if not all(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        raise _UnsupportedError("frozen parameters are not supported")


def _check_sharing(model: nn.Module) -> None:
    every = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(every) != len(list(model.parameters())):
        raise _UnsupportedError("shared parameters are not supported")


def _operation(module: nn.Module, shape: tuple[int, ...]) -> tuple[Operation, tuple[int, ...]]:
    """Return an operation and the shape of its output."""
    if type(module) is nn.Conv2d:
        return _convolution(module, shape)
    if type(module) in (nn.MaxPool2d, nn.AvgPool2d):
        assert isinstance(module, nn.MaxPool2d | nn.AvgPool2d)
        return _pooling(module, shape)
    if type(module) is nn.Linear:
        if module.bias is None:
            raise _UnsupportedError("Linear without bias is not supported")
        if shape != (module.in_features,):
            raise _UnsupportedError(f"Linear needs {module.in_features} features, not {shape}")
        return [LINEAR, module.out_features], (module.out_features,)
    if type(module) is nn.ReLU:
        return [RELU], shape
    if type(module) is nn.Tanh:
        return [TANH], shape
    raise _UnsupportedError(f"{type(module).__name__} is not supported")


def _convolution(module: nn.Conv2d, shape: tuple[int, ...]) -> tuple[Operation, tuple[int, ...]]:
    if len(shape) != 3 or shape[0] != module.in_channels:
        raise _UnsupportedError(f"Conv2d needs {module.in_channels} channels, not {shape}")
    plain = {"stride": (1, 1), "dilation": (1, 1), "groups": 1, "padding_mode": "zeros"}
    for name, only in plain.items():
        if getattr(module, name) != only:
            raise _UnsupportedError(f"Conv2d with {name}={getattr(module, name)} is not supported")
    if module.bias is None:
        raise _UnsupportedError("Conv2d without bias is not supported")
    if isinstance(module.padding, str):
        raise _UnsupportedError(f"Conv2d with padding={module.padding!r} is not supported")
    kernel, padding = _pair(module.kernel_size), _pair(module.padding)
    height, width = (
        size + 2 * pad - taps + 1
        for size, pad, taps in zip(shape[1:], padding, kernel, strict=True)
    )
    if min(height, width) < 1:
        raise _UnsupportedError(f"images of {shape} are smaller than the kernel")
    # Wider padding would put rows of the output where no tap reaches the image.
    if padding[0] >= kernel[0] or padding[1] >= kernel[1]:
        raise _UnsupportedError("Conv2d with padding as wide as its kernel is not supported")
    return [CONV, module.out_channels, *kernel, *padding], (module.out_channels, height, width)


def _pooling(
    module: nn.MaxPool2d | nn.AvgPool2d, shape: tuple[int, ...]
) -> tuple[Operation, tuple[int, ...]]:
    name = type(module).__name__
    if len(shape) != 3:
        raise _UnsupportedError(f"{name} needs images, not {shape}")
    plain: dict[str, int | None]
    if isinstance(module, nn.MaxPool2d):
        plain = {"padding": 0, "dilation": 1, "return_indices": False, "ceil_mode": False}
    else:
        plain = {"padding": 0, "ceil_mode": False, "divisor_override": None}
    for key, only in plain.items():
        value = getattr(module, key)
        if value not in (only, (only, only)):
            raise _UnsupportedError(f"{name} with {key}={value} is not supported")
    kernel, stride = _pair(module.kernel_size), _pair(module.stride)
    if shape[1] < kernel[0] or shape[2] < kernel[1]:
        raise _UnsupportedError(f"images of {shape} are smaller than the window")
    height, width = (
        (size - taps) // step + 1
        for size, taps, step in zip(shape[1:], kernel, stride, strict=True)
    )
    kind = MAX_POOL if isinstance(module, nn.MaxPool2d) else AVG_POOL
    return [kind, *kernel, *stride, 0], (shape[0], height, width)


def _fused(operations: list[Operation]) -> list[Operation]:
    """Merge a ReLU into the max pooling after it: they commute, and the pooled image is smaller."""
    fused: list[Operation] = []
    for operation in operations:
        if operation[0] == MAX_POOL and fused and fused[-1] == [RELU]:
            fused.pop()
            operation = [*operation[:5], 1]
        elif operation[0] in (RELU, TANH) and fused and fused[-1][0] in (RELU, TANH):
            # Activations work in place, so the first one's values would be lost.
            raise _UnsupportedError("two activations in a row are not supported")
        fused.append(operation)
    return fused


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
