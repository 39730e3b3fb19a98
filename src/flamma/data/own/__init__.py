"""One's own data in any form: arrays, torch datasets, tables, files, Hugging Face, Flower.

Each kind has a module of its own, chosen by what the data can do, so that no optional package is
imported. All of them gather samples, targets and clients, from which one federation is made.

Examples
--------
>>> import numpy as np
>>> from flamma.data.own import federated_from
>>> x, y = np.eye(6, 2), ["ill", "well", "ill", "well", "ill", "well"]
>>> data = federated_from((x, y), group=["north"] * 3 + ["south"] * 3)
>>> data.client_names, data.labels
(('north', 'south'), ('ill', 'well'))
"""

from flamma.data.own.federate import federated_from as federated_from
