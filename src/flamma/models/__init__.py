"""Models by name, and models as one flat vector.

Examples
--------
>>> from flamma.models import FlatModel, build_model
>>> model = FlatModel(build_model("lenet5", shape=(1, 28, 28), classes=10, seed=0))
>>> model.layout.size
61706
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flamma.models.registry import MODELS as MODELS
from flamma.models.registry import build_model as build_model
from flamma.models.registry import check_model as check_model

if TYPE_CHECKING:
    from flamma.models.flat import FlatModel as FlatModel


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and reading a configuration does not need it.
    if name == "FlatModel":
        return import_module("flamma.models.flat").FlatModel
    raise AttributeError(f"module 'flamma.models' has no attribute {name!r}")
