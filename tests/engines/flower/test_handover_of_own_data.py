"""What a federation of one's own data says of itself reaches the processes of a simulation."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from flamma.data.own import from_data
from flamma.engines.flower.handover import hand_over, take_over


def test_labels_names_encoding_and_task_are_handed_over(tmp_path):
    table = {"age": np.arange(12.0), "ward": ["a", "b"] * 6, "label": ["ill", "well"] * 6}
    data = from_data(table, target="label", group=["north", "south"] * 6)
    hand_over(data, tmp_path)
    taken = take_over(tmp_path)
    for field in fields(data):
        given, there = getattr(data, field.name), getattr(taken, field.name)
        if isinstance(given, np.ndarray):
            np.testing.assert_array_equal(there, given)
        else:
            assert there == given
