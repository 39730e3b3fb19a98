"""What splits are made of."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from flamma.data.splits import part_sizes


@given(
    total=st.integers(0, 5000),
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=50),
    least=st.integers(0, 3),
)
def test_part_sizes_add_up_and_follow_the_weights(total, weights, least):
    assume(total >= least * len(weights))
    sizes = part_sizes(total, np.array(weights), least)
    assert sizes.sum() == total
    ideal = least + (total - least * len(weights)) * np.array(weights) / sum(weights)
    assert np.abs(sizes - ideal).max() <= 1 + 1e-9
