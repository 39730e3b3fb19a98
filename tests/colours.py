"""Colours as eyes take them, for the tests of pages and pictures."""

from __future__ import annotations

import numpy as np


def linear(colour):
    values = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """The ratio of WCAG 2: from 1, alike, to 21, black on white."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) + 0.05 for c in (one, other))
    return high / low
