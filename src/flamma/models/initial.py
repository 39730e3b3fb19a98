"""Initial weights with the same bits on every machine.

torch draws the same whole numbers everywhere, but what it makes of them differs: one processor
fuses the product and the sum of ``uniform_``, another does not, and ``normal_`` calls vectorised
logarithms. Layers draw their initial weights by these two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from flamma.numerics.draws import normal_quantile

_LEVELS = 2**24
"""How many equally spaced numbers torch's uniform deviates of single precision take."""


def same_initial_weights() -> AbstractContextManager[None]:
    """Return a scope in which ``uniform_`` and ``normal_`` of single precision are replaced.

    Uniform weights are those of torch on a processor that fuses products and sums.
    """
    scope: AbstractContextManager[None] = _Replacing()  # type: ignore[no-untyped-call]
    return scope


class _Replacing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's compiler takes a second to import

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        replaced = _REPLACED.get(func)
        if replaced is None or args[0].dtype != torch.float32 or args[0].device.type != "cpu":
            return func(*args, **(kwargs or {}))
        return replaced(*args, **(kwargs or {}))


def _uniform(
    tensor: torch.Tensor,
    low: float = 0.0,
    high: float = 1.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    first, last = np.float32(low), np.float32(high)
    steps = _whole_numbers(tensor, generator) / _LEVELS
    return _filled(tensor, np.float64(first) + np.float64(last - first) * steps)


def _normal(
    tensor: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    steps = (_whole_numbers(tensor, generator) + 0.5) / _LEVELS
    return _filled(tensor, mean + std * normal_quantile(steps))


_REPLACED: dict[Callable[..., Any], Callable[..., torch.Tensor]] = {
    torch.ops.aten.uniform_.default: _uniform,
    torch.ops.aten.normal_.default: _normal,
}
"""What is called instead of an operator."""


def _whole_numbers(tensor: torch.Tensor, generator: torch.Generator | None) -> NDArray[np.float64]:
    drawn = torch.empty(tensor.numel(), dtype=torch.int64).random_(0, _LEVELS, generator=generator)
    return drawn.numpy().astype(np.float64)


def _filled(tensor: torch.Tensor, values: NDArray[np.float64]) -> torch.Tensor:
    return tensor.copy_(torch.from_numpy(values.astype(np.float32)).reshape(tensor.shape))
