"""Translates a torch model into the list of integers that the kernels read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import nn

from flamma.models.modules import Block
from flamma.types import Ints

_CONV, _MAX_POOL, _AVG_POOL, _RELU, _TANH, _LINEAR, _BARE_CONV, _GROUP_NORM, _RECALL = range(1, 10)
"""The kinds of operation, as the kernels number them."""

_TRAINED = {_CONV, _LINEAR, _BARE_CONV, _GROUP_NORM}
"""The kinds that have parameters."""

_WORDS_PER_OPERATION = 8
"""An operation is its kind and its arguments, padded with zeros."""

_Operation = list[int]


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
    walk = _Walk(shape)
    walk.follow(model)
    if _TRAINED.isdisjoint(operation[0] for operation in walk.operations):
        raise _UnsupportedError("there is nothing to train")
    every = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(every) != len(list(model.parameters())):
        raise _UnsupportedError("shared parameters are not supported")
    if len(walk.shape) != 1:
        raise _UnsupportedError(f"the output must be one number per class, not {walk.shape}")
    if len(walk.first) not in (1, 3):
        raise _UnsupportedError(f"samples of shape {shape} must be flattened first")
    header = [*walk.first, 1, 1][:3]
    words = np.zeros((len(walk.operations), _WORDS_PER_OPERATION), dtype=np.int64)
    for row, operation in zip(words, walk.operations, strict=True):
        row[: len(operation)] = operation
    sizes = [*header, walk.shape[0], len(walk.operations)]
    return np.concatenate((sizes, words.ravel())).astype(np.int64)


class _Walk:
    """The operations of the modules so far, and the shape of what they make of a sample."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        # Images keep their shape until they are flattened; anything else is a list of features.
        self.shape = self.first = shape
        self.operations: list[_Operation] = []

    def follow(self, module: nn.Module) -> None:
        """Add the operations of a module."""
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        if any(hooks) or module._backward_pre_hooks:
            raise _UnsupportedError("hooks are not supported")
        if not all(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            raise _UnsupportedError("frozen parameters are not supported")
        if type(module) is nn.Sequential:
            for part in module:
                self.follow(part)
        elif type(module) is Block:
            self._follow_block(module)
        elif type(module) is nn.Flatten:
            if (module.start_dim, module.end_dim) != (1, -1):
                raise _UnsupportedError("Flatten of some dimensions only is not supported")
            self.shape = (math.prod(self.shape),)
            self.first = self.first if self.operations else self.shape
        elif type(module) is not nn.Identity:
            operation, self.shape = _operation(module, self.shape)
            self._add(operation)

    def _follow_block(self, block: Block) -> None:
        """Add both paths, the last norm of which adds the other path."""
        start, shape = len(self.operations), self.shape
        self.follow(block.convolutions)
        joined = start
        if type(block.shortcut) is not nn.Identity:
            joined, path = len(self.operations), self.shape
            self.operations.append([_RECALL, start])
            self.shape = shape
            self.follow(block.shortcut)
            shape, self.shape = self.shape, path
        last = self.operations[-1]
        if last[0] != _GROUP_NORM or last[3:] != [0, 0] or shape != self.shape or not joined:
            raise _UnsupportedError("a residual block of this kind is not supported")
        last[3:] = [1, joined]

    def _add(self, operation: _Operation) -> None:
        """Add an operation, or merge it with the one before."""
        before = self.operations[-1] if self.operations else [0]
        activates = operation[0] in (_RELU, _TANH)
        if operation[0] == _MAX_POOL and before == [_RELU]:
            # They commute, and the pooled image is smaller.
            self.operations.pop()
            operation = [*operation[:5], 1]
        elif activates and (
            before[0] in (_RELU, _TANH) or (before[0] == _GROUP_NORM and before[3])
        ):
            # Activations work in place, so the first one's values would be lost.
            raise _UnsupportedError("two activations in a row are not supported")
        elif operation == [_RELU] and before[0] == _GROUP_NORM:
            before[3] = 1
            return
        self.operations.append(operation)


def _operation(module: nn.Module, shape: tuple[int, ...]) -> tuple[_Operation, tuple[int, ...]]:
    """Return an operation and the shape of its output."""
    if type(module) is nn.Conv2d:
        return _convolution(module, shape)
    if type(module) in (nn.MaxPool2d, nn.AvgPool2d):
        assert isinstance(module, nn.MaxPool2d | nn.AvgPool2d)
        return _pooling(module, shape)
    if type(module) is nn.AdaptiveAvgPool2d:
        if module.output_size not in (1, (1, 1)) or len(shape) != 3:
            raise _UnsupportedError("AdaptiveAvgPool2d to more than one pixel is not supported")
        return [_AVG_POOL, *shape[1:], *shape[1:], 0], (shape[0], 1, 1)
    if type(module) is nn.GroupNorm:
        return _group_norm(module, shape)
    if type(module) is nn.Linear:
        if module.bias is None:
            raise _UnsupportedError("Linear without bias is not supported")
        if shape != (module.in_features,):
            raise _UnsupportedError(f"Linear needs {module.in_features} features, not {shape}")
        return [_LINEAR, module.out_features], (module.out_features,)
    if type(module) is nn.ReLU:
        return [_RELU], shape
    if type(module) is nn.Tanh:
        return [_TANH], shape
    raise _UnsupportedError(f"{type(module).__name__} is not supported")


def _convolution(module: nn.Conv2d, shape: tuple[int, ...]) -> tuple[_Operation, tuple[int, ...]]:
    if len(shape) != 3 or shape[0] != module.in_channels:
        raise _UnsupportedError(f"Conv2d needs {module.in_channels} channels, not {shape}")
    plain = {"dilation": (1, 1), "groups": 1, "padding_mode": "zeros"}
    for name, only in plain.items():
        if getattr(module, name) != only:
            raise _UnsupportedError(f"Conv2d with {name}={getattr(module, name)} is not supported")
    stride = _pair(module.stride)
    if module.bias is not None and stride != (1, 1):
        raise _UnsupportedError(f"Conv2d with bias and stride={stride} is not supported")
    if isinstance(module.padding, str):
        raise _UnsupportedError(f"Conv2d with padding={module.padding!r} is not supported")
    kernel, padding = _pair(module.kernel_size), _pair(module.padding)
    height, width = (
        (size + 2 * pad - taps) // step + 1
        for size, pad, taps, step in zip(shape[1:], padding, kernel, stride, strict=True)
    )
    if min(height, width) < 1:
        raise _UnsupportedError(f"images of {shape} are smaller than the kernel")
    # Wider padding would put rows of the output where no tap reaches the image.
    if padding[0] >= kernel[0] or padding[1] >= kernel[1]:
        raise _UnsupportedError("Conv2d with padding as wide as its kernel is not supported")
    sizes, after = [module.out_channels, *kernel, *padding], (module.out_channels, height, width)
    return ([_BARE_CONV, *sizes, *stride] if module.bias is None else [_CONV, *sizes]), after


def _group_norm(module: nn.GroupNorm, shape: tuple[int, ...]) -> tuple[_Operation, tuple[int, ...]]:
    if len(shape) != 3 or shape[0] != module.num_channels:
        raise _UnsupportedError(f"GroupNorm needs {module.num_channels} channels, not {shape}")
    if not module.affine:
        raise _UnsupportedError("GroupNorm without weights is not supported")
    epsilon = np.float32(module.eps)
    if not 0 < epsilon < np.inf:
        raise _UnsupportedError(f"GroupNorm with eps={module.eps} is not supported")
    return [_GROUP_NORM, module.num_groups, int(epsilon.view(np.uint32)), 0, 0], shape


def _pooling(
    module: nn.MaxPool2d | nn.AvgPool2d, shape: tuple[int, ...]
) -> tuple[_Operation, tuple[int, ...]]:
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
    kind = _MAX_POOL if isinstance(module, nn.MaxPool2d) else _AVG_POOL
    return [kind, *kernel, *stride, 0], (shape[0], height, width)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
