"""The model of a run as a client of Flower makes it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from flamma.engines.flower.environment import KEPT_VARIABLE
from flamma.errors import ConfigError
from flamma.experiments.config import Config

if TYPE_CHECKING:
    from torch import nn


def site_module(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the run's model as a client has it before it receives weights.

    What is trained comes with every order, so a file of weights to begin with is needed for frozen
    parts alone. Only the clients of a simulation, which share the server's disk, read it: no
    server names a file that a site opens.

    Raises
    ------
    ConfigError
        If a deployed site would have to read one.
    """
    from flamma.experiments.run import build_module

    without = replace(config, weights=replace(config.weights, start=""))
    module = build_module(without, shape, classes)
    if not config.weights.start or all(part.requires_grad for part in module.parameters()):
        return module
    if KEPT_VARIABLE not in os.environ:
        raise ConfigError(
            "frozen weights of a file do not travel to sites: freeze nothing, or start without it."
        )
    return build_module(config, shape, classes)
