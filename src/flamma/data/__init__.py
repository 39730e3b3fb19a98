"""Data of clients: datasets by name, data of users and sites, and splits over clients.

Examples
--------
>>> from flamma.data import from_arrays, from_data, load_dataset
>>> table = {"age": [39, 50, 38, 53, 28, 37], "ill": [0, 1] * 3, "site": ["n"] * 3 + ["s"] * 3}
>>> data = from_data(table, target="ill", group="site")
>>> data.clients, data.client_names, data.samples.tolist()
(2, ('n', 's'), [2, 2])
>>> load_dataset("digits").train_x.shape
(1442, 1, 28, 28)
"""

from flamma.data.build import build_federation
from flamma.data.datasets import DATASETS, load_dataset
from flamma.data.federated import FederatedData, from_arrays
from flamma.data.own import from_data
from flamma.data.records import Dataset, DatasetEntry
from flamma.data.splits import SPLITS, Pool

__all__ = [
    "DATASETS",
    "SPLITS",
    "Dataset",
    "DatasetEntry",
    "FederatedData",
    "Pool",
    "build_federation",
    "from_arrays",
    "from_data",
    "load_dataset",
]
