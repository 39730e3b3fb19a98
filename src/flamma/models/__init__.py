"""Models by name, and any model as one flat vector.

Examples
--------
>>> from flamma.models import FlatModel, build_model
>>> model = FlatModel(build_model("lenet5", shape=(1, 28, 28), classes=10, seed=0))
>>> model.layout.size
61706
"""

from flamma.models.flat import FlatModel as FlatModel
from flamma.models.registry import MODELS as MODELS
from flamma.models.registry import build_model as build_model
