"""Synthetic(α, β): devices that differ in what they see and in what they make of it.

The recipe of Shamir, Srebro and Zhang ("Communication-efficient distributed optimization using an
approximate Newton-type method", 2014) as Li et al. extended it ("Federated Optimization in
Heterogeneous Networks", MLSys 2020) and used for q-FFL ("Fair Resource Allocation in Federated
Learning", ICLR 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flamma.data.records import Dataset, DatasetEntry
from flamma.numerics import exp, normal, power
from flamma.seeding import stream
from flamma.types import Floats, Ints

DEVICES, DEVICE_FEATURES, DEVICE_CLASSES = 100, 60, 10
DEVICE_TEST_SAMPLES = 10
"""Samples of each device in the common test set."""
TRAINING_SAMPLES = 63_648
"""What :func:`device_sizes` adds up to."""


def device_sizes(devices: int = DEVICES) -> Ints:
    """Return how many training samples each device has: few have many.

    50 and the whole part of exp(4 + 2 z) with z normal, as in Li et al.'s generator.
    """
    rng = stream(0, "devices-sizes")
    return 50 + np.floor(exp(4 + 2 * normal(rng, devices))).astype(np.int64)


def device_samples(
    device: int, count: int, alpha: float, beta: float
) -> tuple[NDArray[np.float32], Ints]:
    """Return the first samples of a device, with their labels.

    y = argmax(W x + b), where x is normal around v with variances j^-1.2 for j = 1, 2, ...; all of
    W and b are normal around u with variance 1, and v around B; u is normal around 0 with variance
    α, and B with variance β.
    """
    rng = stream(0, "devices-model", client=device)
    labelling, seeing = normal(rng, 2)
    weights = normal(rng, (DEVICE_FEATURES + 1) * DEVICE_CLASSES).reshape(-1, DEVICE_CLASSES)
    weights += np.sqrt(alpha) * labelling
    centre = normal(rng, DEVICE_FEATURES) + np.sqrt(beta) * seeing
    noise = normal(stream(0, "devices-samples", client=device), count * DEVICE_FEATURES)
    spread = np.sqrt(power(np.arange(1.0, DEVICE_FEATURES + 1), -1.2))
    samples = (noise.reshape(count, -1) * spread + centre).astype(np.float32)
    return samples, _largest_scores(samples, weights)


def _largest_scores(samples: NDArray[np.float32], weights: Floats) -> Ints:
    """Return the class with the largest W x + b; b is the last row of the weights."""
    scores = np.tile(weights[-1], (len(samples), 1))
    for feature, row in zip(samples.T.astype(np.float64), weights[:-1], strict=True):
        scores += feature[:, None] * row  # one by one, for the same bits everywhere
    chosen: Ints = scores.argmax(axis=1)
    return chosen


def load_devices(_folder: Path, _samples: int, *, name: str, alpha: float, beta: float) -> Dataset:
    """Return Synthetic(α, β) with every device a natural group."""
    sizes = device_sizes()
    train, test = [], []
    for device, size in enumerate(sizes.tolist()):
        x, y = device_samples(device, size + DEVICE_TEST_SAMPLES, alpha, beta)
        test.append((x[:DEVICE_TEST_SAMPLES], y[:DEVICE_TEST_SAMPLES]))
        train.append((x[DEVICE_TEST_SAMPLES:], y[DEVICE_TEST_SAMPLES:]))
    return Dataset(
        name,
        np.concatenate([x for x, _ in train]),
        np.concatenate([y for _, y in train]),
        np.concatenate([x for x, _ in test]),
        np.concatenate([y for _, y in test]),
        CLASS_NAMES,
        groups=np.repeat(np.arange(DEVICES), sizes),
    )


def _entry(name: str, alpha: float, beta: float) -> DatasetEntry:
    load: Callable[[Path, int], Dataset] = partial(load_devices, name=name, alpha=alpha, beta=beta)
    return DatasetEntry(
        about=f"100 devices of Synthetic({alpha:g}, {beta:g}) (Li et al. 2020)",
        shape=(DEVICE_FEATURES,),
        class_names=CLASS_NAMES,
        train=TRAINING_SAMPLES,
        test=DEVICES * DEVICE_TEST_SAMPLES,
        load=load,
    )


CLASS_NAMES = tuple(f"class {label}" for label in range(DEVICE_CLASSES))
SYNTHETIC_00 = _entry("synthetic-00", 0.0, 0.0)
SYNTHETIC_11 = _entry("synthetic-11", 1.0, 1.0)
