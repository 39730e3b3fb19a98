"""A torch model whose weights are one flat vector, without copies."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from flamma.errors import FlammaError
from flamma.models.weights import NamedWeights, state_tensors
from flamma.types import Layout, Params


class FlatModel:
    """A module whose weights are all views into one flat float32 tensor.

    The trainable parameters come first, in the module's order; floating buffers (a batch norm's
    running means) follow. The gradients of the trainable part are views into one flat tensor too,
    so an optimiser's step is a handful of operations on long vectors.

    Frozen parameters are not part of the vector: they stay as they are in the module, the same
    for all clients, and so never travel. Integer buffers (a batch norm's count of batches) and
    buffers that the module does not save are not part of it either: every :meth:`load` resets them
    to their initial values, so that training depends on the loaded vector only. Parameters that
    modules share stay shared and appear once.

    Parameters
    ----------
    module : torch.nn.Module
        It is changed: its parameters are moved into the flat tensor.
    device : str or torch.device
        Where to put the model.

    Attributes
    ----------
    flat : Tensor
        All numbers of the layout.
    weights, gradient : Tensor
        The trainable part of ``flat``, and its gradient, which backward passes add to.

    Raises
    ------
    FlammaError
        If the module has nothing to train, lazy parameters, complex numbers, or two parameters
        that are views of the same memory.

    Examples
    --------
    >>> import numpy as np
    >>> model = FlatModel(nn.Linear(2, 1))
    >>> model.load(np.array([1.0, 2.0, 3.0], dtype=np.float32))
    >>> model.module(torch.tensor([[10.0, 100.0]])).item()
    213.0
    >>> model.layout
    Layout(names=('weight', 'bias'), shapes=((1, 2), (1,)), trainable=(True, True))
    """

    def __init__(self, module: nn.Module, device: str | torch.device = "cpu") -> None:
        trained, carried, reset = _sort_out(module)
        module.to(device=device, dtype=torch.float32)
        self.module = module
        # Modules on another device may hold new tensors now, so the names are looked up again.
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        names = [*trained, *carried]
        self._layout = Layout(
            names=tuple(names),
            shapes=tuple(tuple(tensors[name].shape) for name in names),
            trainable=(True,) * len(trained) + (False,) * len(carried),
        )
        self.flat = torch.empty(self._layout.size, dtype=torch.float32, device=device)
        self.weights = self.flat[: self._layout.trainable_size]
        self.gradient = torch.zeros_like(self.weights)
        start = 0
        for name, size in zip(names, self._layout.sizes, strict=True):
            tensor = tensors[name]
            view = self.flat[start : start + size].view(tensor.shape)
            view.copy_(tensor.detach())
            tensor.data = view
            if start < self.weights.numel():
                tensor.grad = self.gradient[start : start + size].view(tensor.shape)
            start += size
        self._reset = [(tensors[name], tensors[name].clone()) for name in reset]
        self._buffers = [
            (module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], buffer)
            for name, buffer in module.named_buffers()
        ]
        on_cpu = self.flat.device.type == "cpu"
        self._array: Params | None = self.flat.numpy() if on_cpu else None

    @property
    def layout(self) -> Layout:
        """The layout of the flat vector."""
        return self._layout

    @property
    def naming(self) -> NamedWeights:
        """The conversion of a flat vector to a state dict, without the module."""
        self._gather()
        saved = state_tensors(self.module)
        known = {id(saved[name]): name for name in self._layout.names}
        names = {name: known.get(id(tensor)) for name, tensor in saved.items()}
        aliases = {name: own for name, own in names.items() if own and own != name}
        fixed = {
            name: saved[name].detach().cpu().numpy().copy()
            for name, own in names.items()
            if own is None
        }
        return NamedWeights(self._layout, aliases, fixed)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.flat.device

    def load(self, params: Params) -> None:
        """Set all weights and buffers to those of a flat vector."""
        if params.shape != (self._layout.size,):
            raise FlammaError(
                f"the model is a vector of {self._layout.size} numbers, "
                f"but weights of shape {params.shape} were given."
            )
        self._gather()
        if self._array is not None:
            self._array[:] = params
        else:
            self.flat.copy_(torch.tensor(params))
        for tensor, first in self._reset:
            tensor.copy_(first)

    def read(self) -> Params:
        """Return all weights and buffers as a new flat vector."""
        self._gather()
        if self._array is not None:
            return self._array.copy()
        array: Params = self.flat.cpu().numpy()
        return array

    def view(self) -> Params:
        """Return all weights and buffers, on a CPU without a copy: do not change them."""
        self._gather()
        return self._array if self._array is not None else self.read()

    def _gather(self) -> None:
        """Copy back buffers that the module replaced instead of changing them in place."""
        for owner, key, buffer in self._buffers:
            current = getattr(owner, key)
            if current is not buffer:
                buffer.copy_(current)
                setattr(owner, key, buffer)


def _sort_out(module: nn.Module) -> tuple[list[str], list[str], list[str]]:
    """Return the names of tensors that are trained, only averaged, and reset; none is frozen."""
    trained: list[str] = []
    carried: list[str] = []
    reset: list[str] = []
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise FlammaError(
                f"the parameter {name!r} has no shape yet: pass one sample through the model "
                f"before it is given away, or use layers that are not lazy."
            )
        if not parameter.is_floating_point():
            raise FlammaError(f"the parameter {name!r} must be of real numbers.")
        if parameter.requires_grad:
            trained.append(name)
    if not trained:
        raise FlammaError("the model has no trainable parameter.")
    _refuse_overlaps(module)
    saved = module.state_dict(keep_vars=True).keys()
    for name, buffer in module.named_buffers():
        if name in saved and buffer.is_floating_point():
            carried.append(name)
        else:
            reset.append(name)
    return trained, carried, reset


def _refuse_overlaps(module: nn.Module) -> None:
    """Refuse parameters that are different views of the same memory: they would be separated."""
    ranges = []
    for name, parameter in module.named_parameters():
        if parameter.numel():
            steps = zip(parameter.shape, parameter.stride(), strict=True)
            last = sum((size - 1) * stride for size, stride in steps)
            start = parameter.data_ptr()
            ranges.append((start, start + (last + 1) * parameter.element_size(), name))
    ranges.sort()
    for (_, end, first), (start, _, second) in pairwise(ranges):
        if start < end:
            raise FlammaError(
                f"the parameters {first!r} and {second!r} are two views of the same memory; "
                f"share one torch.nn.Parameter between the modules instead."
            )
