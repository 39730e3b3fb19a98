"""A flat vector of weights as a state dict: arrays by the names that the module gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.types import Layout, Params

StateDict = dict[str, NDArray[Any]]
"""Weights by name, as a module's state dict has them."""


@dataclass(frozen=True, eq=False)
class NamedWeights:
    """What turns a flat vector into a state dict, without the module.

    Attributes
    ----------
    layout : Layout
        What the vector is made of.
    aliases : mapping of str to str
        Further names of parameters that modules share, with the name in the layout.
    fixed : mapping of str to ndarray
        What a state dict has that is not part of the vector: frozen parameters and counters.
    """

    layout: Layout
    aliases: Mapping[str, str]
    fixed: Mapping[str, NDArray[Any]]

    def arrays(self, params: Params) -> StateDict:
        """Return the state dict of a flat vector.

        Examples
        --------
        >>> layout = Layout(("weight", "bias"), ((1, 2), (1,)), (True, True))
        >>> NamedWeights(layout, {}, {}).arrays(np.array([1, 2, 3], dtype=np.float32))["weight"]
        array([[1., 2.]], dtype=float32)
        """
        layout = self.layout
        parts = np.split(params, np.cumsum(layout.sizes)[:-1])
        named: StateDict = {
            name: part.reshape(shape).copy()
            for name, shape, part in zip(layout.names, layout.shapes, parts, strict=True)
        }
        named |= {name: named[own] for name, own in self.aliases.items()}
        return named | dict(self.fixed)
